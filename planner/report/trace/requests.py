"""The requests of the step program and of a trace, side by side.

A request is one allocation, with the sizes of what is freed before the next one; the order of those frees
does not matter.  Left out on both sides is what the program does not count: requests below 2 KiB, tensors of
one number for each token, and tables of rotary positions that a pass makes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from planner.allocator.events import AllocEvent
from planner.domain.scenario import Scenario
from planner.domain.term import PHASES
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.replayed import run_of
from planner.program.job import Job, job_of
from planner.program.ops.sizes import unit_values
from planner.program.request_stream import RequestStream

SMALLEST_BYTES = 2048
_LOADING = {"load", "adapters"}


@dataclass(slots=True)
class Request:
    """One allocation; ``freed``: sizes of what is freed before the next one.
    ``part`` is that of the program.
    """

    n_bytes: int
    phase: str
    part: str
    module: str
    op: str
    freed: list[int] = field(default_factory=list)

    @property
    def key(self) -> tuple[int, ...]:
        """What is compared."""
        return self.n_bytes, *sorted(self.freed)

    def __str__(self) -> str:
        """One line."""
        where = " ".join(filter(None, (self.phase, self.part, self.module, self.op)))
        return f"{where}: {self.n_bytes} bytes, then frees {sorted(self.freed)}"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first pair of requests that is not equal; ``None`` where one side has ended.
    ``number`` counts from 1.
    """

    number: int
    program: Request | None
    trace: Request | None


def of_trace(
    events: Iterable[AllocEvent], ignored: Collection[int], phases: Collection[str] = ()
) -> list[Request]:
    """Requests of a trace in ``phases``; in all where none is named."""
    found, live = _Requests(ignored), dict[int, int]()
    for event in events:
        counts = not phases or event.phase in phases
        if event.action == "alloc":
            live[event.block] = event.n_bytes
            if counts:
                found.allocate(Request(event.n_bytes, event.phase, "", event.module, event.op))
        elif event.block in live:
            # What another stream still uses is let go of once, when the program does.
            n_bytes = live.pop(event.block)
            if counts:
                found.free(n_bytes, event.phase)
    return found.requests


def of_program(job: Job, ignored: Collection[int], phases: Collection[str] = ()) -> list[Request]:
    """Requests of the step program in ``phases``; in all where none is named."""
    stream, phase = run_of(job).stream, ""
    sizes = stream.sizes({unit: float(count) for unit, count in unit_values(job).items()})
    begins: dict[int, str] = dict(stream.phases)
    found = _Requests(ignored)
    for index, event in enumerate(stream.events[: _end_of_micro_steps(stream)]):
        phase = begins.get(index, phase)
        if phases and phase not in phases:
            continue
        if event >= 0:
            found.allocate(Request(sizes[event], phase, *stream.place(event)))
        else:
            found.free(sizes[~event], phase)
    return found.requests


def _end_of_micro_steps(stream: RequestStream) -> int:
    """Where the last micro-step ends: a trace ends there, while the program steps and evaluates once more."""
    last = max(index for index, (_, phase) in enumerate(stream.phases) if phase == "backward_2")
    return stream.phases[last + 1][0] if last + 1 < len(stream.phases) else len(stream.events)


class _Requests:
    """Requests so far; the first one of them stands for what is freed before any."""

    def __init__(self, ignored: Collection[int]) -> None:
        self.ignored = ignored
        self.requests: list[Request] = []

    def allocate(self, request: Request) -> None:
        if self._counts(request.n_bytes):
            self.requests.append(request)

    def free(self, n_bytes: int, phase: str) -> None:
        if not self._counts(n_bytes):
            return
        if not self.requests:
            self.requests.append(Request(0, phase, "", "", "before all requests"))
        self.requests[-1].freed.append(n_bytes)

    def _counts(self, n_bytes: int) -> bool:
        return n_bytes >= SMALLEST_BYTES and n_bytes not in self.ignored


def ignored_sizes(scenario: Scenario) -> set[int]:
    """Sizes of one number for each token or position, which the program leaves out."""
    batch = scenario.recipe.batch
    tokens, length = int(batch.rows * batch.seq_len), int(batch.seq_len)
    return {
        n_bytes * count for n_bytes in (1, 2, 4, 8) for count in (tokens, length, tokens + int(batch.rows))
    }


def difference_of(scenario: Scenario, events: Iterable[AllocEvent]) -> Difference | None:
    """Where the program of a job and its trace part, from the first forward pass on;
    loading asks in an order of its own.
    """
    ignored, phases = ignored_sizes(scenario), set(PHASES) - _LOADING
    return first_difference(
        of_program(job_of(scenario, Coefficients()), ignored, phases), of_trace(events, ignored, phases)
    )


def first_difference(program: Sequence[Request], trace: Sequence[Request]) -> Difference | None:
    """Where both part; ``None`` where they are equal."""
    for index, (one, other) in enumerate(zip(program, trace, strict=False)):
        if one.key != other.key:
            return Difference(index + 1, one, other)
    end = min(len(program), len(trace))
    if len(program) == len(trace):
        return None
    return Difference(end + 1, *(side[end] if end < len(side) else None for side in (program, trace)))


def differences(program: Sequence[Request], trace: Sequence[Request]) -> list[str]:
    """Every run of requests that differ, each with the request before it."""
    keys = [[each.key for each in side] for side in (program, trace)]
    lines = []
    for kind, one, two, three, four in SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_opcodes():
        if kind != "equal":
            lines.append(f"--- at {one} of the program, {three} of the trace")
            lines += [f"  program {each}" for each in program[max(one - 1, 0) : two]]
            lines += [f"  trace   {each}" for each in trace[max(three - 1, 0) : four]]
    return lines
