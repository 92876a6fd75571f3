"""Makes the modules of this folder importable: tests are collected in importlib mode,
which adds no folder to the path.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
