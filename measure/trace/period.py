"""Blocks repeat: the events of a few whole periods of the layer pattern stand for all of them.

A pass over the layers is a *sweep*: the records of period 0, 1, 2, ... in order, forward or backward.  Four
periods are traced.  The two inner ones must be the same event by event, each block named by what it is rather
than by its number.  Then the first of them is repeated as often as the depth says, and its references to
neighbouring periods move along.  Anything that does not fit this picture is :class:`Irregular`, and the
caller traces all layers.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from measure.trace.record import ASIDES, Record

TRACED_PERIODS = 4


class Irregular(Exception):  # noqa: N818 - not an error: the caller traces every layer instead
    """The layers do not repeat as the picture says; the message says where."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """``prefix`` layers of their own, then ``periods`` times ``length`` layers.
    ``layer_list`` is the name of the list.
    """

    prefix: int
    length: int
    periods: int
    layer_list: str

    @property
    def traced_layers(self) -> int:
        """Layers to trace."""
        return self.prefix + self.length * min(self.periods, TRACED_PERIODS)

    def period_of(self, layer: int) -> int | None:
        """Index of the period that ``layer`` is in, ``None`` outside of them."""
        return (layer - self.prefix) // self.length if layer >= self.prefix and layer >= 0 else None


@dataclass(slots=True)
class Sweep:
    """The records of one pass over the layers, by period; ``order`` is the order of the periods."""

    units: dict[int, list[Record]]
    order: tuple[int, ...]


def find_pattern(fingerprints: list[Hashable], layer_list: str) -> Pattern:
    """The shortest prefix and period that explain the layers;
    the prefix takes what is left of the last period.
    """
    n_layers = len(fingerprints)
    for length in range(1, n_layers + 1):
        irregular = next(
            (
                i + 1
                for i in reversed(range(n_layers - length))
                if fingerprints[i] != fingerprints[i + length]
            ),
            0,
        )
        prefix = irregular + (n_layers - irregular) % length
        periods = (n_layers - prefix) // length
        if periods > TRACED_PERIODS:
            return Pattern(prefix, length, periods, layer_list)
    return Pattern(n_layers, 1, 0, layer_list)


def _in_canonical_order(records: list[Record]) -> list[Record]:
    """Frees that follow each other, by layer and age of their blocks.

    At times their order is that of a hash table, and it has no effect on what is free afterwards.
    """
    ordered: list[Record] = []
    run: list[Record] = []
    for record in records:
        if record.alloc or (run and record.place != run[-1].place):
            ordered += sorted(run, key=_layer_and_age)
            run = []
        (ordered if record.alloc else run).append(record)
    return ordered + sorted(run, key=_layer_and_age)


def _layer_and_age(record: Record) -> tuple[int, int]:
    return record.block.place.layer, record.block.id


def read_sweeps(records: list[Record], pattern: Pattern) -> list[Record | Sweep]:
    """Records outside of sweeps, and sweeps, in order.

    Raises:
        Irregular: periods that do not follow each other.
    """
    records = _in_canonical_order(records)
    parts: list[Record | Sweep] = []
    start = 0
    for end in range(1, len(records) + 1):
        if end == len(records) or _pass_of(records[end]) != _pass_of(records[start]):
            parts += _Reader(pattern).read(records[start:end])
            start = end
    return parts


def _pass_of(record: Record) -> tuple[str, int]:
    return record.place.stage, record.place.micro_step


class _Reader:
    """Reads the records of one pass into sweeps."""

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.parts: list[Record | Sweep] = []
        self.units: dict[int, list[Record]] = {}
        self.period = 0
        self.step = 0

    def read(self, records: list[Record]) -> list[Record | Sweep]:
        """Parts of the pass."""
        inside = [
            index
            for index, record in enumerate(records)
            if self.pattern.period_of(record.place.layer) is not None
        ]
        first, last = (inside[0], inside[-1]) if inside else (len(records), -1)
        for index, record in enumerate(records):
            if index == last + 1:
                self._close()
            self._take(record, self._period_of(record, between=first <= index <= last))
        self._close()
        return self.parts

    def _period_of(self, record: Record, *, between: bool) -> int | None:
        """Period of the place, or of the block where the blocks of many layers go at once.

        A variable of an optimizer's loop is freed when the next tensor's turn has come.  That tensor may be
        one of the next layer, or of the first layer again where the next group of parameters begins.
        """
        stage = record.place.stage
        if not record.alloc and stage == "optimizer_step" == record.block.place.stage and self.units:
            period = self.pattern.period_of(record.block.place.layer)
            left_over = not self.step and period is not None and abs(period - self.period) > 1
            return self.period if left_over or (self.step and period == self.period - self.step) else period
        if stage == "optimizer_step" or (
            not record.alloc and not between and stage in ("forward", *ASIDES, "backward")
        ):
            return self.pattern.period_of(record.block.place.layer)
        return self.pattern.period_of(record.place.layer)

    def _take(self, record: Record, period: int | None) -> None:
        if self.units and (period is None or period == self.period):
            self.units[self.period].append(record)
            return
        if self.units and period is not None:
            step = period - self.period
            if abs(step) == 1 and self.step in (0, step) and period not in self.units:
                self.step, self.period = step, period
                self.units[period] = [record]
                return
        self._close()
        if period is None:
            self.parts.append(record)
        else:
            self.units, self.period, self.step = {period: [record]}, period, 0

    def _close(self) -> None:
        """End a sweep: a whole one, or a few records of one period at an end of the model."""
        units, self.units = self.units, {}
        if len(units) == TRACED_PERIODS:
            self.parts.append(Sweep(units, tuple(units)))
        elif len(units) == 1 and self.period in (0, TRACED_PERIODS - 1):
            self.parts += units[self.period]
        elif units:
            place = units[self.period][0].place
            raise Irregular(f"{place.stage}: periods {list(units)} of {TRACED_PERIODS} follow each other")
