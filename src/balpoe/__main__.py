"""python -m balpoe, also from a source tree that is not installed."""

import sys

from balpoe.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
