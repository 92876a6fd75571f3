"""What users expect of sizes: a larger job never takes less memory and is never likelier to fit;
offload never takes more.

The exceptions are in ``known_falls.toml``, one entry for each mechanism.  A mechanism that is not there
fails, as does a fall that is larger than the largest known, or another number of them than counted.  Most
jobs here have a few layers, whose replay takes milliseconds.
"""

from __future__ import annotations

import random
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import planner
from planner.allocator.slots import replay_slots
from planner.catalog.location import data_dir
from planner.domain.prediction import MemoryPrediction, Prediction
from planner.domain.recipes.attention_kernels import ATTENTIONS
from planner.domain.recipes.optimizers import OPTIMIZERS
from planner.domain.recipes.recipe import LOSSES, PADDINGS
from planner.domain.scenario import Scenario
from planner.errors import RefusedCombinationError
from planner.intake.given.fields import REQUEST_FIELDS
from planner.memory.quick import predict_quick
from planner.memory.replayed import least_bytes, slot_events
from planner.memory.replayed_peak import predict_replayed
from planner.predicting import PRIORS, predict_with
from planner.program.head.loss_pieces import fused_logits, piece_tokens
from planner.program.job import Job, job_of
from planner.program.step import step_of
from planner.records.calibration_file import DEFAULT_CALIBRATION, find_calibration
from planner.searching.variants import with_sizes
from planner.units import MIB
from planner.words import words
from tests.jobs import resolved, with_few_layers

Flags = dict[str, Any]
CALIBRATED = find_calibration(DEFAULT_CALIBRATION, data_dir() / "calibration")
KNOWN: dict[str, Flags] = tomllib.loads(
    (Path(__file__).parent / "known_falls.toml").read_text(encoding="utf-8")
)
# Reserved bytes may fall by this share without a word: blocks are rounded, and remainders fall otherwise.
FREE_FALL = 0.02
# And offload may take more by this one.
FREE_RISE = 0.001
# Rounding of sums of floats.
ROUNDING = 1e-12
BATCHES = (1, 2, 3, 4, 8, 16, 96)
LENGTH_FACTORS = (0.25, 0.5, 0.75, 1, 1.5, 2, 4)
# Offload leaves inputs of some layers on the GPU, so it takes a few more to pay.
FEW_LAYERS, MORE_LAYERS, ALL_LAYERS = 3, 8, 1000
# Verdicts from good to bad; a host that is short is as bad as a card that is.
RANK = {"fits": 0, "uncertain": 1, "host_memory_short": 2, "does_not_fit": 2}

# `make explore` draws anew, and ten times as many.
ROUNDS = 1 if settings().derandomize else 10
# Chances above are printed alike: > 99 %.
_PRINTED = 0.99
MANY = settings(max_examples=20 * ROUNDS)
FEW = settings(max_examples=8 * ROUNDS)
# Searches are of whole models.
FEWER = settings(max_examples=3 * ROUNDS)

MODELS = words(
    """
    smollm2-135m gemma-3-270m qwen2.5-0.5b opt-1.3b gemma-2-2b bloom-3b granite-3.1-3b-a800m phi-3-mini-4k
    opt-6.7b llama-2-7b baichuan2-7b gemma-7b falcon-7b deepseek-v2-lite qwen2.5-14b internlm-20b
    mixtral-8x7b
    """
)
# What a job is made of: every field with its values,
# from which both the strategies and the fixed sample draw.
CHOICES: dict[str, tuple[Any, ...]] = {
    "model": MODELS,
    "method": ("full", "lora", "qlora", "int8"),
    "stack": ("hf-trainer@4", "hf-trainer@5", "trl", "unsloth", "axolotl", "llama-factory", "torchtune"),
    "engine": (
        *(("none", "none", 1),) * 5,
        ("none", "activations", 1),
        ("ddp", "none", 2),
        ("zero1", "none", 8),
        ("zero2", "none", 8),
        ("zero2", "optimizer", 8),
        ("zero3", "none", 8),
        ("zero3", "optimizer", 2),
        ("zero3", "params", 1),
        ("zero3", "optimizer+params", 8),
        ("zero3", "activations", 2),
        ("fsdp", "none", 8),
        ("fsdp", "optimizer+params", 2),
        ("fsdp", "activations", 8),
        ("hsdp", "none", 8),
    ),
    "optimizer": (*("adamw_torch",) * len(OPTIMIZERS), *OPTIMIZERS),
    "attention": ATTENTIONS,
    "loss": (*("hf",) * len(LOSSES), *LOSSES),
    "padding": PADDINGS,
    "gradient_checkpointing": (True, False),
    "checkpoint_reentrant": (True, False),
    "grad_accum": (1, 4),
    "seq": (16, 64, 128, 333, 512, 796, 1024, 2048, 4096, 5363),
    "lora_rank": (8, 64, 249),
    "tokens_per_sample": (None, None, None, 16),
}


def flags_of(drawn: Flags) -> Flags:
    """The flags that were drawn, as ``plan`` takes them."""
    flags = {name: value for name, value in drawn.items() if name != "engine" and value is not None}
    flags["sharding"], flags["offload"], gpus = drawn["engine"]
    if flags["method"] == "full":
        del flags["lora_rank"]
    return {**flags, "gpu": f"a100-80gb:{gpus}", "batch": 1}


@st.composite
def jobs(draw: st.DrawFn, **fixed: Any) -> Flags:
    """Flags of any job that the rules let through."""
    flags = flags_of({name: draw(st.sampled_from(values)) for name, values in CHOICES.items()} | fixed)
    try:
        resolved(flags)
    except RefusedCombinationError:
        assume(False)
    return flags


def sample(count: int) -> Iterator[Flags]:
    """The same jobs at every call."""
    draw = random.Random(20_261_122)
    while count:
        flags = flags_of({name: draw.choice(values) for name, values in CHOICES.items()})
        try:
            resolved(flags)
        except RefusedCombinationError:
            continue
        count -= 1
        yield flags


def on_card(scenario: Scenario, n_bytes: int | None) -> Scenario:
    """The scenario on a card that makes so much visible, or is without limit."""
    gpu = replace(scenario.hardware.gpu, visible_memory_bytes=n_bytes)
    return replace(scenario, hardware=replace(scenario.hardware, gpu=gpu, gpu_reserved_bytes=0))


def short(flags: Flags, layers: int = FEW_LAYERS) -> Scenario:
    """The scenario on a card without limit, with a few layers of each kind."""
    scenario = on_card(resolved(flags), None)
    return replace(scenario, model=with_few_layers(scenario.model, layers))


def sized(scenario: Scenario, batch: int, length: int) -> Scenario:
    """The scenario with other sizes; samples that fill the length still do."""
    old = scenario.recipe.batch
    tokens = length if old.tokens_per_sample >= old.seq_len else min(length, int(old.tokens_per_sample))
    return with_sizes(scenario, batch, length, tokens)


def ladders(scenario: Scenario, batch: int) -> Iterator[list[Scenario]]:
    """The scenario with growing batches, and ``batch`` samples of it with growing lengths."""
    length = int(scenario.recipe.batch.seq_len)
    yield [sized(scenario, each, length) for each in BATCHES]
    yield [sized(scenario, batch, max(16, int(length * factor))) for factor in LENGTH_FACTORS]


def pairs(scenario: Scenario, batch: int) -> Iterator[tuple[Job, Job]]:
    """Neighbours on both ladders."""
    for ladder in ladders(scenario, batch):
        yield from pairwise(job_of(each, PRIORS) for each in ladder)


def fall(smaller: Any, larger: Any) -> float:
    """The share by which the larger job takes less."""
    return 1 - float(larger) / float(smaller)


def is_cut_finer(smaller: Job, larger: Job) -> bool:
    """Whether the loss of the larger job comes in smaller pieces, or a fused one holds fewer logits."""
    if larger.stack.loss_pieces == "budget" and larger.recipe.adapter:
        return float(fused_logits(larger)[1]) < float(fused_logits(smaller)[1])
    return float(piece_tokens(larger)) < float(piece_tokens(smaller))


@MANY
@given(jobs(), st.sampled_from((1, 5, 16)))
def test_a_larger_job_asks_for_less_only_where_its_loss_has_smaller_pieces(flags: Flags, batch: int) -> None:
    """What is asked for at the fullest moment never falls with batch or length,
    before the allocator rounds it to blocks.
    """
    for smaller, larger in pairs(short(flags), batch):
        if (share := asked_fall(smaller, larger)) > ROUNDING:
            assert is_cut_finer(smaller, larger), f"a fall of {share:.2%}"
            assert not is_more_than_known("loss_in_a_budget", share)


def asked_fall(smaller: Job, larger: Job) -> float:
    """The share by which the larger job asks for less at its fullest moment."""
    return fall(*(predict_quick(each).allocated_peak_bytes for each in (smaller, larger)))


def is_more_than_known(name: str, share: float) -> bool:
    """Whether a fall is larger than the largest that is known of its mechanism."""
    return share > float(KNOWN[name]["most_percent"]) / 100


@MANY
@given(jobs(), st.sampled_from((1, 5, 16)))
def test_a_larger_job_takes_less_by_known_mechanisms_only(flags: Flags, batch: int) -> None:
    """Allocated bytes never fall with batch or length, reserved ones by 2 % at most,
    else by a mechanism and as far as listed.
    """
    for smaller, larger in pairs(short(flags), batch):
        for name, share in falls(smaller, larger):
            assert not is_more_than_known(name, share), f"{name}: a fall of {share:.1%}"


def falls(smaller: Job, larger: Job) -> Iterator[tuple[str, float]]:
    """The entries of ``known_falls.toml`` that falls of allocated and reserved bytes belong to,
    with their shares.
    """
    before, after = (predict_replayed(each, minimum_too=False) for each in (smaller, larger))
    allocated = fall(before.allocated_peak_bytes, after.allocated_peak_bytes)
    reserved = fall(before.reserved_peak_bytes, after.reserved_peak_bytes)
    finer = is_cut_finer(smaller, larger)
    if allocated > ROUNDING:
        # All that a job asks for is in its blocks: what falls is the rest of them.
        yield "loss_in_a_budget" if finer else "remainders_in_blocks", allocated
    if reserved > FREE_FALL:
        yield "loss_in_a_budget" if finer else f"blocks_of_{phase_of_fall(before, after)}", reserved


def phase_of_fall(smaller: MemoryPrediction, larger: MemoryPrediction) -> str:
    """The phase in which the smaller job has to reserve most that the larger one finds among its free
    blocks.
    """
    first, second = (grown(each) for each in (smaller, larger))
    most = max(first, key=lambda phase: first[phase] - second.get(phase, 0))
    return {"eval": "forward"}.get(most, most.removesuffix("_2"))


def grown(made: MemoryPrediction) -> dict[str, float]:
    """Bytes that each phase reserves beside what was reserved before,
    and what batches of other lengths leave.
    """
    so_far, found = 0.0, {}
    for peak in made.phases:
        found[str(peak.phase)] = float(peak.reserved_bytes) - so_far
        so_far = float(peak.reserved_bytes)
    return {**found, "lengths": float(made.reserved_peak_bytes) - so_far}


OFFLOADS = tuple(engine for engine in CHOICES["engine"] if engine[1] != "none")


@MANY
@given(st.sampled_from(OFFLOADS).flatmap(lambda engine: jobs(engine=engine)), st.sampled_from((1, 16, 96)))
def test_offload_takes_more_by_known_mechanisms_only(flags: Flags, batch: int) -> None:
    """With offload a job takes no more GPU memory than without, else by a mechanism and as far as listed."""
    for name, share in rises({**flags, "batch": batch}):
        assert not is_more_than_known(name, share), f"{name}: {share:.1%} more"


def rises(flags: Flags) -> Iterator[tuple[str, float]]:
    """The entries of ``known_falls.toml`` that a job belongs to which takes more with its offload than
    without.
    """
    moved, plain = (
        job_of(short({**flags, **more}, MORE_LAYERS), PRIORS) for more in ({}, {"offload": "none"})
    )
    yield from rises_of(moved, plain)


def rises_of(moved: Job, plain: Job) -> Iterator[tuple[str, float]]:
    """The same for the two jobs."""
    before, after = (predict_replayed(each, minimum_too=False) for each in (moved, plain))
    allocated = fall(before.allocated_peak_bytes, after.allocated_peak_bytes)
    reserved = fall(before.reserved_peak_bytes, after.reserved_peak_bytes)
    if max(allocated, reserved) <= FREE_RISE:
        return
    # Where it asks for more, that explains what is reserved, too; else free blocks lie otherwise.
    asks = is_on_a_stream_of_its_own(moved) or asked_fall(moved, plain) > ROUNDING
    cause = by_offload(moved) if asks else "blocks_beside_offload"
    yield from ((cause, share) for share in (allocated, reserved) if share > FREE_RISE)


def is_on_a_stream_of_its_own(job: Job) -> bool:
    """Whether one process of ZeRO-3 copies its parameters from the host."""
    return job.recipe.offloads_params and job.recipe.uses_deepspeed and job.hardware.world_size == 1


def by_offload(job: Job) -> str:
    """What a job asks for because something of it is in host RAM."""
    if job.recipe.offload == "activations":
        if job.stack.offloads_saved:
            return "input_of_the_layer_before"
        return "inputs_on_their_way" if job.stack.id == "unsloth" else "copy_beside_the_leaf"
    if is_on_a_stream_of_its_own(job):
        return "parameters_on_their_way"
    return "gradients_on_their_way" if job.recipe.uses_deepspeed else "no known mechanism"


def counted() -> Counter[str]:
    """Falls of the fixed sample by mechanism."""
    found: Counter[str] = Counter()
    for flags in sample(30):
        found.update(name for smaller, larger in pairs(short(flags), 5) for name, _ in falls(smaller, larger))
        if flags["offload"] != "none":
            found.update(name for name, _ in rises(flags))
    return found


def test_no_more_falls_than_counted() -> None:
    """A mechanism has as many falls in the fixed sample as its entry counts."""
    known = {name: entry["count"] for name, entry in KNOWN.items() if entry["count"]}
    assert dict(counted()) == known


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_listed_still_occurs(name: str) -> None:
    """The case of each entry falls by its own mechanism: one that no longer does is taken from the list."""
    entry = KNOWN[name]
    layers = entry.get("layers", ALL_LAYERS)
    smaller, larger = (
        job_of(short({**entry["job"], **entry[size]}, layers), PRIORS) for size in ("smaller", "larger")
    )
    if "offload" in entry["smaller"]:
        found = [*rises_of(smaller, larger)]
    elif name == "moment_of_release":
        needs = least_bytes(smaller), least_bytes(larger)
        found = [(name, fall(*needs))] if replay_shows_less(smaller, larger, *needs) else []
    else:
        found = [*falls(smaller, larger)]
    assert name in dict(found)
    assert not is_more_than_known(name, dict(found)[name])


@FEW
@given(jobs(), st.sampled_from((1, 5, 16)), st.integers(0, 1), st.integers(0, 6), st.floats(0.7, 1.4))
def test_a_larger_job_is_likelier_to_fit_only_where_a_replay_shows_it(
    flags: Flags, batch: int, which: int, rung: int, room: float
) -> None:
    """Verdict and P(fits) never improve with batch or length, on a card about as large as some size needs.

    The minimum memory is searched, so it may fall by one step of the search.
    """
    ladder = [*ladders(short(flags), batch)][which]
    need = float(predict_replayed(job_of(ladder[rung], PRIORS)).must_have_bytes)
    cards = [on_card(each, int(need * room)) for each in ladder]
    answers = [(each, predict_with(each, CALIBRATED)) for each in cards]
    for (smaller, first), (larger, second) in pairwise(answers):
        lost = float(first.memory.must_have_bytes) - float(second.memory.must_have_bytes)
        if lost <= 0:
            assert_no_better(first, second)
        elif lost > search_step(first.memory):
            jobs_of_both = [job_of(each, CALIBRATED.coefficients_for(each)) for each in (smaller, larger)]
            limits = (least_of(each.memory) for each in (first, second))
            assert replay_shows_less(*jobs_of_both, *limits) or is_cut_finer(*jobs_of_both)
            assert not is_more_than_known("moment_of_release", lost / float(first.memory.must_have_bytes))


def search_step(made: MemoryPrediction) -> float:
    """The minimum memory is searched to a 128th of what is allocated, and no finer than 64 MiB."""
    return max(float(made.allocated_peak_bytes) / 128, 64 * MIB) + 1


def replay_shows_less(smaller: Job, larger: Job, before_bytes: float, after_bytes: float) -> bool:
    """Whether the larger job ends with ``after_bytes``, and the smaller one fails with as much or more,
    up to ``before_bytes``.

    A job that ends under one limit may fail under a higher one, where it gives its cache back later.
    """
    limits = [int(after_bytes + part / 16 * (before_bytes - after_bytes)) for part in range(16)]
    return ends(larger, limits[0] + 1) and not all(ends(smaller, limit) for limit in limits)


def least_of(made: MemoryPrediction) -> float:
    """The smallest limit for the allocator: the minimum memory without what lies beside it."""
    beside = (
        each for each in made.terms if each.name in ("context", "nccl") or each.label == "outlier columns"
    )
    return float(made.must_have_bytes) - sum(float(each.n_bytes) for each in beside)


def ends(job: Job, limit_bytes: int) -> bool:
    """Whether every request of a job is served."""
    return replay_slots(slot_events(step_of(job), job), limit_bytes).failure is None


def assert_no_better(smaller: Prediction, larger: Prediction) -> None:
    """The larger job has no better verdict and no better chance, of those that are printed as numbers.

    Above 99 % the chance is that of the furthest readings.  There the bytes that scatter whatever the size
    of a job weigh more for the smaller one, by a thousandth of a per cent.
    """
    assert RANK[larger.verdict] >= RANK[smaller.verdict]
    assert smaller.fits_probability is not None
    assert larger.fits_probability is not None
    assert min(larger.fits_probability, _PRINTED) <= smaller.fits_probability + ROUNDING


@FEWER
@given(
    st.sampled_from(MODELS[:5]).flatmap(lambda model: jobs(model=model)),
    st.sampled_from(("batch", "seq")),
    st.sampled_from(("rtx4090", "a100-80gb", "h200-sxm")),
)
def test_what_is_solved_for_fits_and_the_next_does_not(flags: Flags, quantity: str, card: str) -> None:
    """``planner.search(solve=...)`` names a size that ``planner.estimate`` lets fit,
    and does not fit one step above it.
    """
    said: Flags = {**flags, "gpu": card + flags["gpu"].removeprefix("a100-80gb"), "tokens_per_sample": None}
    said = {name: value for name, value in said.items() if name != quantity and value is not None}
    found = planner.search(**said, solve=quantity, top=1)
    step = 1 if quantity == "batch" else 64
    for row in found.rows[:1]:
        told: Flags = dict(row.flags)
        above: Flags = {**told, quantity: int(told[quantity]) + step}
        assert planner.estimate(**told).fits
        if above[quantity] <= (REQUEST_FIELDS["batch"].high if quantity == "batch" else context(told)):
            assert not planner.estimate(**above).fits
    if not found.rows:
        least = {"batch": 1, "seq": 64}[quantity]
        assert not planner.estimate(**{**said, quantity: least}).fits


def context(flags: Flags) -> int:
    """Positions that the model was made for."""
    return resolved({**flags, "seq": 64}).model.max_position_tokens or 0
