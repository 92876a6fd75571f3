"""What users expect of sizes: a larger job never takes less memory and is never likelier to fit; offload never takes more.

The exceptions are in ``known_falls.toml``, one entry for each mechanism: what a replay shows too, and what only the closed form
has.  A mechanism that is not there fails, as does a fall that is larger than the largest known, or more of them than counted.
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
from planner.catalog.location import data_dir
from planner.domain.prediction import MemoryPrediction, Prediction
from planner.domain.recipe import ATTENTIONS, LOSSES, OPTIMIZERS, PADDINGS
from planner.domain.scenario import Scenario
from planner.domain.term import LENGTH_CACHE
from planner.errors import RefusedCombinationError
from planner.intake.request import from_flags
from planner.intake.resolve import resolve
from planner.prediction import PRIORS, predict_with
from planner.records.calibration_file import DEFAULT_CALIBRATION, find_calibration
from planner.searching.variants import with_sizes

Flags = dict[str, Any]
CALIBRATED = find_calibration(DEFAULT_CALIBRATION, data_dir() / "calibration")
KNOWN: dict[str, Flags] = tomllib.loads((Path(__file__).parent / "known_falls.toml").read_text(encoding="utf-8"))
# Reserved bytes may fall by this share without a word: blocks are rounded, and remainders fall otherwise.
FREE_FALL = 0.02
# And offload may take more by this one.
FREE_RISE = 0.001
# Rounding of sums of floats.
ROUNDING = 1e-12
BATCHES = (1, 2, 3, 4, 8, 12, 16, 48, 96, 128)
LENGTH_FACTORS = (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4)
# Verdicts from good to bad; a host that is short is as bad as a card that is.
RANK = {"fits": 0, "uncertain": 1, "host_memory_short": 2, "does_not_fit": 2}

# `make explore` draws anew, and ten times as many.
ROUNDS = 1 if settings().derandomize else 10
MANY = settings(deadline=None, max_examples=50 * ROUNDS)
FEW = settings(deadline=None, max_examples=8 * ROUNDS)

MODELS = (
    "smollm2-135m",
    "gemma-3-270m",
    "qwen2.5-0.5b",
    "opt-1.3b",
    "gemma-2-2b",
    "bloom-3b",
    "granite-3.1-3b-a800m",
    "phi-3-mini-4k",
    "opt-6.7b",
    "llama-2-7b",
    "baichuan2-7b",
    "gemma-7b",
    "falcon-7b",
    "deepseek-v2-lite",
    "qwen2.5-14b",
    "internlm-20b",
    "mixtral-8x7b",
)
# What a job is made of: every field with its values, from which both the strategies and the fixed sample draw.
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
        resolve(from_flags(flags))
    except RefusedCombinationError:
        assume(False)
    return flags


def sample(count: int) -> Iterator[Flags]:
    """The same jobs at every call."""
    draw = random.Random(20_261_122)
    while count:
        flags = flags_of({name: draw.choice(values) for name, values in CHOICES.items()})
        try:
            resolve(from_flags(flags))
        except RefusedCombinationError:
            continue
        count -= 1
        yield flags


def on_card(scenario: Scenario, n_bytes: int | None) -> Scenario:
    """The scenario on a card that makes so much visible, or is without limit."""
    gpu = replace(scenario.hardware.gpu, visible_memory_bytes=n_bytes)
    return replace(scenario, hardware=replace(scenario.hardware, gpu=gpu, gpu_reserved_bytes=0))


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


def memory(scenario: Scenario) -> MemoryPrediction:
    """What the closed form says of a card without limit."""
    return predict_with(on_card(scenario, None), PRIORS).memory


def fall(smaller: float, larger: float) -> float:
    """The share by which the larger job takes less."""
    return 1 - larger / smaller


def reserved_fall(smaller: MemoryPrediction, larger: MemoryPrediction) -> float:
    """The share by which the larger job reserves less."""
    return fall(float(smaller.reserved_peak_bytes), float(larger.reserved_peak_bytes))


def labelled(made: MemoryPrediction, label: str) -> float:
    """Bytes of the terms with a label."""
    return sum(float(term.n_bytes) for term in made.terms if term.label == label)


def logits(made: MemoryPrediction) -> float:
    """Bytes of the logits where they are most."""
    return max((float(term.n_bytes) for term in made.terms if term.name == "logits_and_loss"), default=0.0)


def loss_is_cut(scenario: Scenario) -> bool:
    """Whether the loss has as many pieces as the free memory asks for."""
    return scenario.recipe.loss == "chunked" and scenario.stack.loss_pieces == "free_memory"


def mechanism(scenario: Scenario, smaller: MemoryPrediction, larger: MemoryPrediction) -> str | None:
    """The entry of ``known_falls.toml`` that a fall of reserved bytes belongs to, by what the report shows of both jobs."""
    if loss_is_cut(scenario) and logits(larger) < logits(smaller):
        return "loss_by_free_memory"
    lost = float(smaller.reserved_peak_bytes) - float(larger.reserved_peak_bytes)
    if labelled(smaller, LENGTH_CACHE) - labelled(larger, LENGTH_CACHE) > lost / 2:
        return "length_cache"
    top = float(smaller.phases[-1].reserved_bytes)
    phase = next(peak.phase for peak in smaller.phases if float(peak.reserved_bytes) >= top * (1 - ROUNDING))
    if phase == "optimizer_step":
        return "step_of_deepspeed" if scenario.recipe.uses_deepspeed else "first_optimizer_step"
    if phase in ("loss", "loss_2") and scenario.recipe.attention == "eager":
        return "logits_in_blocks_of_scores"
    return None


def needed_fall(smaller: MemoryPrediction, larger: MemoryPrediction) -> float:
    """The share by which the larger job needs less."""
    return fall(float(smaller.must_have_bytes), float(larger.must_have_bytes))


def why_less_is_needed(scenario: Scenario, smaller: MemoryPrediction, larger: MemoryPrediction) -> str | None:
    """The entry of ``known_falls.toml`` that a fall of needed or allocated bytes belongs to."""
    if loss_is_cut(scenario) and logits(larger) < logits(smaller):
        return "loss_by_free_memory"
    return None if allocated_fall(smaller, larger) > ROUNDING else "fragments_of_another_moment"


@MANY
@given(jobs(), st.sampled_from((1, 5, 16)))
def test_a_larger_job_allocates_and_needs_less_by_known_mechanisms_only(flags: Flags, batch: int) -> None:
    """Allocated and needed bytes never fall with batch or length, else by a mechanism that is listed, and as far as listed."""
    base = resolve(from_flags(flags))
    for ladder in ladders(base, batch):
        for smaller, larger in pairwise(memory(each) for each in ladder):
            share = max(allocated_fall(smaller, larger), needed_fall(smaller, larger))
            if share > ROUNDING:
                name = why_less_is_needed(base, smaller, larger)
                assert name is not None, f"a fall of {share:.1%} by no mechanism that is listed"
                assert not is_more_than_known(name, share), f"{name}: a fall of {share:.1%}"


def allocated_fall(smaller: MemoryPrediction, larger: MemoryPrediction) -> float:
    """The share by which the larger job allocates less."""
    return fall(float(smaller.allocated_peak_bytes), float(larger.allocated_peak_bytes))


def is_more_than_known(name: str, share: float) -> bool:
    """Whether a fall is larger than the largest that is known of its mechanism."""
    return share > float(KNOWN[name]["most_percent"]) / 100


@MANY
@given(jobs(), st.sampled_from((1, 5, 16)))
def test_a_larger_job_reserves_less_by_known_mechanisms_only(flags: Flags, batch: int) -> None:
    """Reserved bytes fall by 2 % at most with batch or length, else by a mechanism that is listed, and as far as listed."""
    base = resolve(from_flags(flags))
    for ladder in ladders(base, batch):
        for smaller, larger in pairwise(memory(each) for each in ladder):
            if (share := reserved_fall(smaller, larger)) > FREE_FALL:
                name = mechanism(base, smaller, larger)
                assert name is not None, f"a fall of {share:.1%} by no mechanism that is listed"
                assert not is_more_than_known(name, share), f"{name}: a fall of {share:.1%}"


def by_offload(scenario: Scenario) -> str | None:
    """The entry of ``known_falls.toml`` that a job belongs to which takes more with its offload than without."""
    recipe = scenario.recipe
    if recipe.offload == "activations":
        return {"unsloth": "inputs_on_their_way", "trl": "last_inputs_in_backward"}.get(scenario.stack.id)
    if recipe.offloads_params:
        return "parameters_on_their_way" if recipe.uses_deepspeed and scenario.hardware.world_size == 1 else None
    return "gradients_on_their_way" if recipe.uses_deepspeed else None


def most_taken_more(scenario: Scenario, plain: Scenario) -> float:
    """The largest share of any level by which the scenario takes more than the ``plain`` one."""
    first, second = memory(scenario), memory(plain)
    levels = ("allocated_peak_bytes", "reserved_peak_bytes", "must_have_bytes")
    return max(fall(float(getattr(first, level)), float(getattr(second, level))) for level in levels)


OFFLOADS = tuple(engine for engine in CHOICES["engine"] if engine[1] != "none")


@MANY
@given(st.sampled_from(OFFLOADS).flatmap(lambda engine: jobs(engine=engine)), st.sampled_from((1, 16, 96)))
def test_offload_takes_more_by_known_mechanisms_only(flags: Flags, batch: int) -> None:
    """With offload a job takes no more GPU memory than without, at any level, else by a mechanism and as far as listed."""
    moved, plain = (resolve(from_flags({**flags, "batch": batch, **more})) for more in ({}, {"offload": "none"}))
    if (share := most_taken_more(moved, plain)) > FREE_RISE:
        name = by_offload(moved)
        assert name is not None, f"{share:.1%} more by no mechanism that is listed"
        assert not is_more_than_known(name, share), f"{name}: {share:.1%} more"


def counted() -> Counter[str]:
    """Falls of the fixed sample by mechanism."""
    found: Counter[str] = Counter()
    for flags in sample(500):
        base = resolve(from_flags(flags))
        for ladder in ladders(base, 5):
            for smaller, larger in pairwise(memory(each) for each in ladder):
                if reserved_fall(smaller, larger) > FREE_FALL:
                    found[str(mechanism(base, smaller, larger))] += 1
        if base.recipe.offload != "none" and most_taken_more(base, resolve(from_flags({**flags, "offload": "none"}))) > FREE_RISE:
            found[str(by_offload(base))] += 1
    return found


def test_no_more_falls_than_counted() -> None:
    """A mechanism has no more falls in the fixed sample than its entry counts."""
    known = {name: entry["count"] for name, entry in KNOWN.items()}
    assert {name: count for name, count in counted().items() if count > known.get(name, 0)} == {}


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_listed_still_occurs(name: str) -> None:
    """The case of each entry falls by its own mechanism: one that no longer does is taken from the list."""
    entry = KNOWN[name]
    smaller, larger = (resolve(from_flags({**entry["job"], **entry[size]})) for size in ("smaller", "larger"))
    before, after = memory(smaller), memory(larger)
    share, free, found = {
        "any": (most_taken_more(smaller, larger), FREE_RISE, by_offload(smaller)),
        "needed": (needed_fall(before, after), ROUNDING, why_less_is_needed(smaller, before, after)),
        "reserved": (reserved_fall(before, after), FREE_FALL, mechanism(smaller, before, after)),
    }[entry["level"]]
    assert share > free
    assert found == name
    assert not is_more_than_known(name, share)


@MANY
@given(jobs(), st.sampled_from((1, 5, 16)), st.integers(0, 9), st.floats(0.7, 1.4))
def test_a_larger_job_is_never_likelier_to_fit(flags: Flags, batch: int, rung: int, room: float) -> None:
    """Verdict and P(fits) never improve with batch or length, on a card about as large as some size needs."""
    base = resolve(from_flags(flags))
    for ladder in ladders(base, batch):
        need = float(memory(ladder[rung % len(ladder)]).must_have_bytes)
        answers = [predict_with(on_card(each, int(need * room)), CALIBRATED) for each in ladder]
        for smaller, larger in pairwise(answers):
            # Where less is needed, it is by a mechanism that is listed (see above), and then the chance is right to rise.
            if needed_fall(smaller.memory, larger.memory) <= ROUNDING:
                assert_no_better(smaller, larger)


def assert_no_better(smaller: Prediction, larger: Prediction) -> None:
    """The larger job has no better verdict and no better chance."""
    assert RANK[larger.verdict] >= RANK[smaller.verdict]
    assert smaller.fits_probability is not None
    assert larger.fits_probability is not None
    assert larger.fits_probability <= smaller.fits_probability + ROUNDING


@FEW
@given(jobs(), st.sampled_from(("batch", "seq")), st.sampled_from(("rtx4090", "a100-80gb", "h200-sxm")))
def test_what_is_solved_for_fits_and_the_next_does_not(flags: Flags, quantity: str, card: str) -> None:
    """``planner.search(solve=...)`` names a size that ``planner.estimate`` lets fit, and does not fit one step above it."""
    said: Flags = {**flags, "gpu": card + flags["gpu"].removeprefix("a100-80gb"), "tokens_per_sample": None}
    said = {name: value for name, value in said.items() if name != quantity and value is not None}
    found = planner.search(**said, solve=quantity, top=1)
    step = 1 if quantity == "batch" else 64
    for row in found.rows[:1]:
        told: Flags = dict(row.flags)
        above: Flags = {**told, quantity: int(told[quantity]) + step}
        assert planner.estimate(**told).fits
        if quantity == "batch" or above["seq"] <= context(told):
            assert not planner.estimate(**above).fits
    if not found.rows:
        least = {"batch": 1, "seq": 64}[quantity]
        assert not planner.estimate(**{**said, quantity: least}).fits


def context(flags: Flags) -> int:
    """Positions that the model was made for."""
    return resolve(from_flags({**flags, "seq": 64})).model.max_position_tokens or 0
