"""`python -m overlay.wheel_mode` is `python -m overlay wheel-mode`."""
import argparse, sys
from ..errors import OverlayError
from .command import add_parser
parser = argparse.ArgumentParser()
add_parser(parser.add_subparsers(required=True))
a = parser.parse_args(["wheel-mode", *sys.argv[1:]])
try:
    sys.exit(a.run(a))
except OverlayError as e:
    sys.exit(e.render())
