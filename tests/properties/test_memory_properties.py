"""What must hold for the memory of any job: monotone in its sizes, equal to its terms, shards that add up, finite everywhere."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.anatomy import block
from planner.anatomy.adapters import adapter_shapes
from planner.anatomy.lines import highest
from planner.catalog.hf_config import model_from_config
from planner.domain.coefficients import Coefficients
from planner.domain.prediction import MemoryPrediction
from planner.domain.recipe import ATTENTIONS, LOSSES, OPTIMIZERS, PADDINGS
from planner.domain.scenario import Scenario
from planner.domain.term import ALLOCATED_TERMS, DRIVER_TERMS, PHASES, RESERVED_TERMS
from planner.errors import RefusedCombinationError
from planner.intake.request import from_flags
from planner.intake.resolve import resolve
from planner.memory import runtime
from planner.memory.cache import served_share, small_pool_leftover_bytes
from planner.memory.peak import predict_memory
from planner.memory.sharding import persistent_parameter_bytes
from planner.prediction import estimate
from planner.program.job import job_of
from planner.searching.variants import with_flags, with_rank, with_sizes
from planner.units import GIB, MIB

PROPERTY = settings(deadline=None, max_examples=80)
PRIORS = Coefficients()
# The fields of a ledger of which the highest line counts.
PEAKS = ("forward", "rebuilt", "plain", "backward", "growing", "adding")
# Rounding of sums of floats; quantities are up to 1e14 bytes.
ROUNDING = 1e-12

MODELS = (
    "7b",
    "qwen2.5-0.5b",
    "gemma-2-2b",
    "baichuan2-7b",
    "bloom-3b",
    "phi-2",
    "mixtral-8x7b",
    "deepseek-v2-lite",
    "qwen2.5-14b",
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
WITHOUT_ZERO3 = st.sampled_from([{"sharding": name, "offload": offload} for name, offload in ENGINES if name != "zero3"])


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
        resolve(from_flags(flags))
    except RefusedCombinationError:
        assume(False)
    return flags


def memory(scenario: Scenario) -> MemoryPrediction:
    """Memory of one scenario on a card without a limit."""
    unlimited = replace(scenario.hardware, gpu=replace(scenario.hardware.gpu, visible_memory_bytes=None))
    return predict_memory(job_of(replace(scenario, hardware=unlimited), PRIORS))


def levels(scenario: Scenario) -> dict[str, float]:
    """The totals that people compare: allocated, reserved, driver, and what must be held at once."""
    made = memory(scenario)
    return {
        "allocated": float(made.allocated_peak_bytes),
        "reserved": float(made.reserved_peak_bytes),
        "driver": float(made.driver_peak_bytes),
        "must have": float(made.must_have_bytes),
    }


def assert_no_level_falls(smaller: Scenario, larger: Scenario, *, tensors_only: bool = False) -> None:
    """Every total of ``larger`` is at least that of ``smaller``; with ``tensors_only`` those without the allocator's slack."""
    below, above = levels(smaller), levels(larger)
    for name, amount in below.items():
        if tensors_only and name in ("reserved", "driver"):
            continue
        assert above[name] >= amount * (1 - ROUNDING), f"{name} falls from {amount / GIB:.4f} to {above[name] / GIB:.4f} GiB"


def assume_same_pool(*scenarios: Scenario) -> None:
    """Leave out a rank that lifts an adapter tensor above 1 MiB, where it leaves the pool of small blocks."""
    for shapes in zip(*(_adapter_tensor_bytes(scenario) for scenario in scenarios), strict=True):
        assume(len({size <= MIB for size in shapes}) == 1)


def _adapter_tensor_bytes(scenario: Scenario) -> list[float]:
    job = job_of(scenario, PRIORS)
    adapter = scenario.recipe.adapter
    assert adapter is not None
    size = float(adapter.rank) * job.regime.adapter / float(job.gradient_shards)
    return [size * ranks * width for ranks, width, _ in adapter_shapes(scenario.model, adapter.targets)]


def sized(scenario: Scenario, *, batch: int | None = None, length: int | None = None) -> Scenario:
    """The scenario with another batch or length; every sample fills its length."""
    old = scenario.recipe.batch
    length = int(old.seq_len) if length is None else length
    return with_sizes(scenario, old.micro_batch if batch is None else batch, length, length)


def step_outgrows_passes(scenario: Scenario) -> bool:
    """Whether the step of DeepSpeed allocates blocks that no cached block of the passes can serve."""
    job = job_of(scenario, PRIORS)
    return bool(runtime.reserved_in_step_bytes(job, 1, 1))


def cache_serves_more(smaller: Scenario, larger: Scenario) -> bool:
    """Whether blocks of the passes serve a step of the larger job that those of the smaller one were too small for."""
    shares = [float(served_share(job_of(each, PRIORS))) for each in (smaller, larger)]
    return step_outgrows_passes(smaller) != step_outgrows_passes(larger) or shares[0] != shares[1]


def has_pieces_by_free_memory(scenario: Scenario) -> bool:
    """Whether more tokens may need less, because the loss then takes them in more pieces (``known_falls.toml`` has the cases)."""
    return scenario.recipe.loss == "chunked" and scenario.stack.loss_pieces == "free_memory"


@PROPERTY
@given(jobs(), st.integers(1, 64))
def test_a_larger_batch_never_needs_less(flags: Flags, more: int) -> None:
    """More samples per micro-step, never less memory at any level.

    Documented thresholds: where logits outgrow the blocks of DeepSpeed's step, or activations the matrices whose states torch's
    optimizer makes, their cache serves the step and less is reserved.
    """
    scenario = resolve(from_flags(flags))
    assume(not has_pieces_by_free_memory(scenario))
    batch = int(scenario.recipe.batch.micro_batch)
    smaller, larger = sized(scenario, batch=batch), sized(scenario, batch=batch + more)
    assert_no_level_falls(smaller, larger, tensors_only=cache_serves_more(smaller, larger))


def test_reserved_does_not_fall_where_another_moment_of_the_backward_is_the_largest() -> None:
    """With more activations the start of a backward overtakes its end, and the blocks that the end leaves idle still count."""
    flags = {"model": "7b", "method": "lora", "gpu": "a100-80gb:8", "stack": "trl", "sharding": "zero2", "attention": "eager"}
    base = resolve(from_flags({**flags, "padding": "packed", "seq": 17, "lora_rank": 1, "modules_to_save": "lm_head"}))
    assert_moment_changes(sized(base, batch=6), sized(base, batch=8), "saved, first backward")


def test_reserved_does_not_fall_where_the_pool_of_gradients_is_idle() -> None:
    """Where the start of a backward is the largest, the gradients' own pool is idle beside it."""
    flags = {"model": "qwen2.5-0.5b", "method": "lora", "gpu": "a100-80gb", "stack": "torchtune", "sharding": "fsdp", "batch": 30}
    kernels = {"attention": "eager", "loss": "liger", "optimizer": "adamw_torch", "padding": "packed"}
    base = resolve(from_flags({**flags, **kernels, "seq": 92, "lora_rank": 108, "checkpoint_reentrant": False}))
    assert_moment_changes(base, with_rank(base, 109), "gradients, first backward")


def test_reserved_does_not_fall_where_autocast_has_ended() -> None:
    """Where the end of the forward overtakes the loss's backward, the copies of weights that it holds are reserved in both."""
    flags = {"model": "qwen2.5-14b", "method": "lora", "gpu": "a100-80gb", "stack": "hf-trainer@4", "optimizer": "adamw_torch"}
    recipe = {
        "padding": "packed",
        "gradient_checkpointing": True,
        "lora_rank": 200,
        "grad_accum": 4,
        "modules_to_save": "lm_head",
        "checkpoint_reentrant": False,
    }
    base = resolve(from_flags({**flags, **recipe, "seq": 759}))
    assert_moment_changes(base, sized(base, length=1495), "autocast weight copies")


def assert_moment_changes(smaller: Scenario, larger: Scenario, label: str) -> None:
    """The terms called ``label`` differ between the two by more than their sizes do, and still no level falls."""
    held = [[float(term.n_bytes) for term in memory(each).terms if term.label == label] for each in (smaller, larger)]
    assert max(map(sum, held)) > 1.5 * min(map(sum, held)), "the peak is to change its moment between the two"
    assert_no_level_falls(smaller, larger)


@PROPERTY
@given(jobs(), st.integers(1, 4096))
def test_a_longer_sequence_never_needs_less(flags: Flags, more: int) -> None:
    """More tokens per sample, never less memory at any level, with the same thresholds."""
    scenario = resolve(from_flags(flags))
    assume(not has_pieces_by_free_memory(scenario))
    length = int(scenario.recipe.batch.seq_len)
    smaller, larger = sized(scenario, length=length), sized(scenario, length=length + more)
    assert_no_level_falls(smaller, larger, tensors_only=cache_serves_more(smaller, larger))


@PROPERTY
@given(jobs(method="lora"), st.integers(1, 256))
def test_a_higher_rank_never_needs_less(flags: Flags, more: int) -> None:
    """A higher rank never needs less at any level, except across three documented thresholds.

    They are the size of 8-bit states, ZeRO-3's persistence, and the pool of small blocks.
    """
    scenario = resolve(from_flags(flags))
    assume(scenario.recipe.optimizer not in ("adamw_8bit", "paged_adamw_8bit"))
    assume(not scenario.recipe.sharding.is_zero3)
    assert scenario.recipe.adapter is not None
    larger = with_rank(scenario, int(scenario.recipe.adapter.rank) + more)
    assume_same_pool(scenario, larger)
    assert_no_level_falls(scenario, larger)


@PROPERTY
@given(WITHOUT_ZERO3.flatmap(lambda engine: jobs(method="lora", optimizer="adamw_8bit", **engine)), st.integers(1, 256))
def test_eight_bit_states_fall_with_rank_only_at_their_threshold(flags: Flags, more: int) -> None:
    """With every adapter tensor above the threshold at both ranks, the 8-bit optimizer is monotone too.

    ZeRO-3 meets the persistence threshold as well.
    """
    scenario = resolve(from_flags(flags))
    assert scenario.recipe.adapter is not None
    narrowest = min(
        min(linear.in_features, linear.out_features) for group in scenario.model.groups for linear in group.block.linears
    )
    rank = max(int(scenario.recipe.adapter.rank), math.ceil(4096 / narrowest))
    smaller, larger = with_rank(scenario, rank), with_rank(scenario, rank + more)
    assume_same_pool(smaller, larger)
    assert_no_level_falls(smaller, larger)


def test_the_persistence_threshold_is_real() -> None:
    """Under ZeRO-3 one rank more can need less: above 10 x hidden elements a LoRA matrix is divided instead of kept whole."""
    flags = {"model": "7b", "method": "lora", "gpu": "4090:8", "seq": 16, "sharding": "zero3", "lora_rank": 10}
    base = resolve(from_flags(flags))
    kept, divided = (persistent_parameter_bytes(job_of(with_rank(base, rank), Coefficients())) for rank in (10, 11))
    assert divided < kept


def test_the_small_pool_threshold_is_real() -> None:
    """One rank more can reserve less: an adapter tensor above 1 MiB leaves the pool of small blocks, of no use to others."""
    base = resolve(from_flags({"model": "7b", "method": "lora", "gpu": "4090", "seq": 16, "lora_rank": 64}))
    kept, joined = (small_pool_leftover_bytes(job_of(with_rank(base, rank), PRIORS)) for rank in (64, 65))
    assert joined < kept


def test_the_eight_bit_threshold_is_real() -> None:
    """One rank more can need less: at 4,096 elements a tensor's states shrink from 8 bytes per element to 2."""
    base = resolve(
        from_flags(
            {"model": "qwen2.5-0.5b", "method": "lora", "gpu": "4090", "seq": 16, "optimizer": "adamw_8bit", "lora_rank": 4}
        )
    )
    states = [
        float(term.n_bytes) for rank in (4, 5) for term in memory(with_rank(base, rank)).terms if term.name == "optimizer_states"
    ]
    assert states[1] < states[0]


@PROPERTY
@given(jobs(sharding="none", offload="none", nodes="1", gpu="a100-80gb", quantization="none"))
def test_wider_weights_never_need_less(flags: Flags) -> None:
    """Loading the weights in fp32 instead of bf16 never needs less.

    Slack is left out: it depends on which blocks have equal sizes, not on how wide they are.
    """
    scenario = resolve(from_flags(flags))
    assume(scenario.recipe.numerics.quantization == "none")
    assume(scenario.recipe.numerics.precision == "bf16-mixed")
    narrow, wide = with_flags(scenario, {"load-dtype": "bf16"}), with_flags(scenario, {"load-dtype": "fp32"})
    assert_no_level_falls(narrow, wide, tensors_only=True)


@PROPERTY
@given(jobs(method="lora"))
def test_wider_adapters_never_hold_less(flags: Flags) -> None:
    """Adapters in fp32, their gradients and optimizer states are never smaller than in bf16.

    The total may fall by megabytes: an input that has the adapter's dtype needs no copy of its own.
    """
    scenario = resolve(from_flags(flags))
    narrow, wide = (memory(with_flags(scenario, {"adapter-dtype": dtype})) for dtype in ("bf16", "fp32"))
    for name in ("adapters", "gradients", "optimizer_states", "gradient_buckets"):
        held = [sum(float(term.n_bytes) for term in made.terms if term.name == name) for made in (narrow, wide)]
        assert held[1] >= held[0] * (1 - ROUNDING), name


@PROPERTY
@given(jobs())
def test_the_total_equals_its_terms(flags: Flags) -> None:
    """Allocated is the sum of what lives in the limiting phase; reserved adds the slack, driver what is outside the allocator."""
    scenario = resolve(from_flags(flags))
    made = memory(scenario)
    by_phase = {
        phase: sum(float(term.n_bytes) for term in made.terms if term.name in ALLOCATED_TERMS and phase in term.phases)
        for phase in PHASES
    }
    assert by_phase[made.limiting_phase] == pytest.approx(float(made.allocated_peak_bytes), rel=ROUNDING)
    assert max(by_phase.values()) == pytest.approx(float(made.allocated_peak_bytes), rel=ROUNDING)
    slack = sum(float(term.n_bytes) for term in made.terms if term.name in RESERVED_TERMS)
    outside = sum(float(term.n_bytes) for term in made.terms if term.name in DRIVER_TERMS)
    assert float(made.reserved_peak_bytes) == pytest.approx(float(made.allocated_peak_bytes) + slack, rel=ROUNDING)
    assert float(made.driver_peak_bytes) == pytest.approx(float(made.reserved_peak_bytes) + outside, rel=ROUNDING)
    assert {peak.phase: float(peak.allocated_bytes) for peak in made.phases} == pytest.approx(by_phase, rel=ROUNDING)


@PROPERTY
@given(jobs())
def test_every_term_is_finite_and_not_negative(flags: Flags) -> None:
    """No term of GPU, host or time is below zero, infinite or NaN, and each names phases and a formula."""
    scenario = resolve(from_flags(flags))
    made = estimate(scenario)
    for term in (*made.memory.terms, *made.host.terms):
        assert math.isfinite(term.n_bytes), term
        assert term.n_bytes >= 0, term
        assert term.formula.startswith("planner.memory."), term
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
    """What ZeRO-3 leaves on each of 8 GPUs is an eighth of what one process holds, for weights, masters and states."""
    scenario = resolve(from_flags(flags))
    assume(scenario.recipe.numerics.quantization == "none")
    assume(scenario.recipe.numerics.precision.endswith("-mixed"))
    whole = with_flags(scenario, {"sharding": "zero3"})
    one = replace(whole, hardware=replace(whole.hardware, gpus_per_node=1))
    sharded = ("weights", "adapters", "master_weights", "optimizer_states")
    parts, total = memory(whole), memory(one)
    for name in sharded:
        of_all = sum(float(term.n_bytes) for term in parts.terms if term.name == name) * 8
        assert of_all == pytest.approx(sum(float(term.n_bytes) for term in total.terms if term.name == name), rel=ROUNDING), name


@PROPERTY
@given(jobs(gpu="a100-80gb:8", nodes="1", sharding="ddp", offload="none"))
def test_sharding_more_never_holds_more_of_what_it_shards(flags: Flags) -> None:
    """ZeRO-1 and ZeRO-2 divide states alike; in backward ZeRO-1 has whole gradients, in the step both have their share."""
    scenario = resolve(from_flags(flags))
    assume(scenario.recipe.numerics.precision.endswith("-mixed"))
    held = []
    for sharding in ("zero1", "zero2"):
        made = memory(with_flags(scenario, {"sharding": sharding}))
        labels = ("optimizer states", "gradients", "gradients, first backward")
        held.append({name: sum(float(t.n_bytes) for t in made.terms if t.label == name) for name in labels})
    assert held[1]["optimizer states"] == pytest.approx(held[0]["optimizer states"], rel=ROUNDING)
    assert held[1]["gradients"] == pytest.approx(held[0]["gradients"], rel=ROUNDING)
    assert held[1]["gradients, first backward"] <= held[0]["gradients, first backward"]


@PROPERTY
@given(jobs())
def test_a_remembered_ledger_is_that_of_the_job(flags: Flags) -> None:
    """The ledger of a layer is remembered by its settings: no two jobs that need different ones are taken for each other."""
    scenario = resolve(from_flags(flags))
    job = job_of(scenario, PRIORS)
    for group in scenario.model.groups:
        view = job.view(group.block)
        remembered, walked = block.ledger_of(view), block.walked(view)
        for tokens, keys in ((1, 1), (512, 512), (70, 4096), (65_536, 8192)):
            for lines in PEAKS:
                most = highest(getattr(walked, lines), tokens, keys)
                assert highest(getattr(remembered, lines), tokens, keys) == most, lines
        assert replace(remembered, **{name: getattr(walked, name) for name in PEAKS}) == walked


def test_a_trillion_parameters() -> None:
    """A mixture of experts with a trillion parameters: bf16 weights alone are 2 TB, and no card holds that."""
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
    base = resolve(from_flags({"model": "7b", "method": "lora", "gpu": "b200:8", "seq": 4096}))
    made = estimate(replace(base, model=model))
    assert made.verdict == "does_not_fit"
    assert made.memory.must_have_bytes > 2 * model.param_count
    on_many = replace(base, model=model, hardware=replace(base.hardware, nodes=32))
    sharded = with_flags(on_many, {"sharding": "zero3", "gradient-checkpointing": True})
    assert estimate(sharded).memory.must_have_bytes < 0.1 * made.memory.must_have_bytes


def test_a_small_card() -> None:
    """On 8 GiB a 0.5B model trains with LoRA, and a 7B model does not even load in 16 bits."""
    common = {"method": "lora", "gpu_memory": "8GiB", "seq": 512, "gradient_checkpointing": True}
    assert estimate(resolve(from_flags({"model": "qwen2.5-0.5b", **common}))).verdict == "fits"
    large = estimate(resolve(from_flags({"model": "7b", **common})))
    assert large.verdict == "does_not_fit"
    load = next(peak for peak in large.memory.phases if peak.phase == "load")
    assert load.allocated_bytes > 8 * GIB


def test_a_million_tokens() -> None:
    """A million tokens in one sample: linear with a fused kernel, quadratic with eager attention; neither fits one card."""
    common = {"model": "7b", "method": "lora", "gpu": "h100-sxm", "gradient_checkpointing": True, "padding": "packed"}
    half, whole = (
        estimate(resolve(from_flags({**common, "seq": tokens, "attention": "flash2"}))) for tokens in (524_288, 1_048_576)
    )
    assert whole.verdict == "does_not_fit"
    assert 1.5 < whole.memory.must_have_bytes / half.memory.must_have_bytes <= 2
    eager = estimate(resolve(from_flags({**common, "seq": 1_048_576, "attention": "eager"})))
    # 32 heads of 2^40 scores in fp32 are 128 TiB; one block of them lives while it is rebuilt.
    assert eager.memory.must_have_bytes > 128 * 1024 * GIB
    assert eager.time is not None
    assert math.isfinite(eager.time.step_s)
