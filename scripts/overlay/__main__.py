"""python -m overlay <command>: the tool's command line. Exit code 0: done; 1: refused; 2: wrong usage."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys

from .errors import OverlayError

# Each module adds its commands to the parser with add_parser(subparsers); a command is `run(arguments) -> exit code`.
_MODULES = (
    "commands",
    "fetch",
    "lint",
    "mps_coverage",
    "wheel_mode.command",
    "source_mode.chroot",
    "source_mode.command",
    "source_mode.suites",
    "package",
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="overlay", description=sys.modules[__package__].__doc__)
    subparsers = parser.add_subparsers(metavar="command", required=True)
    for name in _MODULES:
        if importlib.util.find_spec(f".{name}", __package__):
            importlib.import_module(f".{name}", __package__).add_parser(subparsers)
    parsed = parser.parse_args(arguments)
    try:
        return parsed.run(parsed)
    except OverlayError as error:
        print(error.render(), file=sys.stderr)
    except BrokenPipeError:  # `diff | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(OverlayError(str(error.filename or "overlay"), error.strerror or str(error)).render(), file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
