"""The moments of a backward, counted by hand: 4-bit matrices, tied tables and the tables that turn queries and keys."""

from __future__ import annotations

import pytest

from planner.anatomy.kbit_backward import expansion_bytes, moments_4bit
from planner.anatomy.ledger import BlockView, Moment
from planner.anatomy.matrices import linear_amounts
from planner.domain.coefficients import Coefficients
from planner.domain.model import LinearSpec
from planner.intake.request import from_flags
from planner.intake.resolve import resolve
from planner.memory.activations import activations, rotary_table_bytes
from planner.memory.moments import first_backward, tied_table_bytes
from planner.memory.parts import parts_of
from planner.memory.terms import tensor_terms
from planner.program.job import Job, job_of

# Qwen2.5-7B: hidden features, and those of the feed-forward part.
HIDDEN, WIDTH = 3_584, 18_944


def job(**flags: object) -> Job:
    """A job of Qwen2.5-7B on one card."""
    base = {"model": "qwen2.5-7b", "gpu": "a100-80gb", "seq": 1024, "batch": 2, "stack": "hf-trainer@5"}
    return job_of(resolve(from_flags({**base, **flags})), Coefficients())


def down(**flags: object) -> tuple[BlockView, LinearSpec]:
    """The last matrix of a layer of a QLoRA job, and its layer."""
    subject = job(method="qlora", lora_rank=8, lora_targets="all-linear", lora_dropout=0.0, **flags)
    view = subject.view(subject.model.groups[0].block)
    return view, next(linear for linear in view.block.linears if linear.reads == "mlp_mid")


@pytest.mark.parametrize(("load", "element_bytes"), [("fp32", 4 + 2), ("fp16", 2 + 2), ("bf16", 2 + 4 / 64)])
def test_a_4bit_matrix_is_expanded_to_what_was_quantised_and_then_cast(load: str, element_bytes: float) -> None:
    """Two copies where the checkpoint has another dtype than the products; else one, beside the fp32 scales of 64 elements."""
    view, linear = down(load_dtype=load)
    assert expansion_bytes(view, linear) == HIDDEN * WIDTH * element_bytes


def test_the_expanded_weight_and_the_widened_gradient_are_two_moments() -> None:
    """Adapter; expansion beside the cast gradient; product; and, when weight and cast have gone, the product and its copy."""
    view, linear = down()
    stream = HIDDEN * view.regime.residual
    saved, _, adapter = linear_amounts(view, linear)
    # The adapter made the input's fp32 gradient, and what it had kept went with it.
    left = stream + WIDTH * 4 - saved
    assert moments_4bit(view, [linear], stream, 0, linear_amounts) == (
        Moment(stream + adapter),
        Moment(left + HIDDEN * 2, expansion_bytes(view, linear)),
        Moment(left + HIDDEN * 2 + WIDTH * 2, HIDDEN * WIDTH * 2),
        Moment(left + WIDTH * (2 + 4)),
    )


def test_matrices_that_read_one_tensor_run_one_after_the_other() -> None:
    """While the later one of gate and up runs, the gradient of the other's output waits; then the input's gradient does."""
    view, _ = down()
    gate, up = (linear for linear in view.block.linears if linear.reads == "mlp_in")
    saved, _, adapter = linear_amounts(view, up)
    moments = moments_4bit(view, [gate, up], 0, 4, linear_amounts)
    assert moments[0] == Moment(2 * WIDTH * 4 + adapter)
    assert moments[4] == Moment(WIDTH * 4 + HIDDEN * 4 + linear_amounts(view, gate)[2] - saved)
    assert moments[-1] == Moment(HIDDEN * 4 + HIDDEN * (2 + 4) - saved - linear_amounts(view, gate)[0])


def test_the_third_tensor_of_a_tied_table_comes_when_its_layer_has_gone() -> None:
    """Qwen2.5-1.5B in bf16: two parts and their sum, the first layer's input gradient gone; all of it are gradients."""
    subject = job(model="qwen2.5-1.5b", method="full", load_dtype="bf16", seq=128, batch=1)
    table = 151_936 * 1_536 * 2
    assert tied_table_bytes(subject) == 2 * table
    peak = first_backward(subject, activations(subject))
    assert (peak.extra, peak.table) == (0, 2 * table)
    terms = [
        term
        for term in tensor_terms(subject, parts_of(subject))
        if "backward" in term.phases and term.label.startswith("tied table")
    ]
    assert [(term.name, term.n_bytes) for term in terms] == [("gradients", 2 * table)]


@pytest.mark.parametrize(("model", "features"), [("qwen2.5-7b", 128), ("bloom-7b1", 0)])
def test_rotary_tables_are_one_sample_wide_and_kept_until_the_first_layer_ran_backward(model: str, features: int) -> None:
    """A cosine and a sine for each position and feature of a head, whatever the batch; none where positions are in scores."""
    subject = job(model=model, method="lora", load_dtype="bf16", precision="bf16", seq=1024, batch=4)
    amounts = activations(subject)
    assert rotary_table_bytes(subject) == amounts.shared == 2 * 1024 * features * subject.regime.outside
    assert amounts.kept - amounts.shared == sum(layer.count * layer.kept for layer in amounts.layers)
