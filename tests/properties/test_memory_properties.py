"""What must hold for the memory of any job: monotone in its sizes, equal to its terms,
shards that add up, finite everywhere.

What a job asks for is compared without a replay,
which rounds it to blocks (``test_size_properties.py`` has those).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from planner.catalog.hf_config import model_from_config
from planner.catalog.location import data_dir
from planner.domain.prediction import MemoryPrediction
from planner.domain.recipes.attention_kernels import ATTENTIONS
from planner.domain.recipes.flat_recipe import with_flat
from planner.domain.recipes.optimizers import OPTIMIZERS
from planner.domain.recipes.recipe import LOSSES, PADDINGS
from planner.domain.scenario import Scenario
from planner.domain.term import ALLOCATED_TERMS, DRIVER_TERMS, PHASES, RESERVED_TERMS
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import RefusedCombinationError
from planner.memory.certain import certain_bytes, least_certain_bytes
from planner.memory.quick import predict_quick
from planner.memory.replayed_peak import predict_replayed
from planner.memory.structures import program_of
from planner.predicting import estimate, is_too_large, predict_with
from planner.program.head.loss_pieces import piece_tokens
from planner.program.job import Job, job_of
from planner.program.ops.sizes import unit_values
from planner.program.step import step_of
from planner.records.calibration_file import DEFAULT_CALIBRATION, find_calibration
from planner.searching.variants import with_flags, with_sizes
from planner.units import GIB
from planner.words import words
from tests.jobs import resolved, typed

# `make explore` draws anew, and four times as many.
PROPERTY = settings(max_examples=15 if settings().derandomize else 100)
PRIORS = Coefficients()
# Of each kind; a replay of more takes longer and shows the same.
LAYERS = 3
# Rounding of sums of floats; quantities are up to 1e14 bytes.
ROUNDING = 1e-12

MODELS = words(
    "7b qwen2.5-0.5b gemma-2-2b baichuan2-7b bloom-3b phi-2 mixtral-8x7b deepseek-v2-lite qwen2.5-14b"
)
WHOLE_STATES = tuple(
    name for name in OPTIMIZERS if not any(kind in name for kind in ("8bit", "4bit", "paged"))
)
STACKS = ("hf-trainer@4", "hf-trainer@5", "trl", "unsloth", "qwen-finetune", "llama-factory", "torchtune")
METHODS = ("full", "lora", "qlora", "int8")
ENGINES = (
    ("none", "none"),
    ("ddp", "none"),
    ("zero1", "none"),
    ("zero2", "none"),
    ("zero2", "optimizer"),
    ("zero3", "none"),
    ("zero3", "optimizer"),
    ("zero3", "optimizer+params"),
    ("fsdp", "none"),
    ("hsdp", "none"),
)
WITHOUT_ZERO = st.sampled_from(
    [{"sharding": name, "offload": offload} for name, offload in ENGINES if not name.startswith("zero")]
)


Flags = dict[str, Any]


@st.composite
def jobs(draw: st.DrawFn, **fixed: Any) -> Flags:
    """Flags of any job that the rules let through, over models, methods, stacks, engines and kernels."""
    sharding, offload = draw(st.sampled_from(ENGINES))
    gpus = 1 if sharding == "none" else draw(st.sampled_from((1, 2, 8)))
    flags: dict[str, Any] = {
        "model": draw(st.sampled_from(MODELS)),
        "method": draw(st.sampled_from(METHODS)),
        "gpu": f"a100-80gb:{gpus}",
        "nodes": draw(st.sampled_from(("1", "2"))) if gpus > 1 else "1",
        "stack": draw(st.sampled_from(STACKS)),
        "sharding": sharding,
        "offload": offload,
        "optimizer": draw(st.sampled_from(OPTIMIZERS)),
        "attention": draw(st.sampled_from(ATTENTIONS)),
        "loss": draw(st.sampled_from(LOSSES)),
        "padding": draw(st.sampled_from(PADDINGS)),
        "gradient_checkpointing": draw(st.booleans()),
        "checkpoint_reentrant": draw(st.booleans()),
        "batch": draw(st.integers(1, 64)),
        "seq": draw(st.integers(16, 2048)),
        "grad_accum": draw(st.sampled_from((1, 4))),
        **fixed,
    }
    if flags["method"] != "full":
        flags["lora_rank"] = draw(st.integers(1, 256))
        flags["lora_dropout"] = draw(st.sampled_from((0.0, 0.1)))
        if draw(st.booleans()):
            flags["modules_to_save"] = "lm_head"
    try:
        resolved(flags)
    except RefusedCombinationError:
        assume(False)
    return flags


def job(scenario: Scenario) -> Job:
    """The job with a few layers of each kind, on a card without a limit."""
    unlimited = replace(scenario.hardware, gpu=replace(scenario.hardware.gpu, visible_memory_bytes=None))
    groups = tuple(replace(group, count=min(group.count, LAYERS)) for group in scenario.model.groups)
    return job_of(replace(scenario, hardware=unlimited, model=replace(scenario.model, groups=groups)), PRIORS)


def memory(scenario: Scenario) -> MemoryPrediction:
    """Memory of one scenario."""
    return predict_replayed(job(scenario), minimum_too=False)


def most_of(made: MemoryPrediction, name: str) -> float:
    """Bytes of a term in the phase that has most of it."""
    return max(
        sum(float(term.n_bytes) for term in made.terms if term.name == name and phase in term.phases)
        for phase in PHASES
    )


def with_rank(scenario: Scenario, rank: int) -> Scenario:
    """The scenario with adapters of another rank."""
    return replace(scenario, recipe=with_flat(scenario.recipe, {"lora_rank": rank}))


def assert_asks_for_no_less(smaller: Scenario, larger: Scenario) -> None:
    """At its fullest moment ``larger`` asks for at least as much."""
    below, above = (float(predict_quick(job(each)).allocated_peak_bytes) for each in (smaller, larger))
    assert above >= below * (1 - ROUNDING), f"{below / GIB:.4f} to {above / GIB:.4f} GiB"


def limiting_phase(scenario: Scenario) -> str:
    """The phase that asks for most."""
    return predict_quick(job(scenario)).limiting_phase


def most_after_loading(scenario: Scenario) -> float:
    """What the fullest moment of all steps asks for."""
    phases = predict_quick(job(scenario)).phases
    return max(float(each.allocated_bytes) for each in phases if each.phase not in ("load", "adapters"))


def sized(scenario: Scenario, *, batch: int | None = None, length: int | None = None) -> Scenario:
    """The scenario with another batch or length; every sample fills its length."""
    old = scenario.recipe.batch
    length = int(old.seq_len) if length is None else length
    return with_sizes(scenario, old.micro_batch if batch is None else batch, length, length)


@PROPERTY
@given(jobs(), st.integers(1, 64), st.integers(0, 4096))
def test_more_samples_and_longer_ones_never_ask_for_less(flags: Flags, more: int, longer: int) -> None:
    """More tokens per micro-step never ask for less, but where the loss then comes in smaller pieces."""
    scenario = resolved(flags)
    batch, length = int(scenario.recipe.batch.micro_batch), int(scenario.recipe.batch.seq_len)
    smaller = sized(scenario, length=length)
    larger = sized(scenario, batch=batch + more, length=length + longer)
    assume(float(piece_tokens(job(larger))) >= float(piece_tokens(job(smaller))))
    assert_asks_for_no_less(smaller, larger)


@PROPERTY
@given(
    st.tuples(WITHOUT_ZERO, st.sampled_from(WHOLE_STATES)).flatmap(
        lambda drawn: jobs(method="lora", optimizer=drawn[1], **drawn[0])
    ),
    st.integers(1, 256),
)
def test_a_higher_rank_never_asks_for_less(flags: Flags, more: int) -> None:
    """A higher rank never asks for less, except across five thresholds: the sizes of 8-bit and of paged
    states, ZeRO-3's persistence, where one process's part of the gradients ends, and where DDP's copies end.
    """
    scenario = resolved(flags)
    assert scenario.recipe.adapter is not None
    larger = with_rank(scenario, int(scenario.recipe.adapter.rank) + more)
    if scenario.recipe.sharding.name == "ddp" and limiting_phase(scenario) == "adapters":
        below, above = (most_after_loading(each) for each in (scenario, larger))
        assert above >= below * (1 - ROUNDING), f"{below / GIB:.4f} to {above / GIB:.4f} GiB"
    else:
        assert_asks_for_no_less(scenario, larger)


@PROPERTY
@given(
    WITHOUT_ZERO.flatmap(lambda engine: jobs(method="lora", optimizer="adamw_8bit", **engine)),
    st.integers(1, 256),
)
def test_eight_bit_states_fall_with_rank_only_at_their_threshold(flags: Flags, more: int) -> None:
    """With every adapter tensor above the threshold at both ranks, the 8-bit optimizer is monotone too.

    ZeRO-3 meets the persistence threshold as well, and parts of gradients end elsewhere.
    """
    scenario = resolved(flags)
    assert scenario.recipe.adapter is not None
    narrowest = min(
        min(linear.in_features, linear.out_features)
        for group in scenario.model.groups
        for linear in group.block.linears
    )
    rank = max(int(scenario.recipe.adapter.rank), math.ceil(4096 / narrowest))
    assert_asks_for_no_less(with_rank(scenario, rank), with_rank(scenario, rank + more))


def test_a_part_of_the_gradients_may_be_smaller_at_a_higher_rank() -> None:
    """ZeRO-2: a gradient that two processes share counts whole for both.  Parts that end elsewhere may have
    one large gradient less, here of the head that is trained whole.
    """
    flags = typed(
        "--model gemma-2-2b --method lora --gpu a100-80gb:8 --stack hf-trainer@4 --sharding zero2 "
        "--optimizer adamw_8bit --attention eager --padding packed --no-gradient-checkpointing --batch 1 "
        "--seq 16 --grad-accum 4 --modules-to-save lm_head"
    )
    base = resolved(flags)
    lower, higher = (memory(with_rank(base, rank)) for rank in (116, 282))
    assert most_of(higher, "gradients") < most_of(lower, "gradients")
    assert all(
        most_of(higher, name) > most_of(lower, name)
        for name in ("adapters", "master_weights", "optimizer_states")
    )


def test_copies_of_ddp_may_be_smaller_at_a_higher_rank() -> None:
    """DDP joins tensors to copies before it makes them equal on every GPU.  Adapters of another rank end a
    copy elsewhere, and the two largest in a row may then be smaller by more than adapters grow.
    """
    base = resolved(
        "--model qwen2.5-14b --method lora --gpu a100-80gb:2 --sharding ddp --seq 16 --batch 1 --lora-rank 1"
    )
    lower, higher = (memory(with_rank(base, rank)) for rank in (1, 249))
    assert lower.limiting_phase == higher.limiting_phase == "adapters"
    assert float(higher.allocated_peak_bytes) < float(lower.allocated_peak_bytes)
    assert most_of(higher, "other_temporaries") < most_of(lower, "other_temporaries")
    assert most_of(higher, "adapters") > most_of(lower, "adapters")


def test_the_eight_bit_threshold_is_real() -> None:
    """One rank more can need less:
    at 4,096 elements a tensor's states shrink from 8 bytes per element to 2.
    """
    base = resolved(
        "--model qwen2.5-0.5b --method lora --gpu 4090 --seq 16 --optimizer adamw_8bit --lora-rank 4"
    )
    states = [most_of(memory(with_rank(base, rank)), "optimizer_states") for rank in (4, 5)]
    assert states[1] < states[0]


@PROPERTY
@given(jobs(sharding="none", offload="none", nodes="1", gpu="a100-80gb", quantization="none"))
def test_wider_weights_never_ask_for_less(flags: Flags) -> None:
    """Loading the weights in fp32 instead of bf16 never asks for less.

    But with Adafactor, which makes fp32 copies of a 16-bit weight and of its gradient (transformers 5.23
    optimization.py ``Adafactor.step``): those of a large token table are more than is saved.
    """
    scenario = resolved(flags)
    assume(scenario.recipe.optimizer != "adafactor")
    assume(scenario.recipe.numerics.quantization == "none")
    assume(scenario.recipe.numerics.precision == "bf16-mixed")
    narrow, wide = with_flags(scenario, {"load-dtype": "bf16"}), with_flags(scenario, {"load-dtype": "fp32"})
    assert_asks_for_no_less(narrow, wide)


# The engine has both in bf16; loaded wide they are flattened at a moment that is not the phase's fullest.
@example(
    typed(
        "--model bloom-3b --method lora --gpu a100-80gb:2 --nodes 2 --sharding zero1 --seq 16 --batch 1 "
        "--no-gradient-checkpointing --lora-rank 9 --modules-to-save lm_head"
    )
)
@PROPERTY
@given(jobs(method="lora"))
def test_wider_adapters_never_hold_less(flags: Flags) -> None:
    """Adapters in fp32 and their optimizer states are never smaller than in bf16 when the step ends.

    The total may fall by megabytes: an input that has the adapter's dtype needs no copy of its own.  So may
    what adapters take at the fullest moment of a phase, which is another one.
    """
    scenario = resolved(flags)
    narrow, wide = (memory(with_flags(scenario, {"adapter-dtype": dtype})) for dtype in ("bf16", "fp32"))
    assert wide.state_bytes >= narrow.state_bytes


@PROPERTY
@given(jobs())
def test_no_job_asks_for_less_than_is_certain(flags: Flags) -> None:
    """Weights, states and gradients by their counts are a lower bound, whatever the engine and optimizer."""
    one = job(resolved(flags))
    certain = float(sum(certain_bytes(one).values()))
    assert certain <= float(predict_quick(one).allocated_peak_bytes) * (1 + ROUNDING)


@PROPERTY
@given(jobs(), st.floats(0.2, 1.2))
def test_what_is_too_large_does_not_fit(flags: Flags, share: float) -> None:
    """What a search says of a job by what is certain is what its reading says, on a card of any size."""
    scenario = resolved(flags)
    calibration = find_calibration(DEFAULT_CALIBRATION, data_dir() / "calibration")
    room = int(share * float(least_certain_bytes(job_of(scenario, PRIORS))))
    gpu = replace(scenario.hardware.gpu, visible_memory_bytes=room)
    smaller = replace(scenario, hardware=replace(scenario.hardware, gpu=gpu))
    for model in (calibration, PRIORS):
        verdict = predict_with(smaller, model, quick=True).verdict
        assert verdict == "does_not_fit" or not is_too_large(smaller, model)


@PROPERTY
@given(jobs())
def test_the_total_equals_its_terms(flags: Flags) -> None:
    """Allocated is the sum of what lives in the limiting phase; reserved adds the slack,
    driver what is outside the allocator.
    """
    made = memory(resolved(flags))
    by_phase = {
        phase: sum(
            float(term.n_bytes)
            for term in made.terms
            if term.name in ALLOCATED_TERMS and phase in term.phases
        )
        for phase in PHASES
    }
    # Paged states may make another phase the fullest of the card than the one in which most is allocated.
    limiting = next(each for each in made.phases if each.phase == made.limiting_phase)
    assert by_phase[made.limiting_phase] == pytest.approx(float(limiting.allocated_bytes), rel=ROUNDING)
    assert max(by_phase.values()) == pytest.approx(float(made.allocated_peak_bytes), rel=ROUNDING)
    slack = sum(float(term.n_bytes) for term in made.terms if term.name in RESERVED_TERMS)
    outside = sum(float(term.n_bytes) for term in made.terms if term.name in DRIVER_TERMS)
    assert float(made.reserved_peak_bytes) == pytest.approx(
        float(made.allocated_peak_bytes) + slack, rel=ROUNDING
    )
    assert float(made.driver_peak_bytes) == pytest.approx(
        float(made.reserved_peak_bytes) + outside, rel=ROUNDING
    )
    for peak in made.phases:
        assert float(peak.allocated_bytes) == pytest.approx(by_phase[peak.phase], rel=ROUNDING), peak.phase


# A norm behind the embeddings is none of FSDP's last group.
@example(
    {"model": "bloom-3b", "method": "full", "gpu": "a100-80gb:2", "sharding": "fsdp", "seq": 16, "batch": 1}
)
@PROPERTY
@given(jobs())
def test_every_term_is_finite_and_not_negative(flags: Flags) -> None:
    """No term of GPU, host or time is below zero, infinite or NaN, and each names phases and a formula."""
    scenario = resolved(flags)
    made = estimate(job(scenario).scenario)
    for term in (*made.memory.terms, *made.host.terms):
        assert math.isfinite(term.n_bytes), term
        assert term.n_bytes >= 0, term
        assert term.formula.startswith("planner."), term
    assert all(term.phases for term in made.memory.terms)
    assert made.time is not None
    for part in made.time.terms:
        assert math.isfinite(part.seconds), part
        assert 0 <= part.overlapped_s <= part.seconds * (1 + ROUNDING), part
    assert made.time.step_s > 0
    assert made.time.mfu is None or 0 < made.time.mfu < 1


@PROPERTY
@given(jobs(gpu="a100-80gb:8", nodes="1", sharding="ddp", offload="none", quantization="none"))
def test_shards_sum_to_the_whole(flags: Flags) -> None:
    """What ZeRO-3 leaves on each of 8 GPUs is an eighth of what one process holds, for weights,
    masters and states.
    """
    scenario = resolved(flags)
    assume(scenario.recipe.numerics.quantization == "none")
    assume(scenario.recipe.numerics.precision.endswith("-mixed"))
    # Its states stay as wide as the parameters where a part is no multiple of its blocks of 256 elements.
    assume(scenario.recipe.optimizer not in ("adamw_torch_8bit", "adamw_torch_4bit"))
    of_all = with_flags(scenario, {"sharding": "zero3"})
    one = replace(of_all, hardware=replace(of_all.hardware, gpus_per_node=1))
    part, whole = (float(predict_quick(job(each)).state_bytes) for each in (of_all, one))
    # Parts are padded to the same number of elements.
    assert 8 * part == pytest.approx(whole, rel=0.01)


@PROPERTY
@given(jobs(gpu="a100-80gb:8", nodes="1", sharding="ddp", offload="none"))
def test_zero_1_and_zero_2_divide_states_alike(flags: Flags) -> None:
    """Gradients alone are divided earlier by ZeRO-2."""
    scenario = resolved(flags)
    assume(scenario.recipe.numerics.precision.endswith("-mixed"))
    first, second = (
        predict_quick(job(with_flags(scenario, {"sharding": name}))) for name in ("zero1", "zero2")
    )
    assert float(second.state_bytes) == pytest.approx(float(first.state_bytes), rel=ROUNDING)


@PROPERTY
@given(jobs())
def test_a_remembered_program_is_that_of_the_job(flags: Flags) -> None:
    """Programs are remembered without sizes:
    no two jobs that need different ones are taken for each other.
    """
    made = job(resolved(flags))
    own, remembered = step_of(made), program_of(made)
    values = {unit: float(count) for unit, count in unit_values(made).items()}
    assert remembered.events == own.events
    assert remembered.sizes(values) == own.sizes(values)


def test_a_trillion_parameters() -> None:
    """A mixture of experts with a trillion parameters: bf16 weights alone are 2 TB,
    and no card holds that.
    """
    config = {
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 1,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "vocab_size": 163840,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    model = model_from_config(config, "a trillion")
    assert 0.95e12 < model.param_count < 1.1e12
    base = resolved({"model": "7b", "method": "lora", "gpu": "b200:8", "seq": 4096})
    made = estimate(replace(base, model=model))
    assert made.verdict == "does_not_fit"
    assert made.memory.must_have_bytes > 2 * model.param_count
    on_many = replace(base, model=model, hardware=replace(base.hardware, nodes=32))
    sharded = with_flags(on_many, {"sharding": "zero3", "gradient-checkpointing": True})
    assert estimate(sharded).memory.must_have_bytes < 0.1 * made.memory.must_have_bytes


def test_a_small_card() -> None:
    """On 8 GiB a 0.5B model trains with LoRA, and a 7B model does not even load in 16 bits."""
    common = {"method": "lora", "gpu_memory": "8GiB", "seq": 512, "gradient_checkpointing": True}
    assert estimate(resolved({"model": "qwen2.5-0.5b", **common})).verdict == "fits"
    large = estimate(resolved({"model": "7b", **common}))
    assert large.verdict == "does_not_fit"
    load = next(peak for peak in large.memory.phases if peak.phase == "load")
    assert load.allocated_bytes > 8 * GIB


def test_a_million_tokens() -> None:
    """A million tokens in one sample: linear with a fused kernel, quadratic with eager attention;
    neither fits one card.
    """
    common = typed("--model 7b --method lora --gpu h100-sxm --gradient-checkpointing --padding packed")
    half, whole = (
        estimate(resolved({**common, "seq": tokens, "attention": "flash2"}))
        for tokens in (524_288, 1_048_576)
    )
    assert whole.verdict == "does_not_fit"
    assert 1.5 < whole.memory.must_have_bytes / half.memory.must_have_bytes <= 2
    eager = estimate(resolved({**common, "seq": 1_048_576, "attention": "eager"}))
    # 32 heads of 2^40 scores in fp32 are 128 TiB; one block of them lives while it is rebuilt.
    assert eager.memory.must_have_bytes > 128 * 1024 * GIB
    assert eager.time is not None
    assert math.isfinite(eager.time.step_s)
