"""``python -m planner``: the command ``plan`` without its script."""

import sys

from planner.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
