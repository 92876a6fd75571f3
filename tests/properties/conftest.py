"""Lets the tests below this folder import what they share, as ``hostile``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
