"""Executes a sharding runtime over the records of the modules, from loading to the second optimizer step."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from measure.trace.labels import to_events
from measure.trace.record import Place, Record, TracedBlock
from measure.trace.sharding.flat_optimizer import as_shards, on_host, record_steps
from measure.trace.sharding.fsdp import FsdpRank
from measure.trace.sharding.fsdp1 import FlatRank
from measure.trace.sharding.late_records import LateRecords
from measure.trace.sharding.marks import MARK
from measure.trace.sharding.runtime_settings import (
    flat_settings,
    fsdp_settings,
    reference_settings,
    zero_settings,
)
from measure.trace.sharding.shard_records import RankRecords, Steps
from measure.trace.sharding.sharded_parameters import TracedParameter, parameter_of
from measure.trace.sharding.zero3 import TracedZero3
from measure.trace.sharding.zero12 import TracedZero12
from planner.allocator.replay import replay
from planner.domain.recipes.recipe import Recipe
from planner.domain.scenario import Scenario
from planner.errors import PlannerError

_LOADING = ("load", "adapters")
_STEPS = 2
_STAGE_3 = 3
# Number of the model that a policy is compared with, where loading counts models.
_SECOND_MODEL = 1


class ShardingEngine(Protocol):
    """One rank of a runtime that shards."""

    @property
    def updated_bytes(self) -> int:
        """Bytes of an element that the optimizer updates; asked when everything is loaded."""

    def load(self, parameter: TracedParameter, record: Record) -> None:
        """``record`` would allocate the whole parameter."""

    def shard_groups(self) -> list[list[tuple[int, ...]]]:
        """Shapes of what the optimizer updates on the GPU, by group; asked when everything is loaded."""

    def set_up(self, steps: Steps) -> None:
        """Everything is loaded; ``steps`` is what the optimizer does in each step, by group."""

    def at(self, moment: str, module: str, aliases: str) -> None:
        """A moment of ``module``, as in :mod:`measure.trace.sharding.marks`; ``aliases``:
        tied parameters that it holds.
        """

    def gradient(self, parameter: TracedParameter, block: TracedBlock, *, boundary: bool) -> None:
        """A gradient is complete; ``boundary``: the optimizer steps after this backward."""

    def end_of_backward(self, *, boundary: bool) -> None:
        """The backward is over."""

    def step(self, number: int) -> None:
        """The optimizer's step, from 0."""


def apply_runtime(records: list[Record], scenario: Scenario) -> list[Record]:
    """The records of one rank, from those of the modules.

    Under ZeRO-1 and 2 it is the first or the last rank, whichever reserves more.  The last keeps the
    gradients that come first, when most activations are still there; the first has the token table, whose
    gradient is widened for its norm where the optimizer is on the host.

    Raises:
        PlannerError: a gradient whose memory was not recorded; names the parameter.
    """
    recipe = scenario.recipe
    if recipe.uses_fsdp:
        if not recipe.sharding.dtensors:
            late = LateRecords(_free_number(records))
            return _Execution(FlatRank(late, flat_settings(scenario)), late, recipe).run(records)
        stream = RankRecords(_free_number(records))
        return _Execution(FsdpRank(stream, fsdp_settings(scenario)), stream, recipe).run(records)
    settings = zero_settings(scenario)
    if settings.stage == _STAGE_3:
        stream = RankRecords(_free_number(records), one_stream=not settings.overlaps)
        second = TracedZero3(stream, reference_settings(scenario)) if recipe.has_reference_model else None
        return _Execution(TracedZero3(stream, settings), stream, recipe, second).run(records)
    runs = []
    for rank in dict.fromkeys((0, settings.world - 1)):
        stream = RankRecords(_free_number(records))
        runs.append(
            _Execution(TracedZero12(stream, replace(settings, rank=rank)), stream, recipe).run(records)
        )
    return max(runs, key=_needs_bytes)


def _free_number(records: list[Record]) -> int:
    return 1 + max(record.block.id for record in records)


def _needs_bytes(records: list[Record]) -> tuple[int, ...]:
    """Most bytes that are reserved, loading included and left out, and most that are allocated behind it."""
    phases = replay(to_events(records)).phases
    steps = [each for each in phases if each.phase not in _LOADING]
    reserved = (max(each.reserved_bytes for each in several) for several in (phases, steps))
    return *reserved, max(each.allocated_bytes for each in steps)


class _Execution:
    """``second``: the runtime of the model that a policy is compared with."""

    def __init__(
        self,
        runtime: ShardingEngine,
        stream: RankRecords,
        recipe: Recipe,
        second: TracedZero3 | None = None,
    ) -> None:
        self._runtime, self._stream, self._recipe, self._second = runtime, stream, recipe, second
        self._parameters: dict[tuple[str, str], TracedParameter] = {}
        self._handed_over: set[int] = set()
        self._loading = True
        self._steps = 0
        self._has_gradients = False
        self._accumulates = int(recipe.batch.grad_accum) > 1

    def run(self, records: list[Record]) -> list[Record]:
        for record in records:
            self._loading = self._loading and self._still_loads(record)
            if record.place.stage != "backward":
                self._step_if_due()  # the graph goes before
            parameter = parameter_of(record)
            if parameter is not None:
                self._stream.place = record.place
                if self._second is not None and record.place.micro_step == _SECOND_MODEL:
                    self._second.load(parameter, record)
                    continue
                self._parameters[parameter.key] = parameter
                self._runtime.load(parameter, record)
            elif record.block.role == MARK:
                if record.alloc:
                    self._stream.place = record.place
                    self._at_mark(record)
            else:
                self._module_record(record)
        self._step_if_due()
        return self._stream.records

    def _step_if_due(self) -> None:
        if self._has_gradients:
            self._has_gradients = False
            self._stream.place = Place("optimizer_step", 0)
            self._runtime.step(self._steps)
            self._steps += 1

    def _still_loads(self, record: Record) -> bool:
        if record.place.stage in _LOADING:
            return True
        if self._second is not None:
            self._second.fill()
            self._second.collect()
        groups = self._runtime.shard_groups()
        shards = as_shards(groups, self._runtime.updated_bytes)
        steps = record_steps(shards, self._recipe, _STEPS) if groups else []
        self._runtime.set_up(on_host(steps) if self._recipe.offloads_optimizer else steps)
        return False

    def _module_record(self, record: Record) -> None:
        if record.block.id in self._handed_over and not record.alloc:
            return  # the runtime frees it
        if record.block.parameter is not None and self._recipe.sharding.gathers_weights:
            # A module puts another tensor in the place of a parameter that was divided: Linear4bit of
            # bitsandbytes 0.50 casts its bias in the first pass.
            return
        self._stream.pass_on(record)

    def _at_mark(self, record: Record) -> None:
        moment, _, name = record.block.op.partition(" ")
        if self._second is not None and record.place.stage == "reference":
            self._second.at(moment, record.block.module, name)
            return
        boundary = not self._accumulates or record.place.micro_step % 2 == 1
        if moment == "gradient":
            parameter = self._parameters[record.block.module, name]
            self._runtime.gradient(parameter, self._handed_over_at(record), boundary=boundary)
        elif moment == "end_of_backward":
            self._runtime.end_of_backward(boundary=boundary)
            self._has_gradients = boundary
        else:
            self._runtime.at(moment, record.block.module, name)

    def _handed_over_at(self, mark: Record) -> TracedBlock:
        """The block of the gradient that has just come: the runtime's from here on."""
        block = mark.block.marked
        if block is None or block.id in self._handed_over:
            name = mark.block.op.partition(" ")[2]
            raise PlannerError(
                f"the gradient of {mark.block.module}.{name} has no memory of its own, so its sharding "
                "cannot be traced"
            )
        self._handed_over.add(block.id)
        return block
