"""``--explain``: the operators that a term is made of, equal ones of all layers together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from planner.allocator.slots import SlotEvents
from planner.domain.prediction import MemoryPrediction
from planner.domain.term import PHASE_WORDS, PHASES, TERM_NUMBERS, Phase, Term, TermName
from planner.memory.replayed import run_of
from planner.program.job import Job
from planner.program.request_stream import RequestStream
from planner.units import format_bytes

_MOST_SHARES = 6
_LAYER = re.compile(r"\blayer \d+ ?")


@dataclass(frozen=True, slots=True)
class Share:
    """One operator of one module: in ``n_layers`` layers (0: outside of them)
    ``count`` allocations of ``n_bytes`` each.
    """

    where: str
    n_layers: int
    count: int
    n_bytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes of all of them."""
        return max(self.n_layers, 1) * self.count * self.n_bytes

    def __str__(self) -> str:
        layers = f"{self.n_layers} layers x " if self.n_layers > 1 else ""
        return (
            f"{layers}{f'{self.count} x ' if self.count > 1 else ''}{self.where} {format_bytes(self.n_bytes)}"
        )


def with_shares(job: Job, memory: MemoryPrediction) -> MemoryPrediction:
    """``memory`` with the largest operators of each term of the program in ``Term.detail``.

    They are those of the fullest moment of the limiting phase, or of the first phase that has the term.
    """

    def shown(term: Term) -> Phase:
        at_peak = memory.limiting_phase in term.phases
        return memory.limiting_phase if at_peak else min(term.phases, key=PHASES.index)

    def detail(term: Term) -> str:
        if not _is_of_program(term):
            return ""
        phase = shown(term)
        said = _detail(term, shares.get(phase, {}).get(term.name, ()))
        return said if phase == memory.limiting_phase or not said else f"{said} ({PHASE_WORDS[phase]})"

    terms: dict[Phase, set[TermName]] = {}
    for term in filter(_is_of_program, memory.terms):
        terms.setdefault(shown(term), set()).add(term.name)
    shares = shares_by_phase(job, terms)

    return replace(
        memory, terms=tuple(replace(term, detail=term.detail or detail(term)) for term in memory.terms)
    )


def _is_of_program(term: Term) -> bool:
    return term.formula.startswith("planner.program.")


def _detail(term: Term, shares: Iterable[Share]) -> str:
    """``32 layers x q_proj mm 16.0 MiB; lm_head to 250.0 MiB``, the largest few,
    and what blocks have beyond requests.
    """
    ordered = sorted(shares, key=lambda share: (-share.total_bytes, share.where))
    said, more = [*map(str, ordered[:_MOST_SHARES])], len(ordered) - _MOST_SHARES
    if more > 0:
        said.append(f"and {more} smaller")
    rounding = float(term.n_bytes) - sum(share.total_bytes for share in ordered)
    if term.name == "other_temporaries" and rounding >= 1:
        said.append(f"{format_bytes(rounding)} by which blocks are larger than requests")
    return "; ".join(said)


def shares_by_phase(
    job: Job, terms: Mapping[Phase, Collection[TermName]]
) -> dict[Phase, dict[TermName, list[Share]]]:
    """Of these terms at the fullest moment of each of these phases,
    and of the fullest of those where micro-steps go through it several times.
    """
    run = run_of(job)
    most: dict[Phase, int] = {}
    fullest: dict[Phase, int] = {}
    for (_, phase), done in zip(run.stream.phases, run.done.phases, strict=True):
        if phase in terms and done.allocated_bytes > most.get(phase, -1):
            most[phase] = done.allocated_bytes
            fullest[phase] = done.peak_event
    operators = _Operators(run.stream, run.events)
    kinds = {phase: [TERM_NUMBERS[name] for name in terms[phase]] for phase in fullest}
    return {
        phase: _grouped(operators, _alive(run.stream, moment, kinds[phase]))
        for phase, moment in fullest.items()
    }


def _alive(stream: RequestStream, moment: int, kinds: Collection[int]) -> list[int]:
    """Slots of these kinds that are allocated after the event ``moment``."""
    import numpy as np

    events = np.frombuffer(stream.events, np.int64)[: moment + 1]
    alive = np.zeros(len(stream.units), bool)
    alive[events[events >= 0]] = True
    # A slot is made once.
    alive[~events[events < 0]] = False
    return [*map(int, np.flatnonzero(alive & np.isin(np.frombuffer(stream.kinds, np.uint8), [*kinds])))]


class _Operators(dict[int, tuple[TermName, str, int, str]]):
    """Term, operator, bytes and layer of each slot, worked out once: most are alive in several phases."""

    def __init__(self, stream: RequestStream, events: SlotEvents) -> None:
        self._stream, self._events = stream, events
        self._modules: dict[str, tuple[str, str]] = {}

    def __missing__(self, slot: int) -> tuple[TermName, str, int, str]:
        part, module, op = self._stream.place(slot)
        (_, of_part), (name, of_module) = self._without_layer(part), self._without_layer(module)
        where = f"{name} {op}".strip()
        found = self._stream.term(slot), where, self._events.sizes[slot], of_part or of_module
        self[slot] = found
        return found

    def _without_layer(self, module: str) -> tuple[str, str]:
        """A name without its layer, and the layer."""
        if module not in self._modules:
            layer = _LAYER.search(module)
            self._modules[module] = _LAYER.sub("", module), layer.group().strip() if layer else ""
        return self._modules[module]


def _grouped(operators: _Operators, live: Iterable[int]) -> dict[TermName, list[Share]]:
    """Equal operators together: how many in each layer, and in how many layers as many."""
    counts = Counter(map(operators.__getitem__, live))
    layers: Counter[tuple[TermName, str, int, int, bool]] = Counter()
    for (term, where, n_bytes, number), count in counts.items():
        layers[term, where, n_bytes, count, bool(number)] += 1
    found: dict[TermName, list[Share]] = {}
    for (term, where, n_bytes, count, in_layer), n_layers in layers.items():
        found.setdefault(term, []).append(Share(where, n_layers if in_layer else 0, count, n_bytes))
    return found
