"""What the feed-forward part holds while its activation runs."""

from __future__ import annotations

from dataclasses import replace

from planner.anatomy.feed_forward import mlp_steps
from planner.anatomy.ledger import BlockView, Step
from planner.domain.coefficients import Coefficients
from planner.intake.request import from_flags
from planner.intake.resolve import resolve
from planner.program.job import job_of


def view_of(model: str) -> BlockView:
    """The first kind of layer of a model under LoRA."""
    job = job_of(resolve(from_flags({"model": model, "method": "lora", "gpu": "h100-sxm", "seq": 1024})), Coefficients())
    return job.view(job.model.groups[0].block)


def activation(view: BlockView) -> Step:
    """Its step without the stream around it."""
    return next(step for step in mlp_steps(view, 0) if step.name == "activation")


def test_the_clamped_gate_holds_three_more_tensors_of_the_routed_width() -> None:
    """The clamped second factor and the biases gathered for both: three times 4 experts of 2,880 features, 2 bytes each."""
    view = view_of("gpt-oss-20b")
    plain = replace(view, block=replace(view.block, mlp=replace(view.block.mlp, activation="silu")))
    assert activation(view).forward - activation(plain).forward == 3 * 4 * 2880 * 2


def test_the_derivative_of_blooms_activation_is_six_tensors() -> None:
    """They are all alive at once in backward: six times 16,384 features, 2 bytes each."""
    assert activation(view_of("bloom-7b1")).backward == 6 * 16384 * 2
