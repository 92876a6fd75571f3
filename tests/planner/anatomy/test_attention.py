"""What CUDA computes in 16 bits where autocast is thought to ask for fp32, counted by hand."""

from __future__ import annotations

import pytest

from planner.anatomy.attention import score_bytes
from planner.domain.coefficients import Coefficients
from planner.intake.request import from_flags
from planner.intake.resolve import resolve
from planner.memory.cache import stranded_logits_bytes
from planner.memory.score_cache import stranded_scores_bytes
from planner.program.job import Job, job_of
from tests.extras import import_or_skip


def _job(**flags: object) -> Job:
    given = {"model": "llama-2-7b", "method": "lora", "gpu": "rtx3090", "seq": 512, "batch": 4, "stack": "hf-trainer@4"}
    given |= {"attention": "eager", "switches": "kbit_upcast=none"}
    return job_of(resolve(from_flags({**given, **flags})), Coefficients())


@pytest.mark.parametrize(("dtype", "forward", "backward"), [("fp16", 2 + 4 + 2, 4 + 4 + 2), ("bf16", 2 + 4 + 4, 4 + 4 + 4)])
def test_softmax_reads_fp16_scores_as_they_are(dtype: str, forward: int, backward: int) -> None:
    """fp16: scores, fp32 softmax, its cast; then softmax, gradient and an fp16 gradient.  bf16 needs fp32 copies of both."""
    job = _job(precision=f"{dtype}-mixed", load_dtype=dtype)
    kept, most_forward, most_backward = score_bytes(job.view(job.model.groups[0].block))
    assert (kept, most_forward, most_backward) == (4 + 2, forward, backward)


def test_a_free_block_of_fp16_scores_takes_their_gradient() -> None:
    """Of bf16 scores one 16-bit block stays free, 2 bytes for each of 32 heads, 2,048 tokens and 512 keys; of fp16 none."""
    assert stranded_scores_bytes(_job(precision="bf16-mixed", load_dtype="bf16")) == 2 * 32 * 4 * 512 * 512
    assert stranded_scores_bytes(_job(precision="fp16-mixed", load_dtype="fp16")) == 0


def test_logits_that_a_model_leaves_in_16_bits_strand_nothing() -> None:
    """Llama widens its logits itself, so the 16-bit ones are left over; Qwen 1 does not, and its log-softmax has 16 bits too."""
    widened, left = (
        _job(precision="bf16-mixed", load_dtype="bf16"),
        _job(model="qwen-7b", stack="qwen-finetune", attention="flash2"),
    )
    assert stranded_logits_bytes(widened) == 2 * 4 * 512 * 32000
    assert left.regime.autocast
    assert stranded_logits_bytes(left) == 0


def test_torch_gives_cross_entropy_to_the_autocast_of_the_cpu_only() -> None:
    """On CUDA cross entropy is a composite whose log-softmax gets its input's dtype by name; only ``nll_loss`` is widened."""
    torch = import_or_skip("torch")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    assert not has("aten::cross_entropy_loss", "AutocastCUDA")
    assert has("aten::log_softmax.int", "AutocastCUDA")
    assert has("aten::nll_loss", "AutocastCUDA")
