"""Which layers of a model are trained where not all are, as people write it: ``last:8``,
``first:2``, ``16-31``, ``norm``.

``spread:8`` are eight layers evenly apart, the last one among them, as LLaMA Pro trains those that it added.
Behind ``:mlp`` only the matrices of their feed-forward part are trained, as in ``44-55:mlp``.
``drawn:4@20`` are four layers drawn anew every 20 steps, as LISA does: the last ones stand for them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log
from typing import Literal

from planner.errors import UsageError, show

End = Literal["embed", "norm", "head", "tower", "projector"]
ENDS: tuple[End, ...] = ("embed", "norm", "head")
"""What lies around the layers of a language model: tables, norms outside of layers, the head."""
_MLP = ":mlp"
_NUMBERED = re.compile(r"(last|first|spread):([1-9][0-9]{0,4})|([0-9]{1,5})(?:-([0-9]{1,5}))?")
_DRAWN = re.compile(r"drawn:([1-9][0-9]{0,4})@([1-9][0-9]{0,6})")


@dataclass(frozen=True, slots=True)
class Drawn:
    """``count`` layers that are drawn anew every ``interval`` steps."""

    count: int
    interval: int

    def steps_to_all(self, n_layers: int) -> int:
        """Steps after which less than one of ``n_layers`` has never been drawn, on average."""
        if self.count >= n_layers:
            return 0
        return self.interval * ceil(log(n_layers) / -log(1 - self.count / n_layers))


def drawn(selectors: tuple[str, ...]) -> Drawn | None:
    """The layers that are drawn, where ``selectors`` have such."""
    for match in map(_DRAWN.fullmatch, selectors):
        if match is not None:
            return Drawn(int(match[1]), int(match[2]))
    return None


@dataclass(frozen=True, slots=True)
class TrainedParts:
    """Numbers of the layers that are trained, from 0 on, and what is trained around them.

    ``mlp_only``: those of the layers of which only the matrices of the feed-forward part are trained.
    """

    layers: frozenset[int]
    ends: frozenset[End]
    mlp_only: frozenset[int] = frozenset()


@lru_cache(maxsize=256)
def trained_parts(selectors: tuple[str, ...], n_layers: int, *, tied: bool) -> TrainedParts:
    """What ``selectors`` mean in a model of ``n_layers``; numbers that it has no layer of mean nothing.

    A head that is ``tied`` to the table is trained with it.

    Raises:
        UsageError: not one of the forms.
    """
    layers: set[int] = set()
    halves: set[int] = set()
    ends: set[End] = set()
    for selector in selectors:
        found = [end for end in ENDS if end == selector]
        ends.update(found)
        if not found:
            (halves if selector.endswith(_MLP) else layers).update(_numbers(selector, n_layers))
    halves = {number for number in halves - layers if number < n_layers}
    if tied and ends & {"embed", "head"}:
        ends |= {"embed", "head"}
    whole = {number for number in layers if number < n_layers}
    return TrainedParts(frozenset(whole | halves), frozenset(ends), frozenset(halves))


def missing_layers(selectors: tuple[str, ...], n_layers: int) -> tuple[str, ...]:
    """Those of ``selectors`` that name a layer behind the last one, or more layers than there are.

    Raises:
        UsageError: not one of the forms.
    """
    return tuple(
        each
        for each in selectors
        if each not in ENDS and max(_numbers(each, n_layers), default=0) >= n_layers
    )


def _numbers(selector: str, n_layers: int) -> range:
    if (some := drawn((selector,))) is not None:
        selector = f"last:{some.count}"
    match = _NUMBERED.fullmatch(selector.removesuffix(_MLP))
    if match is None or (match[4] is not None and int(match[4]) < int(match[3])):
        forms = f"last:8, first:8, spread:8, 16-31 (from 0 on), 5, 16-31:mlp, drawn:4@20, {', '.join(ENDS)}"
        raise UsageError(f"train_layers must be among {forms}, but it is '{show(selector)}'")
    if match[1] is None:
        return range(int(match[3]), int(match[4] or match[3]) + 1)
    count = int(match[2])
    if match[1] == "spread" and 0 < count <= n_layers:
        if n_layers % count:
            raise UsageError(
                f"train_layers {selector}: {n_layers} layers cannot be divided into {count} equal rows"
            )
        return range(n_layers // count - 1, n_layers, n_layers // count)
    # More than there are reaches beyond the last, so that it is found missing.
    return range(n_layers - count, n_layers) if match[1] == "last" and count <= n_layers else range(count)
