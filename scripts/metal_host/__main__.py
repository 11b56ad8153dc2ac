"""`python -m metal_host FILE ...`: type-checks Metal sources (.metal, at both language levels) and host code (.mm)."""

from __future__ import annotations

import sys
from pathlib import Path

from overlay.errors import OverlayError

from . import checks, host_code


def main(arguments: list[str]) -> int:
    if not arguments or any(argument.startswith("-") for argument in arguments):
        print(__doc__, file=sys.stderr)
        return 2
    paths = [Path(argument).resolve() for argument in arguments]
    errors = [OverlayError(str(path), "there is no such file") for path in paths if not path.is_file()]
    if not errors:
        hosts = [path for path in paths if path.suffix == ".mm"]
        errors = [*checks.check_files(path for path in paths if path not in hosts), *host_code.check_files(hosts)]
    for error in errors:
        print(error.render(), file=sys.stderr)
    print(f"metal: {len(errors)} errors" if errors else "metal: OK")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
