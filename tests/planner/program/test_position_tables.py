"""Tables of rotary positions in each layer: whose there are, how many rows, and how wide."""

from __future__ import annotations

from typing import Any

import pytest

from planner.program.job import Job
from planner.program.ops.sizes import unit_values
from planner.program.ops.tensors import Unit
from planner.program.position_tables import table_row_bytes, table_rows
from planner.program.step import step_of
from tests.jobs import job_by

MISTRAL_ROW = 32 * 128 * 2 * 2
"""Bytes of a position: 32 layers, 128 features of a head, cosine and sine, 16 bits."""


def job(model: str = "mistral-7b-v0.1", **flags: object) -> Job:
    """LoRA of one sample of 512 tokens."""
    given = {"model": model, "method": "lora", "gpu": "a100-80gb", "seq": 512, "batch": 1}
    return job_by({**given, "stack": "hf-trainer@4", **flags})


def held(subject: Job, *place: str) -> float:
    """Bytes of tables, or of what has another place, that a step allocates."""
    stream, values = step_of(subject), unit_values(subject)
    return sum(
        stream.unit_bytes[slot] * float(values[Unit(stream.units[slot])])
        for slot in stream.events
        if slot >= 0 and stream.place(slot)[1:] == (place or ("rotary_emb", "tables"))
    )


def test_tables_have_all_positions_that_the_model_was_made_for() -> None:
    """Mistral's 32,768 in Transformers 4.37: half a GiB in 16 bits."""
    assert held(job(load_dtype="bf16")) == 32_768 * MISTRAL_ROW == 2**29
    assert held(job(load_dtype="fp32")) == 2**30


def test_a_sample_that_is_longer_has_a_row_for_each_of_its_tokens() -> None:
    """Llama 2 was made for 4,096."""
    assert table_rows(job("llama-2-7b")) == 4_096
    assert table_rows(job("llama-2-7b", seq=5_000)) == 5_000


@pytest.mark.parametrize(
    ("model", "last_with", "first_without"),
    [
        ("llama-2-7b", "4.40.2", "4.41.2"),
        ("mistral-7b-v0.1", "4.41.2", "4.42.4"),
        ("qwen1.5-7b", "4.44.2", "4.45.2"),
        ("mixtral-8x7b", "4.47.1", "4.48.0"),
    ],
)
def test_one_architecture_after_the_other_gave_them_up(
    model: str, last_with: str, first_without: str
) -> None:
    """The versions of Transformers on both sides of it, each of which was read."""
    bytes_in = {
        each: table_row_bytes(job(model, versions=f"transformers=={each}"))
        for each in (last_with, first_without)
    }
    assert bytes_in[last_with] > bytes_in[first_without] == 0


def test_a_model_that_sees_has_the_tables_of_its_decoder() -> None:
    """LLaVA 1.5's is a Llama."""
    flags = {"stack": "hf-trainer@4", "load_dtype": "bf16"}
    assert table_row_bytes(job("llava-1.5-7b", **flags)) == table_row_bytes(job("llama-2-7b", **flags)) > 0


def test_own_code_and_positions_of_another_kind_have_none() -> None:
    """Code that comes with a checkpoint was not read; BLOOM has ALiBi."""
    assert not table_row_bytes(job("internlm2-7b"))
    assert not table_row_bytes(job("bloom-560m"))


@pytest.mark.parametrize(
    ("tokens", "rows"), [(512, 32_768), (32_768, 32_768), (32_769, 40_960), (153_977, 155_648)]
)
def test_those_of_unsloth_grow(tokens: int, rows: int) -> None:
    """From 32,768 positions on by 8,192 at a time, whatever the model was made for."""
    subject = job("llama-3.1-8b", method="qlora", stack="unsloth@2024", seq=tokens)
    assert unit_values(subject)[Unit.TABLE_ROWS] == rows
    assert held(subject) == rows * MISTRAL_ROW


@pytest.mark.parametrize(
    ("version", "model", "layers", "positions", "row_bytes"),
    [
        ("2024.6", "qwen2-7b", 28, 131_072, 128 * 2 * 2),
        ("2024.7", "mistral-nemo-12b", 40, 32_768, 128 * 2 * 2),
        ("2024.7", "gemma-2-9b", 42, 8_192, 256 * 2 * 4),
        ("2025.1.5", "phi-4-unsloth", 1, 16_384, 128 * 2 * 2),
    ],
)
def test_unsloth_has_them_by_its_version(
    version: str, model: str, layers: int, positions: int, row_bytes: int
) -> None:
    """Each of these made a reading of `unsloth_notebooks` right to 0.01 GiB, or 0.04 of Phi-4's."""
    subject = job(model, method="qlora", stack="unsloth@2024", versions=f"unsloth=={version}", gpu="t4")
    assert held(subject) == layers * positions * row_bytes


def test_what_engines_cast_is_16_bits_wide() -> None:
    """DeepSpeed and FSDP1 turn buffers to the dtype of the computation, too; DDP does not."""
    flags: dict[str, Any] = {"method": "full", "gpus": 2, "load_dtype": "fp32", "precision": "bf16-mixed"}
    assert table_row_bytes(job(**flags, sharding="zero2")) == MISTRAL_ROW
    assert table_row_bytes(job(**flags, sharding="fsdp1")) == MISTRAL_ROW
    assert table_row_bytes(job(**flags, sharding="ddp")) == 2 * MISTRAL_ROW


@pytest.mark.parametrize(
    ("stack", "version", "model", "module"),
    [
        ("hf-trainer@4", "4.44.2", "qwen2.5-0.5b", "q_proj"),
        ("hf-trainer@4", "4.45.0", "qwen2.5-0.5b", "rotary_emb"),
        ("hf-trainer@4", "4.42.4", "smollm2-360m", "q_proj"),
        ("hf-trainer@4", "4.43.4", "smollm2-360m", "rotary_emb"),
        ("hf-trainer@4", "4.47.1", "mistral-7b-v0.1", "q_proj"),
        ("hf-trainer@4", "4.48.0", "mistral-7b-v0.1", "rotary_emb"),
        ("hf-trainer@5", "5.18.0", "qwen2.5-0.5b", "rotary_emb"),
        ("hf-trainer@5", "5.19.0", "qwen2.5-0.5b", "q_proj"),
        ("unsloth", "4.48.0", "qwen2.5-0.5b", "q_proj"),
    ],
)
def test_the_first_product_is_that_of_the_angles_where_there_is_one(
    stack: str, version: str, model: str, module: str
) -> None:
    """cuBLAS's workspace comes right before it, and is between other blocks from then on.

    LLaMA-Factory 0.9.5 (Transformers 5.6.0), Qwen2.5-0.5B, full, ``adamw_bnb_8bit``, ``pure_bf16``: its own
    dry run reserves 8.76 GiB; 8.79 here, and 7.63 with the workspace behind the first layer's norm.
    TRL 0.12.1 (Transformers 4.46.3), DPO of SmolLM2 360M: its own reserves 12.193 GB, as here; 12.998 so.
    """
    stream = step_of(job(model, stack=stack, versions=f"transformers=={version}"))
    assert stream.workspace is not None
    behind = stream.events[stream.events.index(stream.workspace) + 1]
    assert stream.place(behind)[1] == module


def test_torchtune_has_tables_in_fp32() -> None:
    """One for all layers, or one in each; a number for each pair of features, or twice."""
    for kind, n_bytes in (
        ("pairs", 4),
        ("halves", 8),
        ("pairs_of_layers", 4 * 32),
        ("halves_of_layers", 8 * 32),
    ):
        switches = (f"rotary_tables={kind}", "rotary_positions=4096")
        subject = job(stack="torchtune", switches=switches)
        assert held(subject) == 4096 * 128 * n_bytes


def test_unsloth_has_one_pair_of_tables_for_all_layers() -> None:
    """For 131,072 positions and heads of 64 features in 16 bits: twice 16 MiB, as an H100 had them.
    Full fine-tuning runs Transformers' code, which has none.
    """
    assert held(job("llama-3.2-1b", stack="unsloth")) == 2 * 2**24
    assert held(job("llama-3.2-1b", stack="unsloth", method="full")) == 0


def test_recipes_of_torchtune_with_fsdp1_have_16_bit_tables() -> None:
    """They turn the whole model to bf16; on one GPU the tables stay in fp32."""
    given = {"stack": "torchtune@0.2", "switches": "rotary_tables=pairs_of_layers", "load_dtype": "bf16"}
    wide = table_row_bytes(job("llama-3-8b", **given))
    assert wide == 32 * 128 * 4
    assert table_row_bytes(job("llama-3-8b", gpu="a100-80gb:4", sharding="fsdp1", **given)) == wide // 2
