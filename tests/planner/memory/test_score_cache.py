"""What cached blocks of attention scores are lost for, and good for, counted by hand on Llama-2-7B."""

from __future__ import annotations

import pytest

from planner.domain.coefficients import Coefficients
from planner.intake.request import from_flags
from planner.intake.resolve import resolve
from planner.memory.peak import predict_memory
from planner.memory.score_cache import logits_in_scores_bytes, spoiled_scores_bytes, stranded_scores_bytes
from planner.program.job import Job, job_of

VOCABULARY, HEADS = 32_000, 32


def _job(dtype: str = "fp16", **flags: object) -> Job:
    given = {"model": "llama-2-7b", "method": "lora", "gpu": "rtx3090", "seq": 2048, "batch": 4, "stack": "hf-trainer@4"}
    given |= {"attention": "eager", "switches": "kbit_upcast=none"}
    given |= {"gradient_checkpointing": True, "precision": f"{dtype}-mixed", "load_dtype": dtype, "adapter_dtype": "fp32"}
    return job_of(resolve(from_flags({**given, **flags})), Coefficients())


@pytest.mark.parametrize(("dtype", "alive"), [("fp16", 10), ("bf16", 12)])
def test_stored_inputs_spoil_blocks_of_scores(dtype: str, alive: int) -> None:
    """With what is alive at the peak of the backward, 17 bytes are reserved per head, token and key, in fp16 as in bf16."""
    pairs = HEADS * 4 * 2048 * 2048
    assert spoiled_scores_bytes(_job(dtype)) == stranded_scores_bytes(_job(dtype)) == (17 - alive) * pairs


def test_nothing_is_spoiled_without_stored_inputs_or_without_scores() -> None:
    """No checkpointing leaves whole blocks, and fused attention makes no scores."""
    assert spoiled_scores_bytes(_job(gradient_checkpointing=False)) == 0
    assert spoiled_scores_bytes(_job(attention="sdpa")) == 0


@pytest.mark.parametrize(("seq", "per_logit"), [(256, 0), (499, 0), (500, 2), (999, 2), (1000, 2 + 4), (2048, 2 + 4)])
def test_long_scores_take_logits_in(seq: int, per_logit: int) -> None:
    """From 32 x 500 scores per token on an fp32 block holds 32,000 16-bit logits, from 32 x 1,000 on the fp32 ones too."""
    assert logits_in_scores_bytes(_job(seq=seq)) == per_logit * 4 * seq * VOCABULARY


def test_spoiled_blocks_count_in_what_must_be_held() -> None:
    """Four samples of 2,048 tokens do not fit on an RTX 3090, though what is alive at once would; three do."""
    four, three = predict_memory(_job()), predict_memory(_job(batch=3))
    assert four.limit_bytes is not None
    assert four.allocated_peak_bytes < 0.9 * four.limit_bytes < four.limit_bytes < four.must_have_bytes
    assert three.must_have_bytes < 0.95 * four.limit_bytes
