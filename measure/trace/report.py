"""What a trace says, for people: the verdict for a card, peaks by phase, terms at the peak, where it is,
and unused memory.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping

from measure.trace.assumed import Assumed
from measure.trace.host_records import NO_HOST_MEMORY, HostMemory
from planner.allocator.documents.summary import PhaseSummary, Summary
from planner.allocator.documents.timeline import Moment
from planner.allocator.replay import ReplayResult
from planner.domain.term import PHASE_WORDS, in_words
from planner.units import GIB, format_bytes, format_gib

_PHASE_WIDTH = max(map(len, PHASE_WORDS.values()))
_PHASE_HEAD = f"{'phase':<{_PHASE_WIDTH}}{'allocated':>11}{'reserved':>11}{'unused':>9}  most allocated at"


def to_text(summary: Summary, host: HostMemory = NO_HOST_MEMORY) -> str:
    """The summary for people, in GiB (powers of 2)."""
    peaks = (
        ("Allocated", summary.allocated_peak_bytes, summary.peak),
        ("Reserved", summary.reserved_peak_bytes, summary.reserved_peak),
    )
    lines = [] if summary.verdict is None else [verdict_sentence(summary.verdict, summary.otherwise)]
    lines += [_expandable_sentence(summary.expandable)] if summary.expandable is not None else []
    lines += [
        *(
            f"{level} peak {format_gib(size)} in {in_words(moment.phase)},\n  at {_place(moment)}"
            for level, size, moment in peaks
        ),
        "",
        "Peak of each phase in GiB; unused: reserved less allocated",
        _PHASE_HEAD,
        *(_phase_line(each) for each in summary.phases),
        "",
        f"Terms at the allocated peak ({in_words(summary.peak.phase)})",
        *(f"  {in_words(term):<28}{format_bytes(size):>12}" for term, size in summary.peak.terms.items()),
    ]
    if host.holdings:
        lines += ["", f"Paged states in host memory: {format_gib(host.per_process_bytes)}"]
    return "\n".join(lines) + "\n"


def wrapped(text: str, width: int) -> str:
    """``text`` in lines of so many columns where words let it: what goes on is indented by two more."""
    lines = []
    for line in text.split("\n"):
        deeper = " " * (len(line) - len(line.lstrip()) + 2)
        whole = textwrap.wrap(
            line, width, subsequent_indent=deeper, break_long_words=False, break_on_hyphens=False
        )
        lines += whole or [""]
    return "\n".join(lines)


def other_cards(summaries: Mapping[int, Summary], fullest: int) -> tuple[Assumed, ...]:
    """What the cards take on which one process trains beside the one that the answer is about."""
    return tuple(
        Assumed(
            f"cuda:{number}",
            f"{format_bytes(each.allocated_peak_bytes)} allocated, "
            f"{format_bytes(each.reserved_peak_bytes)} reserved at most",
            "one process on several cards",
            f"the answer is that of cuda:{fullest}",
        )
        for number, each in summaries.items()
        if number != fullest
    )


def verdict_sentence(verdict: ReplayResult, otherwise: ReplayResult | None = None) -> str:
    """The verdict in one sentence; ``otherwise``: a replay with less room that says otherwise."""
    size = format_gib(verdict.limit_bytes or 0)
    failed = verdict.out_of_memory
    releases = f"gave its cache back {verdict.n_retries} time{'s' if verdict.n_retries > 1 else ''}"
    if otherwise is not None:
        less = format_gib(otherwise.limit_bytes or 0)
        if failed is None:
            return (
                f"UNCERTAIN: with {size} for torch's allocator it goes on, with {less} it does not; "
                "what the CUDA context leaves lies between"
            )
        return (
            f"UNCERTAIN: with {size} for torch's allocator it fails in {in_words(failed.phase)} at "
            f"{failed.op}, with {less} it goes on; where free blocks lie decides"
        )
    if failed is not None:
        return (
            f"DOES NOT FIT in {size}: out of memory in {in_words(failed.phase)} at {failed.op} "
            f"({failed.module or 'no module'}), which asked for {format_bytes(failed.requested_bytes)} "
            f"with {format_gib(failed.allocated_bytes)} allocated and {format_gib(failed.reserved_bytes)} "
            f"reserved, after the allocator {releases}"
        )
    if verdict.n_retries:
        return (
            f"FITS in {size} after the allocator {releases} and went on, which costs time; "
            "a step after those that were traced may find no room"
        )
    return (
        f"FITS in {size}: reserved peak {format_gib(verdict.peak_reserved_bytes)}, without giving cached "
        "blocks back"
    )


def _expandable_sentence(other: ReplayResult) -> str:
    """What expandable segments would change about a card that is too small."""
    if other.out_of_memory is not None:
        return "With expandable segments it does not fit either"
    releases = ", after giving its cache back" if other.n_retries else ""
    return (
        "With expandable_segments:True it fits: reserved peak "
        f"{format_gib(other.peak_reserved_bytes)}{releases}"
    )


def _phase_line(each: PhaseSummary) -> str:
    peaks, moment = each.peaks, each.at_peak
    sizes = f"{peaks.allocated_bytes / GIB:>11.2f}{peaks.reserved_bytes / GIB:>11.2f}"
    sizes += f"{moment.unused_bytes / GIB:>9.2f}"
    return f"{in_words(peaks.phase):<{_PHASE_WIDTH}}{sizes}  {_place(moment)}"


def _place(moment: Moment) -> str:
    """Operator and module; what wraps the model as a whole is no part of a module's name: its own class,
    PEFT's, and an engine's.
    """
    module = re.sub(r"^(module\.)?(base_model\.model\.)?(model\.)?(?=layers\.)", "", moment.module)
    return f"{moment.op.removeprefix('aten.') or 'no operator'} ({module or 'no module'})"
