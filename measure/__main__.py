"""``python -m measure``: the command without its script."""

import sys

from measure.cli.main import main

sys.exit(main())
