"""TRL's loss in pieces of 256 rows, its tensors counted by hand."""

from __future__ import annotations

import pytest

from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.job import Job, job_of
from planner.program.ops.tensors import Unit
from planner.program.step import parts_of
from planner.throughput.counted import unit_values
from planner.throughput.tokens import micro_step
from tests.jobs import resolved
from tests.planner.program.head.test_ends import job
from tests.planner.program.head.test_losses import HIDDEN, VOCABULARY, peak

HEAD, ROWS = VOCABULARY * HIDDEN, 256


def lora(pieces: str, **flags: object) -> Job:
    """LoRA over 16-bit weights under autocast."""
    given = {"method": "lora", "precision": "bf16-mixed", "load_dtype": "bf16", "loss": "chunked"}
    return job(**given, gradient_checkpointing=True, switches=f"loss_pieces={pieces}", **flags)


def copies(asked: Job) -> int:
    """Most bytes of copies of the whole head that are alive at once."""
    template = parts_of(asked)[-1].template
    alive = most = 0
    for stage in ("forward", "forward_end", "forward_out", "backward"):
        for event in template.stages[stage]:
            slot = event if event >= 0 else ~event
            if slot < len(template.units) and template.unit_bytes[slot] in (2 * HEAD, 4 * HEAD):
                alive += int(template.unit_bytes[slot]) * (1 if event >= 0 else -1)
                most = max(most, alive)
    return most


def test_the_whole_head_is_cast_to_fp32_and_back_for_each_piece() -> None:
    """An fp32 copy, and the 16-bit one that autocast makes of it; since 1.13.0 neither.

    LoRA of Qwen2.5-1.5B under TRL 1.12.0 had 0.52 GiB more than without them (``alignlab``).
    """
    assert copies(lora("wide_rows")) == HEAD * (4 + 2)
    assert copies(lora("rows")) == 0


@pytest.mark.parametrize(("pieces", "logits"), [("rows", 4), ("wide_rows", 2)])
def test_a_piece_has_its_entropy_beside_its_log_softmax(pieces: str, logits: int) -> None:
    """Logits, which are cast to fp32 where operands are not; scores, their exponentials and the products."""
    assert peak(lora(pieces)) == ROWS * VOCABULARY * (logits + 3 * 4)


def test_products_in_fp32_without_autocast() -> None:
    """Then the fp32 copy is what the product reads."""
    asked = job(method="lora", precision="bf16", loss="chunked", switches="loss_pieces=wide_rows")
    assert copies(asked) == HEAD * 4
    assert peak(asked) == ROWS * VOCABULARY * 16


def test_padding_is_in_no_piece() -> None:
    """Four samples of 286 tokens have 1,144 labels in five pieces, however far they are padded."""
    job_of_alignlab = {"model": "qwen2.5-1.5b", "gpu": "rtx-a6000", "method": "lora"}
    stack = {"stack": "trl", "versions": "trl==1.12.0"}
    lengths = {"seq": 1024, "batch": 4, "padding": "longest", "tokens_per_sample": 286}
    asked = resolved({**job_of_alignlab, **stack, **lengths})
    micro = micro_step(asked.recipe, Coefficients(), asked.stack)
    assert micro.computed > 5 * ROWS > micro.real
    values = unit_values(asked, micro)
    assert values[Unit.PIECES] == 5
    assert values[Unit.PIECE_TOKENS] * 8 == pytest.approx(4 * 286)
    assert job_of(asked, Coefficients()).stack.loss_pieces == "wide_rows"
