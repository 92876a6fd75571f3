"""The prediction and the trace side by side:
one row for each phase and for each term of the list that both share.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.allocator.documents.trace_document import TraceDocument
from planner.domain.prediction import MemoryPrediction, PhasePeak, Prediction
from planner.domain.term import ALLOCATED_TERM_ORDER, in_words
from planner.report.render.layout import Block, Column, Grid, Note, Row, Section
from planner.report.render.numbers import gib
from planner.report.trace.requests import Difference, Request
from planner.report.trace.updates import UPDATE, Updates
from planner.units import GIB

# What every process holds, and files that are mapped: no allocation of a training step.
_UNTRACED_HOST_TERMS = frozenset({"process", "saved_copy", "loaded_weights", "mapped_checkpoint"})
_LEFT_OUT = "Left out: requests below 2 KiB, and tensors of one number for each token."
_AMOUNTS = (
    Column("plan", "right"),
    Column("trace", "right"),
    Column("difference", "right"),
    Column("of peak", "right"),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """One amount in bytes as both instruments give it.  ``peak_bytes`` is the trace's peak,
    which differences are measured by.
    """

    name: str
    plan_bytes: int
    trace_bytes: int
    peak_bytes: int

    @property
    def difference_bytes(self) -> int:
        """Plan less trace."""
        return self.plan_bytes - self.trace_bytes

    @property
    def difference_of_peak(self) -> float:
        """The difference as a fraction of the trace's peak."""
        return self.difference_bytes / self.peak_bytes


@dataclass(frozen=True, slots=True)
class OtherVersion:
    """A package whose code the trace runs, in another version than the one that ``plan`` answers for."""

    package: str
    plan: str
    trace: str


@dataclass(frozen=True, slots=True)
class PlanBesideTrace:
    """Both instruments' answers to one scenario; ``phase`` is the one in which the trace allocated most.

    ``difference``: the first request in which they part; ``None`` where all are equal.  ``versions``:
    packages of which both have another one.
    """

    phase: str
    operator: str
    module: str
    peaks: tuple[Pair, ...]
    allocated: tuple[Pair, ...]
    reserved: tuple[Pair, ...]
    terms: tuple[Pair, ...]
    host: tuple[Pair, ...] = ()
    difference: Difference | None = None
    versions: tuple[OtherVersion, ...] = ()


def put_beside(
    prediction: Prediction,
    traced: TraceDocument,
    difference: Difference | None = None,
    versions: tuple[OtherVersion, ...] = (),
    updates: Updates | None = None,
) -> PlanBesideTrace:
    """Line up what both say: peaks, allocated and reserved by phase,
    and the terms in the phase of the trace's peak.  ``updates``: those that the trace has.
    """
    memory = prediction.memory
    highest, most_reserved = traced.allocated_peak_bytes, traced.reserved_peak_bytes
    planned: dict[str, PhasePeak | Updates] = {each.phase: each for each in memory.phases}
    if updates is not None:
        planned[UPDATE] = updates
    pairs = [(each, planned[each.phase]) for each in traced.phases]
    return PlanBesideTrace(
        phase=traced.peak.phase,
        operator=traced.peak.operator,
        module=traced.peak.module,
        peaks=(
            Pair("allocated", round(float(memory.allocated_peak_bytes)), highest, highest),
            Pair("reserved", round(float(memory.reserved_peak_bytes)), most_reserved, most_reserved),
        ),
        allocated=tuple(
            Pair(t.phase, round(float(p.allocated_bytes)), t.allocated_bytes, highest) for t, p in pairs
        ),
        reserved=tuple(
            Pair(t.phase, round(float(p.reserved_bytes)), t.reserved_bytes, most_reserved) for t, p in pairs
        ),
        terms=_terms(memory, traced),
        host=_host(prediction, traced),
        difference=difference,
        versions=versions,
    )


def _host(prediction: Prediction, traced: TraceDocument) -> tuple[Pair, ...]:
    """What paged states take in host memory: each term of one process, all of them, and those of a node;
    nothing where the trace has none, which sees no offload.

    Differences are measured by the larger of both sums, because either can be nothing.
    """
    if not traced.host.terms:
        return ()
    planned = {
        each.name: round(float(each.n_bytes))
        for each in prediction.host.terms
        if each.name not in _UNTRACED_HOST_TERMS
    }
    found: dict[str, int] = {}
    for term in traced.host.terms:
        found[term.name] = found.get(term.name, 0) + term.bytes
    names = [name for name in {**planned, **found} if planned.get(name, 0) or found.get(name, 0)]
    sums = (sum(planned.values()), sum(found.values()))
    scale, processes = max(sums), traced.host.processes_per_node
    pairs = [Pair(name, planned.get(name, 0), found.get(name, 0), scale) for name in names]
    whole = [
        Pair("per process", *sums, scale),
        Pair("per node", sums[0] * processes, sums[1] * processes, scale * processes),
    ]
    return tuple(pairs + whole)


def _terms(memory: MemoryPrediction, traced: TraceDocument) -> tuple[Pair, ...]:
    phase = traced.peak.phase
    # The moment of the phase's own peak, which a phase before it can have left behind.
    at_peak = next(
        each.at_peak for each in traced.phases if each.allocated_bytes == traced.allocated_peak_bytes
    )
    found = {term.name: term.bytes for term in at_peak.terms}
    pairs = []
    for name in ALLOCATED_TERM_ORDER:
        planned = sum(
            float(term.n_bytes) for term in memory.terms if term.name == name and phase in term.phases
        )
        traced_bytes = found.get(name, 0)  # type: ignore[call-overload]
        pair = Pair(name, round(planned), traced_bytes, traced.allocated_peak_bytes)
        if pair.plan_bytes or pair.trace_bytes:
            pairs.append(pair)
    return tuple(pairs)


def beside_sections(beside: PlanBesideTrace) -> list[Section]:
    """Tables for people."""
    where = f"{beside.operator or 'no operator'} ({beside.module or 'no module'})"
    note = Note(
        "Difference: plan less trace.  Of peak: of the trace's peak.  The trace pads rows, with much room.",
        "dim",
    )
    notes = (note, *_versions(beside.versions))
    phases: list[Block] = []
    for title, pairs in (("allocated", beside.allocated), ("reserved", beside.reserved)):
        phases += [_grid(title, pairs), Note("")]
    sections = [
        Section("Plan and trace in GiB (2^30 bytes)", (_grid("peak", beside.peaks), *notes)),
        Section("By phase", tuple(phases[:-1])),
        Section(
            f"Terms in {beside.phase}, where the trace has its peak, at {where}",
            (_grid("term", beside.terms),),
        ),
    ]
    if beside.host:
        aside = Note(
            "Of peak: of the larger sum.  Without interpreter, libraries and checkpoint files, which "
            "are not traced.",
            "dim",
        )
        sections.append(
            Section("Host memory of one process while it trains", (_grid("host term", beside.host), aside))
        )
    if beside.difference:
        title = f"The first request that differs, number {beside.difference.number:,} after loading"
        sections.append(Section(title, (_requests(beside.difference), Note(_LEFT_OUT, "dim"))))
    return sections


def _versions(several: tuple[OtherVersion, ...]) -> tuple[Note, ...]:
    """What part of a difference other versions may be, and how to compare like with like."""
    if not several:
        return ()
    said = ", ".join(f"{each.package} {each.plan} and {each.trace}" for each in several)
    flag = ",".join(f"{each.package}=={each.trace}" for each in several)
    return (Note(f"Versions of plan and trace differ: {said}.  The same for both: --versions {flag}", "dim"),)


def _requests(difference: Difference) -> Grid:
    """One row for each side; a side that has ended has none."""
    sides = (("plan", difference.program), ("trace", difference.trace))
    rows = tuple(
        Row(
            (
                name,
                each.phase,
                f"{each.part} {each.module}".strip(),
                each.op,
                f"{each.n_bytes:,}",
                _freed(each),
            )
        )
        for name, each in sides
        if each is not None
    )
    columns = (Column("bytes", "right"), Column("then frees", "right"))
    return Grid((*map(Column, ("side", "phase", "part and module", "operator")), *columns), rows)


def _freed(request: Request) -> str:
    return ", ".join(f"{n_bytes:,}" for n_bytes in sorted(request.freed, reverse=True)) or "nothing"


def _grid(title: str, pairs: tuple[Pair, ...]) -> Grid:
    rows = [
        Row(
            (
                in_words(pair.name),
                gib(pair.plan_bytes),
                gib(pair.trace_bytes),
                f"{pair.difference_bytes / GIB:+.2f}",
                f"{100 * pair.difference_of_peak:+.1f} %",
            )
        )
        for pair in pairs
    ]
    return Grid((Column(title), *_AMOUNTS), tuple(rows))
