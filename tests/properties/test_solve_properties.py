"""What a search solves for fits and the next value does not,
and what it lists is beaten by nothing that it tried.
"""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog.location import data_dir
from planner.domain.prediction import Prediction
from planner.domain.uncertainty.calibration import Calibration
from planner.domain.uncertainty.coefficients import Coefficients
from planner.predicting import PRIORS, predict_with
from planner.records.calibration_file import DEFAULT_CALIBRATION, find_calibration
from planner.searching.recipes.answer import Quantity
from planner.searching.recipes.attempt import DEFAULT_CONFIDENCE, Tried, confirmed, state_of
from planner.searching.recipes.choose import choose
from planner.searching.recipes.pool import Pool
from planner.searching.recipes.solve import SEQ_STEP_TOKENS, size_of, solve
from planner.searching.recipes.space import Space, read_choices
from tests.jobs import resolved

Model = Calibration | Coefficients
CALIBRATED = find_calibration(DEFAULT_CALIBRATION, data_dir() / "calibration")
# Everything is said but what is solved for, so that every value of it can be tried.
FIXED = {"sharding": "none", "offload": "none", "optimizer": "adamw_torch", "attention": "sdpa"}
JOBS = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["smollm2-135m", "qwen2.5-0.5b", "gpt2"]),
        "method": st.sampled_from(["full", "lora", "qlora", "int8"]),
        "gpu": st.just("rtx4090"),
        "gpu_memory": st.integers(2_000, 8_000).map(lambda size: f"{size}MiB"),
        "gradient_checkpointing": st.booleans(),
        "loss": st.sampled_from(["hf", "liger"]),
    }
)
MODELS = st.sampled_from([CALIBRATED, PRIORS])
# A search takes seconds, most of them for replays.
SETTINGS = settings(max_examples=5 if settings().derandomize else 20)
FEWER = settings(SETTINGS, max_examples=2 if settings().derandomize else 10)


def pool_of(flags: dict[str, str | bool], confidence: float = DEFAULT_CONFIDENCE) -> Pool:
    """An empty pool for what these flags leave open."""
    return Pool(Space(*read_choices(flags)), confidence)


def answer(flags: dict[str, str | bool], model: Model) -> Prediction:
    """What ``plan`` says of the flags."""
    return predict_with(resolved(flags), model)


def fits(flags: dict[str, str | bool], model: Model, confidence: float) -> bool:
    """Whether a search with this confidence counts the job as fitting."""
    return state_of(answer(flags, model), confidence) == "fits"


@SETTINGS
@given(
    job=JOBS, seq=st.integers(256, 1024), model=MODELS, confidence=st.sampled_from([0.5, DEFAULT_CONFIDENCE])
)
def test_the_largest_batch_fits_and_the_next_does_not(
    job: dict[str, str | bool], seq: int, model: Model, confidence: float
) -> None:
    """``--solve batch`` finds a micro-batch that fits, one more does not,
    and neither does half as much again or twice.
    """
    flags = {**FIXED, **job, "seq": str(seq)}
    (group,) = solve(pool_of(flags, confidence), lambda _: model, "batch").groups
    found = int(size_of("batch")(group.rows[0])) if group.rows else 0
    if group.rows:
        assert fits({**flags, "batch": str(found)}, model, confidence)
        assert group.above is not None
        assert size_of("batch")(group.above) == found + 1
    for above in {found + 1, found + found // 2 + 1, 2 * found + 1}:
        assert not fits({**flags, "batch": str(above)}, model, confidence)


@SETTINGS
@given(job=JOBS, batch=st.integers(1, 8), model=MODELS)
def test_the_longest_sequence_fits_and_the_next_does_not(
    job: dict[str, str | bool], batch: int, model: Model
) -> None:
    """``--solve seq`` finds a multiple of 64 tokens that fits, the next does not,
    and neither does half as much again.
    """
    flags = {**FIXED, **job, "batch": str(batch)}
    most = resolved({**flags, "seq": "64"}).model.max_position_tokens or 0
    (group,) = solve(pool_of(flags), lambda _: model, "seq").groups
    found = int(size_of("seq")(group.rows[0])) if group.rows else 0
    assert not found or fits({**flags, "seq": str(found)}, model, DEFAULT_CONFIDENCE)
    for above in {found + SEQ_STEP_TOKENS, (found * 3 // 2 // SEQ_STEP_TOKENS + 1) * SEQ_STEP_TOKENS}:
        assert above > most or not fits({**flags, "seq": str(above)}, model, DEFAULT_CONFIDENCE)


@FEWER
@given(memory=st.integers(3_000, 20_000), seq=st.integers(128, 4096))
def test_nothing_that_was_tried_beats_what_is_listed(memory: int, seq: int) -> None:
    """Each listed recipe fits, the fastest first (but for 1 %),
    and a faster one that was tried does not fit when replayed.
    """
    pool = pool_of({"model": "qwen2.5-0.5b", "gpu": "rtx4090", "gpu_memory": f"{memory}MiB", "seq": str(seq)})
    groups = {group.title: group for group in choose(pool, lambda _: CALIBRATED, top=50).groups}
    assert len(groups) == len(pool.by_training)
    for training, tried in pool.by_training.items():
        rows = groups[pool.title_of(training)].rows
        best = seconds(rows[0]) if rows else math.inf
        assert all(pool.fits(row) and best <= 1.011 * seconds(row) for row in rows)
        faster = [each for each in tried if pool.fits(each) and 1.011 * seconds(each) < best]
        assert not any(pool.fits(confirmed(each)) for each in faster)


def seconds(tried: Tried) -> float:
    """Seconds per sample."""
    assert tried.sample_s is not None
    return tried.sample_s


# The larger card makes at least a tenth more visible than the one before it.
GROWING_CARDS = ("rtx3060-12g", "rtx4090", "a100-80-sxm")


@FEWER
@given(
    model=st.sampled_from(["smollm2-135m", "qwen2.5-1.5b", "llama-3.1-8b"]),
    method=st.sampled_from(["full", "lora", "qlora"]),
    quantity=st.sampled_from(["seq", "batch"]),
    stack=st.sampled_from(["hf-trainer@5", "trl", "unsloth"]),
)
def test_a_larger_card_is_never_answered_with_less(
    model: str, method: str, quantity: Quantity, stack: str
) -> None:
    """Under the same flags the longest sequence and the largest micro-batch grow with the card,
    offload or not.
    """
    rest = {"batch": "1"} if quantity == "seq" else {"seq": "1024"}
    found = []
    for card in GROWING_CARDS:
        pool = pool_of({"model": model, "method": method, "gpu": card, "stack": stack, **rest})
        rows = solve(pool, lambda _: CALIBRATED, quantity).groups[0].rows
        found.append(int(size_of(quantity)(rows[0])) if rows else 0)
    assert found == sorted(found)
    # Unsloth has no offload for the weights of a full fine-tune.
    assert found[-1] or (model, method, stack) == ("llama-3.1-8b", "full", "unsloth")
