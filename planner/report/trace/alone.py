"""The dry run of a model that no program describes: the answer is what its own modules allocate."""

from __future__ import annotations

from planner.allocator.documents.trace_document import TraceDocument
from planner.domain.term import in_words
from planner.errors import ExitCode
from planner.report.render.layout import Column, Grid, Note, Row, Section, Tone
from planner.report.render.numbers import gib

_HEADLINES: dict[ExitCode, tuple[str, Tone]] = {
    ExitCode.FITS: ("FITS", "good"),
    ExitCode.UNCERTAIN: ("UNCERTAIN", "warn"),
    ExitCode.GPU_MEMORY_SHORT: ("DOES NOT FIT", "bad"),
}


def alone_sections(
    traced: TraceDocument, architecture: str, limit_bytes: int, verdict: ExitCode
) -> list[Section]:
    """Verdict, phases and terms for people; ``limit_bytes``: what the card makes visible."""
    word, tone = _HEADLINES[verdict]
    notes = [
        Note(
            f"{word}: torch reserves {gib(traced.reserved_peak_bytes)} of {gib(limit_bytes)} GiB per GPU, "
            "where it has room",
            tone,
        ),
        Note(
            f"No program describes '{architecture}', so its own modules were run on fake tensors: "
            "no step time, no interval."
        ),
    ]
    if verdict == ExitCode.UNCERTAIN:
        notes.append(Note("Whether the CUDA context still fits beside it is not known.", "warn"))
    phases = Grid(
        (Column("phase"), Column("allocated", "right"), Column("reserved", "right")),
        tuple(
            Row((in_words(each.phase), gib(each.allocated_bytes), gib(each.reserved_bytes)))
            for each in traced.phases
        ),
    )
    terms = Grid(
        (Column("term"), Column("GiB", "right")),
        tuple(Row((in_words(term.name), gib(term.bytes))) for term in traced.peak.terms),
    )
    peak = traced.peak
    return [
        Section("", tuple(notes)),
        Section("Peak of each phase in GiB (2^30 bytes)", (phases,)),
        Section(
            f"Terms at the peak, in {in_words(peak.phase)} at {peak.operator} ({peak.module or 'no module'})",
            (terms,),
        ),
    ]
