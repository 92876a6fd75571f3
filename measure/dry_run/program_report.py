"""What a dry run adds to the report of a trace: how far the program came, and what was assumed."""

from __future__ import annotations

from collections.abc import Sequence

from measure.dry_run.messages import TOKENIZER
from measure.dry_run.parent import DryRun
from measure.trace.assumed import Assumed

_MOST_LINES = 12


def to_text(run: DryRun, assumed: Sequence[Assumed]) -> str:
    """Steps, and each value that nobody has, by the line that asked for it."""
    head = (
        f"The program ran {run.steps} optimizer steps in {run.micro_steps} micro-batches, without "
        "weights, data or a GPU"
    )
    if run.most_tokens[1]:
        head += f"; the largest batch had {run.most_tokens[0]:,} x {run.most_tokens[1]:,} tokens"
        if any(each.name == TOKENIZER for each in assumed):
            head += ", counted in words, as its tokenizer is not here"
    return "\n".join(["", head, *_assumed_lines(assumed)]) + "\n"


def _assumed_lines(assumed: Sequence[Assumed]) -> list[str]:
    if not assumed:
        return ["Nothing was assumed: the program asked for no value that depends on weights"]
    lines = [f"  {each.name} at {each.origin}: {each.value} ({each.note})" for each in assumed[:_MOST_LINES]]
    more = len(assumed) - _MOST_LINES
    return ["What was assumed", *lines, *([f"  and {more} more: --json lists all"] if more > 0 else [])]
