"""Wheel mode: the overlay's operators, built as one library beside an installed PyTorch.

    target.py           the torch that is built against
    entries.py          our part of native_functions.yaml and derivatives.yaml
    codegen.py          PyTorch's own generators on these entries, and where their output goes
    templates.py        the replacements in PyTorch's templates, each one asserted
    torchgen_driver.py  runs inside the target's torchgen
    cpp/                what the generated code needs and a wheel does not export or hold
    toolchain.py        compiler, flags, and the key that names the build
    ninja.py            build.ninja, and running it
    manifest.py         what `import torch_overlay` has to know
    files.py            writing only what changed
    build.py            the steps in order
    command.py          `python -m overlay wheel-mode`
"""
