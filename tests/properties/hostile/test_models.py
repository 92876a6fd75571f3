"""``config.json`` of every kind of architecture, mutated: the model is counted or refused."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hostile.harness import assert_sound, examples
from hostile.mutations import Node, damaged, encoded, mutated, to_json
from hostile.seeds import MODELS, model
from hypothesis import given
from hypothesis import strategies as st

JOB = ("--gpu", "a100-80-sxm", "--seq", "512", "--model", "{file}")
COMMANDS = (
    (*JOB, "--method", "lora", "--details"),
    (*JOB, "--method", "full", "--json", "--force"),
    (*JOB, "--method", "qlora", "--explain"),
    (
        *JOB,
        "--method",
        "full",
        "--gpus",
        "8",
        "--sharding",
        "zero3",
        "--offload",
        "optimizer+params",
        "--format",
        "markdown",
    ),
    ("search", *JOB),
    ("search", *JOB, "--method", "lora", "--solve", "batch", "--json"),
)


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    """The bytes of a ``config.json``, with names of fields of all architectures."""
    seed: Node = model(draw(st.sampled_from(MODELS)))
    other: Node = model(draw(st.sampled_from(MODELS)))
    return draw(damaged(encoded(to_json(draw(mutated(seed, [key for key, _ in other]))))))


@examples(12)
@given(contents(), st.sampled_from(COMMANDS))
def test_a_mutated_model_is_counted_or_refused(content: bytes, command: tuple[str, ...]) -> None:
    """Whatever a model's config says, there is an answer or a sentence."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        file.write_bytes(content)
        assert_sound("plan", *(word.format(file=file) for word in command), files=[file])
