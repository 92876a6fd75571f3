"""Arithmetic that answers one scenario or a grid of a million with the same formula.

Plain numbers take the plain Python path, which is about ten times faster than numpy on scalars;
arrays broadcast.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

from planner.domain.recipes.recipe import Number

_PLAIN = (int, float)


def maximum(first: Number, *others: Number) -> Number:
    """Largest of the values, elementwise."""
    if not others:
        return first
    try:
        return max(first, *others)
    except ValueError:  # the truth value of an array: take the elementwise path
        import numpy as np

        return reduce(np.maximum, others, first)


def minimum(first: Number, *others: Number) -> Number:
    """Smallest of the values, elementwise."""
    if not others:
        return first
    try:
        return min(first, *others)
    except ValueError:
        import numpy as np

        return reduce(np.minimum, others, first)


def is_zero(value: Number) -> bool:
    """Whether ``value`` is the plain number 0 (an array never is):
    lets sums skip terms that a recipe does not have.
    """
    return isinstance(value, _PLAIN) and value == 0


def where(condition: Any, yes: Number, no: Number) -> Number:
    """``yes`` where ``condition`` holds, else ``no``, elementwise.  Both are evaluated."""
    if isinstance(condition, bool):
        return yes if condition else no
    import numpy as np

    return np.where(condition, yes, no)


def first_of(value: Number) -> int | float:
    """The number itself, or the first of an array."""
    return value if isinstance(value, _PLAIN) else value.flat[0].item()


def mean(value: Number) -> float:
    """The number itself, or the mean over an array."""
    return float(value) if isinstance(value, _PLAIN) else float(value.mean())


def largest(value: Number) -> float:
    """The number itself, or the largest of an array."""
    return float(value) if isinstance(value, _PLAIN) else float(value.max())


def distinct(value: Any) -> list[int]:
    """The integers that there are, in rising order: the number itself, or those of an array."""
    if isinstance(value, _PLAIN):
        return [int(value)]
    import numpy as np

    return [int(each) for each in np.unique(value)]


def ceil_div(numerator: Number, denominator: Number) -> Number:
    """``numerator / denominator`` rounded up."""
    return -(-numerator // denominator)


def ceil_pow2(value: Number) -> Number:
    """The smallest power of two that is at least ``value`` (0 stays 0)."""
    if isinstance(value, int | float):
        return 0 if value <= 0 else 1 << math.ceil(math.log2(value)) if value > 1 else 1
    import numpy as np

    return np.where(value <= 0, 0.0, np.exp2(np.ceil(np.log2(np.maximum(value, 1.0)))))


def exp(value: Number) -> Number:
    """``e`` to the power of ``value``, elementwise."""
    if isinstance(value, int | float):
        return math.exp(value)
    import numpy as np

    return np.exp(value)


def sqrt(value: Number) -> Number:
    """Square root of ``value``, elementwise."""
    if isinstance(value, int | float):
        return math.sqrt(value)
    import numpy as np

    return np.sqrt(value)


def log(value: Number) -> Number:
    """Natural logarithm of ``value``, elementwise."""
    if isinstance(value, int | float):
        return math.log(value)
    import numpy as np

    return np.log(value)
