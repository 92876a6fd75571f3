"""What layers of Megatron-Core keep, counted by hand from the code of Transformer Engine."""

from __future__ import annotations

import pytest

from planner.catalog.stacks import load_stack
from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.job import Job, job_of
from planner.program.ops.sizes import unit_values
from planner.program.recorded_part import Template
from planner.program.step import parts_of
from tests.jobs import resolved

TOKENS = 4096
JOB = {"stack": "megatron", "gpu": "h100-sxm:2", "seq": TOKENS, "method": "full"}


def layer_of(**flags: object) -> tuple[Job, Template]:
    """A layer's record, and its job."""
    job = job_of(resolved({**JOB, **flags}), Coefficients())
    return job, next(part.template for part in parts_of(job) if part.name == "layer")


def kept(job: Job, template: Template) -> float:
    """Bytes for each token of what a layer's forward pass leaves, its output apart."""
    values, alive = unit_values(job), set[int]()
    for event in template.stages["forward"]:
        (alive.add if event >= 0 else alive.discard)(event if event >= 0 else ~event)
    alive.discard(-1 if template.out_slot is None else template.out_slot)
    own = (slot for slot in alive if 0 <= slot < len(template.units))
    return sum(template.unit_bytes[slot] * values[template.units[slot]] for slot in own) / TOKENS


@pytest.mark.parametrize("parts", [1, 2])
def test_a_dense_layer_keeps_its_own_tokens_of_norms(parts: int) -> None:
    """Qwen2.5 7B: both norms keep input and output, the product of query, key and value lives through
    the value, turned query and key, attention's output, both sides of the activation; tables of positions.
    """
    hidden, heads, keys, width = 3584, 3584, 512, 18944
    # The input of the first norm is the layer before's output.
    of_norms = 3 * hidden
    of_heads = heads + 2 * keys + heads + keys + heads
    tables, rows = 4 * 128, 28 / 2  # rows: fp32, counted in 16 bits
    expected = 2 * ((of_norms + of_heads + 3 * width) / parts + tables) + 4 * rows * 2 / parts
    job, template = layer_of(model="qwen2.5-7b", tensor_parallel=parts)
    assert kept(job, template) == pytest.approx(expected, rel=0.002)


@pytest.mark.parametrize(("fp8", "out"), [("te-delayed", 1), ("te-tensorwise", 2), ("te-blockwise", 2)])
def test_a_dense_layer_in_8_bits_keeps_a_byte_of_each_input(fp8: str, out: int) -> None:
    """Both normed streams and the activation, with scales of blocks; attention's output is kept in 16 bits
    anyway, and cast again unless scaling is delayed.
    """
    hidden, heads, width = 3584, 3584, 18944
    plain, wide = layer_of(model="qwen2.5-7b")
    job, narrow = layer_of(model="qwen2.5-7b", fp8=fp8)
    scales = 33 / 32 if fp8 == "te-blockwise" else 1
    of_inputs = (2 * hidden + width) * (2 - scales) - (heads if out == 1 else 0)
    assert kept(job, narrow) == pytest.approx(kept(plain, wide) - of_inputs, rel=0.002)


def test_an_adapted_layer_keeps_no_input_of_a_frozen_matrix() -> None:
    """Without dropout: adapters read what norms and attention return, each with ranks of its own."""
    job, template = layer_of(model="qwen2.5-7b", method="lora", lora_dropout=0.0)
    full_job, full = layer_of(model="qwen2.5-7b")
    n_ranks = 4 * 8
    assert kept(job, template) == pytest.approx(kept(full_job, full) + 2 * n_ranks, rel=0.002)
    assert job.adapter_params == 28 * 8 * ((3584 + 4608) + (3584 + 3584) + (3584 + 37888) + (18944 + 3584))


def test_rows_of_experts_are_kept_sorted() -> None:
    """Qwen3 30B A3B: eight sorted rows for each token and both sides of their activation; exchanged rows and
    copies behind the experts are not kept.
    """
    hidden, width, chosen = 2048, 768, 8
    alone_job, alone = layer_of(model="qwen3-30b-a3b")
    job, template = layer_of(model="qwen3-30b-a3b", expert_parallel=2)
    assert kept(job, template) == pytest.approx(kept(alone_job, alone), rel=0.001)
    of_rows = 2 * chosen * (hidden + 3 * width)
    assert of_rows < kept(job, template) < 1.9 * of_rows
    assert job.model.expert_parts == 2
    exchanged = [op for _, op in template.ops if op == "all_to_all_single"]
    # Rows and their weights there, rows back; and the gradient of each.
    assert len(exchanged) == 6


def test_the_model_has_the_parameters_of_its_own_code() -> None:
    """Matrices are joined, none is added."""
    for model in ("qwen2.5-7b", "qwen3-30b-a3b", "llama-3.1-8b", "moonlight-16b-a3b", "deepseek-v2-lite"):
        job = job_of(resolved({**JOB, "model": model}), Coefficients())
        assert job.base_params == job.scenario.model.param_count
    assert load_stack("megatron").model_code == "megatron-core"
