"""Parameters one by one, by hand for Qwen2.5-7B, and beside what the program loads."""

from __future__ import annotations

from functools import partial

import pytest

from planner.domain.term import TermName
from planner.program.job import Job
from planner.program.ops.sizes import unit_values
from planner.program.ops.tensors import Unit
from planner.program.parameters import model_weights
from planner.program.step import step_of
from tests.jobs import job_by

# Width 3,584, keys and values 512 wide, feed-forward 18,944, 28 layers, 152,064 tokens; biases on q, k and v.
LAYERS, TABLE = 28, 152_064 * 3_584
MATRICES = LAYERS * (2 * 3_584 * 3_584 + 2 * 3_584 * 512 + 3 * 3_584 * 18_944)
FLOATS = LAYERS * ((3_584 + 512 + 512) + 2 * 3_584) + 3_584
# In and out features of q, k, v, o, gate, up and down, at rank 8.
ADAPTERS = LAYERS * 8 * (2 * (3_584 + 3_584) + 2 * (3_584 + 512) + 3 * (3_584 + 18_944))


job = partial(
    job_by,
    (
        "--model qwen2.5-7b --gpu a100-80gb --seq 1024 --batch 1 --stack hf-trainer@5 --method lora "
        "--load-dtype bf16 --lora-rank 8 --lora-targets all-linear"
    ),
)
"""Qwen2.5-7B with adapters, on one card unless told otherwise."""


def stored_bytes(subject: Job) -> float:
    """Bytes of all parameters as they are stored."""
    return sum(each.count * float(subject.elements(each)) * each.element_bytes for each in subject.parameters)


def standing(subject: Job, *terms: TermName) -> float:
    """Bytes of terms that are there when the step ends."""
    stream, values = step_of(subject), unit_values(subject)
    slots = (slot for slot in stream.state_slots() if stream.term(slot) in terms)
    return float(sum(stream.unit_bytes[slot] * values[Unit(stream.units[slot])] for slot in slots))


@pytest.mark.parametrize(
    ("method", "matrix_bytes", "scales"),
    [
        ("lora", 2, 0),
        ("qlora", 1 / 2, MATRICES * (1 / 64 + 4 / (64 * 256))),
        ("int8", 1, LAYERS * 4 * (2 * 3_584 + 2 * 512 + 2 * 18_944 + 3_584)),
    ],
)
def test_all_parameters_are_those_that_are_loaded(method: str, matrix_bytes: float, scales: float) -> None:
    """Matrices as they are stored, two or four bytes of all else, fp32 adapters; the scales of packed ones
    stand beside them.
    """
    subject = job(method=method)
    assert standing(subject, "quantization_constants") == pytest.approx(scales)
    assert stored_bytes(subject) == pytest.approx(standing(subject, "weights", "adapters"))
    assert stored_bytes(subject) >= matrix_bytes * MATRICES + 2 * (FLOATS + 2 * TABLE) + 4 * ADAPTERS


def test_trained_and_frozen() -> None:
    """Adapters, with a trained copy of the head beside the frozen one."""
    subject = job(modules_to_save="lm_head")
    assert subject.trained == ADAPTERS + TABLE
    assert subject.base_params == MATRICES + FLOATS + 2 * TABLE


@pytest.mark.parametrize(
    ("stack", "switches", "n_bytes"),
    [("hf-trainer@5", "", 2), ("llama-factory", "", 4), ("llama-factory", "trainable_fp32=false", 2)],
)
def test_copies_are_widened_with_all_that_is_trained(stack: str, switches: str, n_bytes: int) -> None:
    """LLaMA-Factory casts copies of table and head as it casts adapters, but not the originals; the stream
    then begins in fp32, and adapters stay in fp32 everywhere.

    Its own run of Qwen2.5 0.5B (``additional_target``, 2 x 1,024 tokens) has 9.03 GiB at its peak.
    """
    said = {"switches": switches} if switches else {}
    both = job(stack=stack, modules_to_save="embed_tokens;lm_head", precision="bf16-mixed", **said)
    assert stored_bytes(both) == 2 * (MATRICES + FLOATS + 2 * TABLE) + 4 * ADAPTERS + 2 * n_bytes * TABLE
    assert standing(both, "adapters") == 4 * ADAPTERS + 2 * n_bytes * TABLE
    assert both.regime.residual == n_bytes
    head = job(stack=stack, modules_to_save="lm_head", precision="bf16-mixed", **said)
    assert head.regime.residual == 2


def test_the_copy_of_a_head_that_is_tied_is_as_wide_as_other_copies() -> None:
    """The base has no parameter of its name: it is as wide as the table, not as an adapter."""
    subject = job(model="qwen2.5-0.5b", modules_to_save="lm_head")
    assert stored_bytes(subject) == standing(subject, "weights", "adapters")


@pytest.mark.parametrize("sharding", ["fsdp", "zero3"])
@pytest.mark.parametrize("offload", ["none", "optimizer+params"])
def test_scales_of_divided_matrices_stay_whole_on_the_card(sharding: str, offload: str) -> None:
    """A byte for 64 elements and four for 64 x 256, on every card and with offload too:
    they are no parameters.
    """
    subject = job(method="qlora", gpus=4, sharding=sharding, quant_storage="bf16", offload=offload)
    whole = MATRICES * (1 / 64 + 4 / (64 * 256))
    assert standing(subject, "quantization_constants") == pytest.approx(whole)


def test_parameters_come_as_the_modules_make_them() -> None:
    """Phi-3's output projection before what reads the stream, Granite 4's shared MLP before attention."""

    def first(model: str, n: int) -> list[str]:
        made = [each.name.partition(" 0 ")[2] for each in model_weights(job(model=model))]
        return [name for name in made if name][:n]

    assert first("phi-4", 3) == ["o_proj", "qkv_proj", "gate_up_proj"]
    assert first("granite-4.0-micro", 3) == ["input_linear", "output_linear", "q_proj"]
