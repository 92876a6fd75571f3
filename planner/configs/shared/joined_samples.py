"""Collators that lay the samples of a micro-batch end to end, whatever their lengths."""

from __future__ import annotations

from planner.configs.said_by_file import Reading


def join_samples(reading: Reading, where: str, attention: object) -> None:
    """Attention that is not FlashAttention gets a mask of all pairs of their tokens."""
    if attention == "flash2":
        reading.remark(where, "counted as padded to the longest sample, which is more")
    else:
        reading.say("padding", "packed", where, "counted as full rows end to end, which is more")
        reading.cut_samples = "packed"
