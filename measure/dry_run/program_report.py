"""What a dry run adds to the report of a trace: how far the program came, and what was assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from measure.dry_run.messages import TOKENIZER
from measure.dry_run.parent import DryRun
from measure.trace.assumed import Assumed
from planner.allocator.documents.summary import Summary
from planner.units import format_bytes

_MOST_LINES = 12


def to_text(run: DryRun) -> str:
    """Steps, and each value that nobody has, by the line that asked for it."""
    head = (
        f"The program ran {run.steps} optimizer steps in {run.micro_steps} micro-batches, without "
        "weights, data or a GPU"
    )
    if run.most_tokens[1]:
        head += f"; the largest batch had {run.most_tokens[0]:,} x {run.most_tokens[1]:,} tokens"
        if any(each.name == TOKENIZER for each in run.assumed):
            head += ", counted in words, as its tokenizer is not here"
    return "\n".join(["", head, *_assumed_lines(run.assumed)]) + "\n"


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


def _assumed_lines(assumed: Sequence[Assumed]) -> list[str]:
    if not assumed:
        return ["Nothing was assumed: the program asked for no value that depends on weights"]
    lines = [f"  {each.name} at {each.origin}: {each.value} ({each.note})" for each in assumed[:_MOST_LINES]]
    more = len(assumed) - _MOST_LINES
    return ["What was assumed", *lines, *([f"  and {more} more: --json lists all"] if more > 0 else [])]
