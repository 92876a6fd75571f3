"""Recorded allocator histories, mutated: ``measure replay`` replays or refuses."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

from hostile.harness import assert_sound, examples
from hostile.mutations import DEEP, Raw, Table, damaged, encoded, mutated
from hostile.seeds import history_lines, json_lines
from hypothesis import example, given
from hypothesis import strategies as st

from planner.words import words

KEYS = words("schema device allocator_settings phase_marks PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF")
FLAGS = ((), ("--json",), ("--fits", "10MiB"), ("--fits", "16TiB", "--json"))


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    """The bytes of a history, damaged inside or outside of the compression."""
    packed = gzip.compress(
        draw(damaged(encoded(json_lines(draw(mutated(history_lines(), KEYS)))))), compresslevel=1, mtime=0
    )
    return draw(damaged(packed)) if draw(st.booleans()) else packed


@examples(50)
@given(contents(), st.sampled_from(FLAGS))
@example(gzip.compress(encoded(json_lines([Table(history_lines()[0][:3]), *history_lines()[1:]]))), ())
@example(gzip.compress(encoded(json_lines([*history_lines(), Raw('{"a":' * DEEP)]))), ())
def test_a_mutated_history_is_replayed_or_refused(content: bytes, flags: tuple[str, ...]) -> None:
    """Whatever a history says, there is a replay or a sentence."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.jsonl.gz"
        file.write_bytes(content)
        assert_sound("measure", "replay", str(file), *flags, files=[file])
