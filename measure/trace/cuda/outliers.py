"""How many columns of an int8 layer hold outliers, which nobody knows without weights."""

from __future__ import annotations

OUTLIER_SHARE = 1000
"""One input column in so many holds a value at or above the threshold (arXiv 2208.07339, section 4:
about 0.1 %).

The true number depends on the data.  What matters to memory is that there are any: the layer then adds a
product in the 16-bit dtype of autocast, which its output keeps.
"""
