"""One job replayed: its phases and terms, its minimum, what fails on a smaller card,
and batches of drawn lengths.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest

from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.drawn_lengths import drawn_longest
from planner.memory.replayed import least_bytes, replayed
from planner.memory.replayed_peak import failed_request
from planner.program.job import Job, job_of
from planner.units import GIB
from tests.jobs import job_by, resolved, typed

scenario = partial(resolved, model="qwen2.5-0.5b", gpu="a100-80gb", method="qlora", seq=512)
"""A small model on a large card."""


def job(**flags: object) -> Job:
    """The same, ready for formulas."""
    return job_of(scenario(**flags), Coefficients())


@pytest.mark.parametrize("method", ["full", "lora", "qlora", "int8"])
def test_the_terms_of_each_phase_add_up_to_what_is_allocated(method: str) -> None:
    """Every byte has a term, rounding included, and nothing is reserved that is not allocated or cached."""
    one = job(method=method)
    done = replayed(one)
    for phase in done.phases:
        assert sum(phase.terms.values()) == phase.allocated_bytes
        assert min(phase.terms.values()) >= 0
        assert phase.reserved_bytes >= phase.allocated_bytes
    assert max(phase.allocated_bytes for phase in done.phases) <= least_bytes(one) <= done.reserved_bytes


def test_a_card_that_holds_the_minimum_is_enough_and_a_smaller_one_names_what_fails() -> None:
    """Under the minimum the job ends; a tenth below what is allocated,
    a request of the last micro-step fails.
    """
    one = job(method="lora", batch=4)
    done = replayed(one)
    assert failed_request(one, least_bytes(one)) is None
    highest = max(phase.allocated_bytes for phase in done.phases)
    failed = failed_request(one, round(0.9 * highest))
    assert failed is not None
    assert failed.phase in ("loss", "loss_2", "backward", "backward_2", "forward", "forward_2")
    assert failed.part.startswith(("layer", "head"))
    assert failed.n_bytes > failed.largest_free_bytes


def test_an_evaluation_of_another_batch_has_its_own_size_alone() -> None:
    """Eight samples without gradients need what training on eight does in its evaluation;
    other phases stay as they are.
    """
    one, eight, more = (job(method="lora", **flags) for flags in ({}, {"batch": 8}, {"eval_batch": 8}))
    peaks = [
        {phase.phase: phase.allocated_bytes for phase in replayed(each).phases} for each in (one, eight, more)
    ]
    assert peaks[2]["eval"] == peaks[1]["eval"] > peaks[0]["eval"]
    assert {**peaks[2], "eval": 0} == {**peaks[0], "eval": 0}


def test_an_evaluation_has_a_second_batch_which_finds_what_the_first_one_left() -> None:
    """LLaMA-Factory 0.9.5 run dry on an H100 ends in it: 43.9 GB are allocated, a request for 24.3 fails.
    Half of a block as large is held by the logits of 16 bits, whose own block the last hidden states took.
    """
    flags = {"model": "qwen3-8b", "stack": "llama-factory", "seq": 5000, "lora_rank": 16, "grad_accum": 4,
        "lora_targets": "linear-classes", "lora_dropout": 0.05, "precision": "fp16-mixed", "batch": 4,
        "gpu": "h100-sxm"}  # fmt: skip
    one = job(**flags, eval_batch=8)
    failed = failed_request(one, 84_932_558_848)
    assert failed is not None
    assert (failed.phase, failed.n_bytes) == ("eval", 8 * 5000 * 151936 * 4)
    assert failed.largest_free_bytes < failed.n_bytes


def test_drawn_batches_grow_up_to_the_cap_and_are_the_same_every_time() -> None:
    """New longest batches only; none where every batch has one length."""
    varying = job(padding="longest", tokens_per_sample=120, batch=4)
    drawn = drawn_longest(varying)
    lengths = [each.tokens for each in drawn]
    assert drawn == drawn_longest(varying)
    assert drawn[0].micro_step == 0
    assert all(before.micro_step < after.micro_step for before, after in pairwise(drawn))
    assert all(before < after for before, after in pairwise(lengths))
    assert 2 <= len(lengths) <= 30
    assert 1 <= lengths[0] <= lengths[-1] <= 512
    assert drawn_longest(job(padding="packed")) == []


def test_lengths_that_grow_leave_blocks_behind() -> None:
    """Logits of longer batches find no block in those of shorter ones:
    more is reserved than with one length.
    """
    done = replayed(job(model="qwen2.5-0.5b", padding="longest", tokens_per_sample=100, batch=8, seq=1024))
    assert done.length_cache_bytes > 0.2 * GIB
    assert done.order_spread_bytes > 0
    assert replayed(job(padding="packed")).length_cache_bytes == 0


def test_what_accumulates_before_the_update_leaves_room_for_its_states() -> None:
    """Full fine-tuning: with sixteen micro-steps to an update, shorter batches leave blocks before the states
    are made, which then lie there.  With one, most new longest batches come after the states.
    """
    varying = {"method": "full", "padding": "longest", "tokens_per_sample": 300, "seq": 1024}
    often, seldom = (replayed(job(**varying, grad_accum=count)) for count in (1, 16))
    assert often.reserved_bytes <= seldom.reserved_bytes
    assert often.length_cache_bytes > 1.3 * seldom.length_cache_bytes
    assert seldom.order_spread_bytes > 0


def test_blocks_that_preparation_leaves_stay_reserved_and_are_not_needed() -> None:
    """A 16-bit base that is widened to fp32 leaves blocks that activations do not fill;
    one that comes in fp32 leaves none.

    Each of Baichuan 2's 7.5e9 weights leaves at most its 2 bytes; the Trainer gives whole segments back.
    The others hold more than what is needed only in part: a third step finds holes in them.
    """
    given = typed(
        "--model baichuan2-7b --gpu h800-sxm --seq 1024 --batch 2 --stack hf-trainer@4 --method lora"
    )
    given |= typed("--switches prepares_unquantized=true --precision fp16-mixed --gradient-checkpointing")
    widened, plain = (job(**given, load_dtype=dtype) for dtype in ("fp16", "fp32"))
    assert replayed(widened).allocated_bytes == pytest.approx(replayed(plain).allocated_bytes, rel=0.001)
    left = replayed(widened).reserved_bytes - replayed(plain).reserved_bytes
    assert 0.2 < left / (2 * widened.base_params) < 1
    assert abs(least_bytes(widened) - least_bytes(plain)) < 0.25 * left


@pytest.mark.parametrize(
    ("says", "reserved_bytes"),
    [
        ({"method": "full", "gradient_checkpointing": True}, 9_005_170_688),
        ({"method": "lora", "gradient_checkpointing": False}, 5_827_985_408),
    ],
)
def test_a_cache_that_is_emptied_before_backward(says: dict[str, object], reserved_bytes: int) -> None:
    """Dry runs of trl 1.16.0 with ``torch_empty_cache_steps: 1``, two packed samples of 1,024 tokens."""
    targets = {"lora_targets": "q_proj,v_proj"} if says["method"] == "lora" else {}
    flags: dict[str, object] = {
        "model": "qwen2.5-0.5b",
        "gpu": "a100-80-sxm",
        "stack": "trl",
        "batch": 2,
        "seq": 1024,
        "padding": "packed",
        "precision": "bf16-mixed",
        "switches": "empties_before_backward=every",
        **says,
        **targets,
    }
    done = replayed(job_by(flags))
    assert max(each.reserved_bytes for each in done.phases) == pytest.approx(reserved_bytes, rel=3e-3)
