"""Runs the cases of a campaign one after the other, records each at once, and stops when the time is over."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from measure.campaign.file import Campaign, PlannedCase
from measure.campaign.order import in_teaching_order
from measure.run.assemble import MeasuredRecord
from measure.run.cases.case import CPU, case_key, describe
from measure.run.launcher import Launcher
from measure.run.readings.environment import setup_key
from measure.run.readings.machine import Machine
from measure.run.single import Prepared, prepare, run_prepared
from measure.run.store import Store, left_out_text, recorded_counts
from planner.domain.run_record import Outcome
from planner.domain.scenario import Scenario
from planner.errors import PlannerError

# A case is not begun when less than this is left: it could not even start.
_SHORTEST_CASE_S = 10.0
_MARGIN = 1.2
# So many first cases that end in the same way would be followed by all others.
_SAME_CRASHES = 5


@dataclass(frozen=True, slots=True)
class Queued:
    """A case that this machine can run, ready to be started."""

    label: str
    prepared: Prepared


@dataclass(frozen=True, slots=True)
class RefusedCase:
    """A case that cannot run here, and why."""

    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class Agenda:
    """What is to be done: the cases left in their order, how many are recorded already,
    and those that cannot run here.

    ``left_out``: that lines of the records could not be read, so that what they recorded is measured again.
    """

    queue: tuple[Queued, ...]
    recorded: int
    refused: tuple[RefusedCase, ...]
    left_out: str | None = None


@dataclass(slots=True)
class Tally:
    """What came of a campaign so far."""

    measured: list[tuple[str, MeasuredRecord]] = field(default_factory=list)
    warm_up_s: float = 0.0
    left: int = 0
    stopped: bool = False

    @property
    def same_crash(self) -> str | None:
        """What every case so far crashed with, where there are enough of them: the machine's fault,
        not that of a case.
        """
        messages = {
            measured.attachments["raw"]["error"]
            for _, measured in self.measured
            if measured.record.outcome == "crash"
        }
        crashed_alike = len(messages) == 1 and all(
            each.record.outcome == "crash" for _, each in self.measured
        )
        return next(iter(messages)) if crashed_alike and len(self.measured) >= _SAME_CRASHES else None


class Progress(Protocol):
    """Who shows how far a campaign is."""

    def begin(self, label: str, eta_s: float | None) -> None:
        """A case begins; ``eta_s`` is about how long the rest takes, ``None`` before the first."""

    def end(self, label: str, measured: MeasuredRecord) -> None:
        """A case is over and recorded."""


def plan_agenda(
    campaign: Campaign, machine: Machine, store: Store, *, force: bool, retry: Collection[Outcome] = ()
) -> Agenda:
    """Place every case on this machine, in teaching order,
    less those that are recorded on such a machine with this software.

    Records with an outcome of ``retry`` do not count as recorded.

    Raises:
        InputFileError: a record file of the folder cannot be read.
    """
    records = store.read()
    counts: Counter[tuple[str, str]] = recorded_counts(records, retry) if records is not None else Counter()
    setup = setup_key(machine.environment)
    queue, refused, recorded = [], [], 0
    for planned in in_teaching_order(campaign.cases):
        try:
            prepared = prepare(planned.values, planned.options, machine, force=force)
        except PlannerError as error:
            refused.append(RefusedCase(_plain_label(planned), str(error)))
            continue
        key = (case_key(prepared.case, prepared.scenario), setup)
        if counts[key] > 0:
            counts[key] -= 1
            recorded += 1
            continue
        queue.append(Queued(describe(prepared.scenario, planned.options), prepared))
    return Agenda(tuple(queue), recorded, tuple(refused), left_out_text(records))


def run_agenda(
    agenda: Agenda, machine: Machine, store: Store, progress: Progress, budget_s: float | None
) -> Tally:
    """Run what is on the agenda; each record is on the disk before the next case begins.

    Raises:
        PlannerError: nothing can be run at all, or a record cannot be written.
    """
    end_s = None if budget_s is None else time.monotonic() + budget_s
    tally = Tally(left=len(agenda.queue))
    durations_s: list[float] = []
    with Launcher(machine.nvml) as launcher:
        if any(_needs_parent(queued.prepared.scenario) for queued in agenda.queue):
            # Before the first case, whose duration stands for those to come.
            tally.warm_up_s = launcher.warm_up()
        for queued in agenda.queue:
            left_s = None if end_s is None else end_s - time.monotonic()
            if left_s is not None and left_s < _least_time_s(durations_s):
                tally.stopped = True
                break
            progress.begin(queued.label, statistics.mean(durations_s) * tally.left if durations_s else None)
            start_s = time.monotonic()
            measured = run_prepared(queued.prepared, machine, launcher, end_s)
            if _ran_out_of_budget(measured, end_s):
                tally.stopped = True
                break
            store.add(measured)
            durations_s.append(time.monotonic() - start_s)
            tally.measured.append((queued.label, measured))
            tally.left -= 1
            progress.end(queued.label, measured)
            if tally.same_crash is not None:
                break
    return tally


def _needs_parent(scenario: Scenario) -> bool:
    """Whether the warm parent starts the case or is asked for the card;
    ranks on a CPU have a launcher of their own.
    """
    return not scenario.recipe.sharding.communicates or scenario.hardware.gpu.id != CPU


def _least_time_s(durations_s: Sequence[float]) -> float:
    return _MARGIN * statistics.median(durations_s) if durations_s else _SHORTEST_CASE_S


def _ran_out_of_budget(measured: MeasuredRecord, end_s: float | None) -> bool:
    """Whether the campaign's own end killed the case, which says nothing about the case."""
    return measured.record.outcome == "timeout" and end_s is not None and time.monotonic() >= end_s


def _plain_label(planned: PlannedCase) -> str:
    """The case by what the file says about it, in the words of the file where they have no short form."""
    values = dict(planned.values)
    model = Path(str(values.pop("model")))
    name = model.parent.name if model.name == "config.json" else str(model)
    text = f"{name} {values.pop('method')} seq {values.pop('seq')} batch {values.pop('batch', 1)}"
    more = [f"{key} {value}" for key, value in values.items()]
    return ", ".join(
        [text, *more, *([planned.options.workload] if planned.options.workload == "loop" else [])]
    )
