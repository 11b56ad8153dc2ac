"""Runs the target's torchgen on our entries. A script: its interpreter has the target's torchgen first on its path.

    python torchgen_driver.py <source> <out> [options of torchgen]

<source>  native/*.yaml and templates/ as in aten/src/ATen; autograd/derivatives.yaml, if any, and its templates/
<out>     gets ATen/, autograd/ and operators.json
"""

import json
import sys
from pathlib import Path

import torchgen.gen
from torchgen.model import BackendIndex, Variant, dispatch_keys, is_cuda_dispatch_key
from torchgen.packaged.autograd import gen_autograd, gen_python_functions
from torchgen.selective_build.selector import SelectiveBuilder


def parse_with_all_keys(*args, **kwargs):
    """The full yaml has kernels for every dispatch key. Where ours has none, torchgen would take the key for
    `Undefined` and silently leave out what it derives, such as the functional variants of structured operators."""
    parsed = parse_native_yaml(*args, **kwargs)
    for key in dispatch_keys:
        if key not in parsed.backend_indices:
            parsed.backend_indices[key] = BackendIndex(
                dispatch_key=key,
                use_out_as_primary=True,
                external=False,
                device_guard=is_cuda_dispatch_key(key),
                index={},
            )
    return parsed


def python_bindings(native_functions):
    """The Python names that a build of PyTorch would generate, by the generator's own rules."""
    bindings = {"module": {}, "method": []}
    for function in native_functions:
        if not gen_python_functions.should_generate_py_binding(function):
            continue
        name = str(function.func.name.name)
        module = function.python_module
        if module is not None:
            bindings["module"].setdefault(f"torch._C._{module}", []).append(name)
        elif Variant.function in function.variants:
            bindings["module"].setdefault("torch", []).append(name)
        if module is None and Variant.method in function.variants:
            bindings["method"].append(name)
    return {
        "module": {module: sorted(set(names)) for module, names in bindings["module"].items()},
        "method": sorted(set(bindings["method"])),
    }


source, out = map(Path, sys.argv[1:3])
native_functions_yaml, tags_yaml = source / "native/native_functions.yaml", source / "native/tags.yaml"
parse_native_yaml = torchgen.gen.parse_native_yaml
torchgen.gen.parse_native_yaml = parse_with_all_keys

for folder in ("ATen", "aoti", "autograd"):
    (out / folder).mkdir(parents=True, exist_ok=True)
sys.argv[1:] = [
    f"--source-path={source}",
    f"--install-dir={out / 'ATen'}",
    f"--aoti-install-dir={out / 'aoti'}",
    "--per-operator-headers",
    *sys.argv[3:],
]
torchgen.gen.main()
if (source / "autograd/derivatives.yaml").exists():
    gen_autograd.gen_autograd(
        str(native_functions_yaml),
        str(tags_yaml),
        str(out / "autograd"),
        str(source / "autograd"),
        SelectiveBuilder.get_nop_selector(),
    )

functions = parse_native_yaml(str(native_functions_yaml), str(tags_yaml)).native_functions
(out / "operators.json").write_text(
    json.dumps({"operators": sorted(str(f.func.name) for f in functions), "bindings": python_bindings(functions)})
)
