"""Makes the modules of this folder and of those below importable: tests are collected in importlib mode,
which adds no folder to the path.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *sorted({str(test.parent) for test in HERE.glob("*/test_*.py")})]
