"""``python -m planner``: the command ``plan`` without its script."""

import sys

from planner.cli.main import main

sys.exit(main())
