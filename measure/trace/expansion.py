"""The events of four traced periods -> the events of all periods."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from measure.trace.period import TRACED_PERIODS, Irregular, Pattern, Sweep, read_sweeps
from measure.trace.record import Place, Record, TracedBlock

_FIRST_INNER, _SECOND_INNER = 1, 2

# What a block is, whatever its number: place in its layer, operator, size, and which of several like it.
Name = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Home:
    """Where a block of a sweep was made."""

    sweep: int
    period: int
    name: Name


def repeat(records: list[Record], pattern: Pattern) -> list[Record]:
    """Records of all periods from those of the traced ones.

    Raises:
        Irregular: the inner periods differ, or records are not in sweeps.
    """
    return Expansion(read_sweeps(records, pattern), pattern).run()


class Expansion:
    """Repeats the inner unit of every sweep."""

    def __init__(self, parts: list[Record | Sweep], pattern: Pattern) -> None:
        self.parts, self.pattern = parts, pattern
        self.homes: dict[int, Home] = {}
        self.made: dict[Home, TracedBlock] = {}
        self.fixed: dict[int, TracedBlock] = {}
        self.out: list[Record] = []
        self.next_id = 0
        self._modules: dict[tuple[str, int], str] = {}

    def run(self) -> list[Record]:
        """All records, with blocks numbered anew."""
        sweeps = [part for part in self.parts if isinstance(part, Sweep)]
        for number, sweep in enumerate(sweeps):
            for period in sweep.order:
                self._name_blocks(number, period, sweep.units[period])
        for sweep in sweeps:
            first, second = (
                self._signature(sweep.units[period], period) for period in (_FIRST_INNER, _SECOND_INNER)
            )
            if first != second:
                raise Irregular(f"{sweep.units[0][0].place.stage}: {_difference(first, second)}")
        number = 0
        for part in self.parts:
            if isinstance(part, Sweep):
                for target in self._targets(part):
                    template = self._template(target)
                    self._emit(number, part.units[template], template, target)
                number += 1
            else:
                self._emit_fixed(part)
        self._check_that_all_is_freed()
        return self.out

    def _check_that_all_is_freed(self) -> None:
        """What a traced period frees, each repeated one has to free as well; else a pass was read wrongly.

        Raises:
            Irregular: names a block that stays.
        """
        records = [record for part in self.parts for record in _records(part)]
        freed = {record.block.id for record in records if not record.alloc}
        stays = {(home.sweep, home.name) for block, home in self.homes.items() if block not in freed}
        for home, block in self.made.items():
            if (home.sweep, home.name) not in stays:
                raise Irregular(f"{block.place.stage}: a block of {block.op} is not freed in every period")

    def _name_blocks(self, sweep: int, period: int, records: list[Record]) -> None:
        seen: dict[Name, int] = {}
        for record in records:
            if record.alloc:
                block = record.block
                kind = (
                    *self._relative(block.place, period),
                    self._module(block.module, -self._shift(period)),
                    block.op,
                    block.n_bytes,
                )
                seen[kind] = seen.get(kind, 0) + 1
                self.homes[block.id] = Home(sweep, period, (*kind, seen[kind]))

    def _relative(self, place: Place, period: int) -> Name:
        layer = place.layer
        return (
            place.stage,
            place.micro_step,
            layer if self.pattern.period_of(layer) is None else layer - self._shift(period),
        )

    def _shift(self, periods: int) -> int:
        """Layers in so many periods."""
        return periods * self.pattern.length

    def _signature(self, records: list[Record], period: int) -> list[Hashable]:
        return [self._record_signature(record, period) for record in records]

    def _record_signature(self, record: Record, period: int) -> Hashable:
        block = record.block
        home = self.homes.get(block.id)
        if home is None:
            return record.alloc, block.id
        if abs(home.period - period) > 1:
            raise Irregular(f"{record.place.stage}: a block of {block.op} outlives its neighbours")
        return (
            record.alloc,
            home.sweep,
            home.period - period,
            home.name,
            block.role,
            block.recomputed,
            self._relative(record.place, period),
        )

    def _targets(self, sweep: Sweep) -> range:
        periods = range(self.pattern.periods)
        return periods if sweep.order[0] == 0 else periods[::-1]

    def _template(self, target: int) -> int:
        """The traced period that stands for the period ``target`` of the whole model."""
        from_end = target - (self.pattern.periods - TRACED_PERIODS)
        return target if target < _FIRST_INNER else from_end if from_end >= _SECOND_INNER else _FIRST_INNER

    def _absolute(self, traced: int) -> int:
        """The period of the whole model that a traced one is, seen from outside of the sweeps."""
        return traced if traced <= _FIRST_INNER else traced + self.pattern.periods - TRACED_PERIODS

    def _emit(self, sweep: int, records: list[Record], template: int, target: int) -> None:
        shift = self._shift(target - template)
        for record in records:
            place = self._moved(record.place, shift)
            home = self.homes.get(record.block.id)
            if home is None:
                self.out.append(Record(False, self.fixed[record.block.id], place))
            elif record.alloc:
                block = self._new(record.block, Home(sweep, target, home.name), shift)
                self.out.append(Record(True, block, place))
            else:
                self.out.append(Record(False, self._old(self._seen(home, (template, target))), place))

    def _seen(self, home: Home, seen_from: tuple[int, int] | None) -> Home:
        """``home`` among all periods.  ``seen_from``: a traced period and the one that it stands for now;
        none from outside of the sweeps.
        """
        period = self._absolute(home.period)
        if seen_from is not None and abs(home.period - seen_from[0]) <= 1:
            period = seen_from[1] + home.period - seen_from[0]
        return Home(home.sweep, period, home.name)

    def _emit_fixed(self, record: Record) -> None:
        home = self.homes.get(record.block.id)
        if home is not None:
            block = self._old(self._seen(home, None))
        elif record.alloc:
            block = self.fixed[record.block.id] = self._numbered(record.block)
        else:
            block = self.fixed[record.block.id]
        self.out.append(Record(record.alloc, block, record.place))

    def _full_bytes(self, block: TracedBlock) -> int:
        """Bytes of a block that holds one element for each of many layers' tensors, at the full depth."""
        repeated = sum(self.pattern.period_of(layer) == _FIRST_INNER for layer in block.part_layers)
        extra = repeated * (self.pattern.periods - TRACED_PERIODS)
        return block.n_bytes + (block.n_bytes // len(block.part_layers) * extra if extra else 0)

    def _new(self, block: TracedBlock, home: Home, shift: int) -> TracedBlock:
        moved = self._numbered(block)
        moved.place, moved.module = self._moved(block.place, shift), self._module(block.module, shift)
        if home in self.made:
            raise Irregular(f"{block.place.stage}: a block of {block.op} would be made twice")
        self.made[home] = moved
        return moved

    def _numbered(self, block: TracedBlock) -> TracedBlock:
        self.next_id += 1
        return replace(block, id=self.next_id, n_bytes=self._full_bytes(block))

    def _old(self, home: Home) -> TracedBlock:
        block = self.made.pop(home, None)
        if block is None:
            raise Irregular(f"a block of {home.name} is freed where it does not live")
        return block

    def _moved(self, place: Place, shift: int) -> Place:
        if not shift or self.pattern.period_of(place.layer) is None:
            return place
        return Place(place.stage, place.micro_step, place.layer + shift)

    def _module(self, module: str, shift: int) -> str:
        """``module`` with the number of its layer moved by ``shift``."""
        if not shift:
            return module
        key = module, shift
        if key not in self._modules:
            prefix = f"{self.pattern.layer_list}."
            rest = module.removeprefix(prefix)
            number, dot, tail = rest.partition(".")
            moves = rest != module and self.pattern.period_of(int(number)) is not None
            self._modules[key] = f"{prefix}{int(number) + shift}{dot}{tail}" if moves else module
        return self._modules[key]


def _records(part: Record | Sweep) -> list[Record]:
    return [record for unit in part.units.values() for record in unit] if isinstance(part, Sweep) else [part]


def _difference(first: list[Hashable], second: list[Hashable]) -> str:
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return f"record {index}: {one} against {other}"
    return f"{len(first)} records against {len(second)}"
