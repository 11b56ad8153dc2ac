"""The replacements in copies of PyTorch's templates. Each must happen exactly once."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import OverlayError


@dataclass(frozen=True)
class Replacement:
    template: str  # relative to torchgen/packaged
    pattern: str  # a regular expression
    replacement: str
    why: str


# RegisterDispatchKey.cpp and its definitions are compiled once per dispatch key. All keys share one translation unit
# here, so each gets a namespace of its own; the unit defines DISPATCH_KEY_NAMESPACE before it includes a file.
REPLACEMENTS = (
    Replacement(
        "ATen/templates/RegisterSchema.cpp",
        r"\bTORCH_LIBRARY\(aten, m\)",
        "TORCH_LIBRARY_FRAGMENT(aten, m)",
        "the library aten exists already",
    ),
    Replacement(
        "ATen/templates/RegisterSchema.cpp",
        r'  m\.def\("get_gradients\([^"]*"\);\n',
        "",
        "libtorch_cpu defines get_gradients",
    ),
    Replacement(
        "ATen/templates/RegisterDispatchKey.cpp",
        r"namespace \{\n\$dispatch_helpers\n\} // namespace\n",
        "namespace { namespace DISPATCH_KEY_NAMESPACE {\n$dispatch_helpers\n}} // namespace\n",
        "the helpers of two dispatch keys have the same names",
    ),
    Replacement(
        "ATen/templates/RegisterDispatchKey.cpp",
        r"\$extra_cuda_headers\n",
        "",
        "they need the headers of cuBLAS and its kin, and our registrations need none of them",
    ),
    Replacement(
        "ATen/templates/RegisterDispatchDefinitions.ini",
        r"namespace \{\n(\s*\$\{dispatch_anonymous_definitions\}\s*\$\{static_init_dispatch_registrations\}\s*)"
        r"\} // anonymous namespace\n",
        r"namespace { namespace DISPATCH_KEY_NAMESPACE {\n\1}} // anonymous namespace\n"
        "using namespace DISPATCH_KEY_NAMESPACE;\n",
        "they use the helpers of their own dispatch key",
    ),
    Replacement(
        "ATen/templates/RedispatchFunctions.h",
        r"#include <ATen/Operators\.h>",
        '#include "OurOperators.h"',
        "the declarations of all of torch's operators take seconds to parse",
    ),
    Replacement(
        "autograd/templates/VariableType.cpp",
        r"#include <ATen/RedispatchFunctions\.h>",
        '#include "RedispatchFunctions.h"',
        "it redispatches to our operators alone",
    ),
    Replacement(
        "autograd/templates/Functions.h",
        r"inline std::vector<Tensor> unpack_list\((?s:.*?)\n\}\n\n"
        r"inline c10::List<std::optional<Tensor>> unpack_opt_list\((?s:.*?)\n\}\n",
        "",
        "the Functions.h of the wheel, which comes first, defines unpack_list and unpack_opt_list",
    ),
)


def replace(templates: dict[str, str], torch: str) -> dict[str, str]:
    """The templates (name to text) as wheel mode needs them; `torch` says whose they are."""
    templates = dict(templates)
    for item in REPLACEMENTS:
        text, count = re.subn(item.pattern, item.replacement, templates.get(item.template, ""))
        if count != 1:
            raise OverlayError(
                f"torchgen/packaged/{item.template} of {torch}",
                f"expected exactly one place that matches `{item.pattern}` ({item.why}); found {count}",
                "this release's template differs: mend REPLACEMENTS in scripts/overlay/wheel_mode/templates.py",
            )
        templates[item.template] = text
    return templates
