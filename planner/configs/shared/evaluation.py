"""Batches that are evaluated between steps, with a size and a length of their own."""

from __future__ import annotations

from planner.configs.said_by_file import Reading


def say_evaluation(reading: Reading, size: int, where: str, length: int | None = None) -> None:
    """Enter a batch of so many samples of this ``length``, else of that of training.

    It is counted in samples of training's length: as many as hold its tokens, whose attention holds no more.
    """
    trained = reading.value("seq")
    if length is None or trained is None or length == trained:
        reading.say("eval_batch", size, where)
        return
    note = f"{size} samples of {length:,} tokens, counted as so many of {trained:,}"
    reading.say("eval_batch", -(-size * length // trained), where, note)
