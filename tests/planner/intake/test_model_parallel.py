"""GPUs that share a batch: what is resolved where only the degrees are given, and what gets no verdict."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from planner.anatomy.regime import regime_of
from planner.domain.recipes.parallel import Parallel
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import ExitCode, NotModelledError, RefusedCombinationError, UsageError
from planner.intake.given.config_file import read_config_file
from planner.intake.given.config_file import with_flags as with_file_flags
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.predicting import estimate
from planner.program.job import job_of
from planner.program.step import parts_of
from planner.searching.variants import with_flags
from planner.throughput.parallel_time import parallel_bytes
from planner.throughput.time_inputs import job_of as timed_job_of
from tests.jobs import resolved, typed

BASE: dict[str, Any] = {"model": "llama-3.1-8b", "method": "full", "gpu": "h100-sxm:8", "seq": 32768}


scenario_of = partial(resolved, BASE)
"""The job with these flags."""


def test_both_degrees_take_the_stack_that_has_them() -> None:
    """Where nothing else is said:
    torchtitan with FSDP2 over all GPUs that have the same part of the matrices.
    """
    scenario = scenario_of(tensor_parallel=2, context_parallel=2)
    assert (scenario.stack.id, scenario.recipe.sharding.name) == ("torchtitan", "fsdp")
    assert scenario.recipe.parallel == Parallel(2, 2)
    assert scenario.recipe.shards(scenario.hardware) == 4


def test_sequences_alone_stay_with_the_trainer_beside_zero() -> None:
    """Adapters, and whoever names a ZeRO stage; all other weights are torchtitan's.  Rows are filled."""
    adapters = scenario_of(context_parallel=8, method="lora")
    assert (adapters.stack.id, adapters.recipe.sharding.name) == ("hf-trainer@5", "zero3")
    assert adapters.recipe.batch.padding == "packed"
    assert scenario_of(context_parallel=8, sharding="zero2").stack.id == "hf-trainer@5"
    assert scenario_of(context_parallel=8).stack.id == "torchtitan"
    gathered = scenario_of(context_parallel=8, method="lora", stack="axolotl")
    assert (gathered.recipe.attention, gathered.recipe.batch.padding) == ("flash2", "packed")


def test_a_file_says_itself_how_rows_are_filled(tmp_path: Path) -> None:
    """Axolotl without packing, or without FlashAttention, is not answered as if it had them."""
    file = tmp_path / "a.yaml"
    lines = "base_model: NousResearch/Meta-Llama-3.1-8B\nadapter: lora\nlora_r: 8\nsequence_len: 8192\n"
    lines += "micro_batch_size: 1\ngradient_accumulation_steps: 1\nbf16: true\ncontext_parallel_size: 4\n"
    for more, words in (
        ("sample_packing: true\n", "attention"),
        ("attn_implementation: flash_attention_2\n", "own lengths"),
    ):
        file.write_text(lines + more, encoding="utf-8")
        request = with_file_flags(
            read_config_file(file), from_flags({"gpu": "a100-80-sxm:4", "tokens_per_sample": 3000})
        )
        with pytest.raises(NotModelledError, match=words):
            resolve(request)


def test_matrices_alone_stay_with_the_trainer() -> None:
    """Transformers divides a model over all GPUs, without data parallelism."""
    scenario = scenario_of(gpu="h100-sxm:2", tensor_parallel=2, seq=4096)
    assert (scenario.stack.id, scenario.recipe.sharding.name) == ("hf-trainer@5", "none")


def test_transformers_has_an_fsdp2_of_its_own_beside_divided_matrices() -> None:
    """It casts nothing: weights stay in 16 bits, and autocast runs.  Older versions were not read."""
    beside = {"stack": "hf-trainer@5", "tensor_parallel": 2, "seq": 4096, "load_dtype": "bf16"}
    scenario = scenario_of(**beside)
    regime = regime_of(scenario)
    assert scenario.recipe.sharding.name == "fsdp"
    assert (scenario.stack.fsdp_loads, regime.trained, regime.autocast) == ("shards", 2, True)
    alone = regime_of(scenario_of(**beside | {"tensor_parallel": 1, "sharding": "fsdp"}))
    assert (alone.trained, alone.autocast) == (4, False)
    for other in ({"versions": ("transformers==5.22.0",)}, {"sharding": "hsdp"}, {"sharding": "ddp"}):
        with pytest.raises(NotModelledError, match="beside other batches"):
            scenario_of(**beside, **other)
    with pytest.raises(NotModelledError, match="no other GPUs are left"):
        scenario_of(**beside | {"gpu": "h100-sxm:2", "sharding": "fsdp"})


@pytest.mark.parametrize(
    "flags",
    [
        {"tensor_parallel": 2},
        {"context_parallel": 2},
        {"pipeline_parallel": 2, "sharding": "fsdp-grad-op", "grad_accum": 4},
    ],
    ids=lambda flags: next(iter(flags)),
)
def test_torchtitan_keeps_its_attention_when_it_is_divided(flags: dict[str, Any]) -> None:
    """FlexAttention is its default, so that dividing a job compares like with like."""
    assert scenario_of(stack="torchtitan").recipe.attention == "flex"
    assert scenario_of(stack="torchtitan", **flags).recipe.attention == "flex"


def test_torchtitan_divides_sequences_by_flex_attention_and_before_it_by_the_ring() -> None:
    """The newest one refuses torch's fused attention there; those without FlexAttention have the ring."""
    flags = {"stack": "torchtitan@2025", "context_parallel": 2, "checkpoint_policy": "full"}
    ops = {
        op for part in parts_of(job_of(scenario_of(**flags), Coefficients())) for _, op in part.template.ops
    }
    assert {"all_gather of keys", "sent to the next GPU"} <= ops
    with pytest.raises(NotModelledError, match="sdpa, which torchtitan refuses, too; flex is"):
        scenario_of(stack="torchtitan", context_parallel=2, attention="sdpa")
    with pytest.raises(NotModelledError, match="attention flash2; sdpa is"):
        scenario_of(**flags, attention="flash2")
    with pytest.raises(NotModelledError, match="no FlashAttention"):
        scenario_of(**flags, precision="fp32")


def test_a_selective_checkpoint_keeps_what_the_ring_returns_once() -> None:
    """It sees one operator, whose steps run inside: output and sums of each layer."""

    def made(policy: str) -> int:
        flags = {"stack": "torchtitan@2025", "context_parallel": 4, "checkpoint_policy": policy}
        parts = parts_of(job_of(scenario_of(**flags), Coefficients()))
        return sum(op == "flash_attention" for part in parts for _, op in part.template.ops)

    # All steps run again where nothing is kept.
    assert made("full") == 2 * made("selective-op") > 0


def test_deepspeed_divides_matrices_beside_zero() -> None:
    """Sums make no tensor and are counted in time all the same; each GPU has the whole token table, and ZeRO
    divides over those that have the same part.
    """
    flags: dict[str, Any] = {"tensor_parallel": 2, "sharding": "zero2", "seq": 4096}
    scenario = scenario_of(**flags)
    job = job_of(scenario, Coefficients())
    ops = {op for part in parts_of(job) for _, op in part.template.ops}
    assert (scenario.stack.id, job.optimizer_shards) == ("hf-trainer@5", 4)
    assert (job.model.token_embedding.rows, job.model.head.out_features) == (128256, 128256 // 2)
    assert "all_reduce" not in ops
    timed = timed_job_of(scenario, Coefficients())
    assert timed is not None
    # Each layer sums two outputs and five gradients: of o and down, of the inputs of q, k, v, gate and up.
    assert parallel_bytes(timed) >= 32 * (2 + 5) * 4096 * 4096 * 2
    for other, words in (
        ({"sharding": "zero3"}, "zero1 and zero2 are"),
        ({"versions": ("deepspeed==0.18.4",)}, "of whose AutoTP nobody read"),
        ({"model": "qwen2.5-7b"}, "architecture 'qwen2'"),
        ({"eval_batch": 1}, "with evaluation"),
        ({"stack": "llama-factory"}, "nobody read how it divides"),
    ):
        with pytest.raises(NotModelledError, match=words):
            scenario_of(**flags | other)


def test_a_job_is_the_part_of_one_gpu() -> None:
    """Half of the heads, features and words, and half of each sequence; norms are whole."""
    scenario = scenario_of(tensor_parallel=2, context_parallel=2)
    job = job_of(scenario, Coefficients())
    whole, part = scenario.model.groups[0].block, job.model.groups[0].block
    assert (part.attention.n_heads, part.attention.n_kv_heads, part.mlp.width) == (
        16,
        4,
        whole.mlp.width // 2,
    )
    matrices = whole.param_count - sum(norm.param_count for norm in whole.norms)
    assert part.param_count == matrices // 2 + sum(norm.param_count for norm in whole.norms)
    assert (job.model.token_embedding.rows, job.model.head.out_features) == (128256 // 2, 128256 // 2)
    assert job.tokens == 32768 // 2
    again = job_of(job.scenario, Coefficients())
    assert (again.model, again.tokens) == (job.model, job.tokens)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"method": "qlora"}, "nf4"),
        ({"method": "lora"}, "adapters"),
        ({"model": "mixtral-8x7b"}, "mixtral"),
        ({"optimizer": "adamw_8bit"}, "adamw_8bit"),
        ({"stack": "hf-trainer@5"}, "hf-trainer@5"),
        ({"stack": "axolotl", "padding": "packed", "attention": "flash2", "batch": 1}, "axolotl"),
        ({"stack": "axolotl@0.8", "padding": "packed"}, "axolotl@0.8"),
        ({"sharding": "zero3"}, "FSDP2 alone: say --sharding fsdp"),
        ({"tensor_parallel": 8, "context_parallel": 1, "model": "qwen3-0.6b"}, "head is their token table"),
        ({"seq": 4098}, "4098"),
    ],
)
def test_what_nobody_read_has_no_verdict(flags: dict[str, object], words: str) -> None:
    """The reason says what is in the way; a search passes over such a job."""
    with pytest.raises(NotModelledError) as raised:
        scenario_of(**{"tensor_parallel": 2, "context_parallel": 2, **flags})
    assert isinstance(raised.value, RefusedCombinationError)
    assert raised.value.exit_code is ExitCode.NOT_MODELLED
    assert words in str(raised.value)


HEADS = typed(
    "--stack axolotl --context-parallel 4 --padding packed --attention flash2 --batch 1 --gpu a100-80gb:8"
)


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
@pytest.mark.parametrize("sharding", ["ddp", "fsdp", "zero3"])
def test_only_attention_knows_of_a_divided_sequence(method: str, sharding: str) -> None:
    """Axolotl: whatever the job is, each GPU has its part of the tokens, and the engine all GPUs."""
    scenario = scenario_of(**HEADS, method=method, sharding=sharding, optimizer="adamw_torch")
    job = job_of(scenario, Coefficients())
    assert (job.tokens, job.optimizer_shards) == (32768 // 4, 1 if sharding == "ddp" else 8)


EXCHANGED = typed(
    "--stack trl --context-parallel 8 --padding packed --attention flash2 --batch 1 --sharding zero3"
)


@pytest.mark.parametrize("evaluated", [{"samples": 100, "eval_samples": 10}, {"eval_batch": 1}])
def test_a_pipeline_is_not_answered_with_evaluation(evaluated: dict[str, object]) -> None:
    """However it is asked for."""
    piped = {"stack": "torchtitan", "pipeline_parallel": 2, "grad_accum": 4, "sharding": "fsdp-grad-op"}
    scenario_of(**piped)
    with pytest.raises(NotModelledError, match="with evaluation"):
        scenario_of(**piped, **evaluated)


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_deepspeed_exchanges_heads_for_the_trainer(method: str, sharding: str) -> None:
    """Ulysses: each GPU has its part of the tokens, and ZeRO divides states over all of them."""
    scenario = scenario_of(**{**EXCHANGED, "method": method, "sharding": sharding})
    job = job_of(scenario, Coefficients())
    assert (job.tokens, job.optimizer_shards) == (32768 // 8, 8)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"tensor_parallel": 2, "context_parallel": 4}, "divided matrices"),
        ({"model": "qwen2.5-7b"}, "heads do not divide by 8"),
        ({"attention": "eager"}, "attention eager"),
        ({"samples": 100, "eval_samples": 10}, "evaluation"),
        ({"eval_batch": 1}, "evaluation"),
    ],
)
def test_what_an_exchange_does_not_take(flags: dict[str, object], words: str) -> None:
    """Nobody read it, or DeepSpeed refuses it, too."""
    with pytest.raises(NotModelledError, match=words):
        scenario_of(**{**EXCHANGED, **flags})


RING = {"stack": "hf-trainer@5", "tensor_parallel": 1, "context_parallel": 4, "sharding": "fsdp"}


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("stack", ["hf-trainer@5", "trl"])
def test_torch_divides_sequences_beside_fsdp(method: str, stack: str) -> None:
    """Each GPU has its part of the tokens, FSDP2 divides states over all of them, and no row is packed."""
    scenario = scenario_of(**{**RING, "method": method, "stack": stack, "precision": "bf16-mixed"})
    job = job_of(scenario, Coefficients())
    assert (job.tokens, job.optimizer_shards) == (scenario.recipe.batch.seq_len // 4, 8)
    assert scenario.recipe.batch.padding == "longest"


def test_the_ring_divides_what_is_evaluated_too() -> None:
    """Twice as many GPUs have half of what a batch that is evaluated takes; weights and states stay."""
    short = {**RING, "precision": "bf16-mixed", "seq": 4096, "eval_batch": 8}
    scenarios = [scenario_of(**{**short, "context_parallel": parts}) for parts in (2, 4, 8)]
    phases = [estimate(each, Coefficients()).memory.phases for each in scenarios]
    peaks = [next(each.allocated_bytes for each in some if each.phase == "eval") for some in phases]
    assert peaks[0] - peaks[1] == pytest.approx(2 * (peaks[1] - peaks[2]), rel=0.05)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"sharding": "ddp"}, "without ZeRO or FSDP2"),
        ({"sharding": "fsdp1"}, "without ZeRO or FSDP2"),
        ({"attention": "flash2"}, "attention flash2"),
        ({"seq": 4_100}, "do not divide by 8"),
        ({"model": "mistral-7b-v0.1"}, "a window, which Accelerate refuses"),
        ({"gpu": "v100-32-sxm2:8", "precision": "fp16-mixed"}, "no FlashAttention"),
        ({"stack": "trl", "padding": "packed"}, "TRL refuses them, too"),
        ({"stack": "trl", "tokens_per_sample": 100}, "leave --tokens-per-sample and --data out"),
        ({"stack": "automodel", "precision": "bf16"}, "nobody read"),
        ({"stack": "hf-loop"}, "nobody read the code"),
        ({"task": "dpo"}, "task dpo"),
    ],
)
def test_what_a_ring_does_not_take(flags: dict[str, object], words: str) -> None:
    """Nobody read it, or the libraries refuse it, too."""
    with pytest.raises(NotModelledError, match=words):
        scenario_of(**{**RING, "precision": "bf16-mixed", **flags})


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"task": "dpo"}, "task dpo"),
        ({"attention": "sdpa"}, "attention sdpa"),
        ({"padding": "longest", "tokens_per_sample": 100}, "lengths"),
        ({"batch": 2}, "several packed rows"),
        ({"seq": 4098}, "4098"),
        ({"model": "gemma-2-2b"}, "models that see"),
        ({"model": "deepseek-v2-lite"}, "models that see"),
    ],
)
def test_what_gathered_heads_do_not_take(flags: dict[str, object], words: str) -> None:
    """Nobody read it, or Axolotl refuses it, too."""
    with pytest.raises(NotModelledError, match=words):
        scenario_of(**{**HEADS, **flags})


ULYSSES = typed(
    "--stack llama-factory-v1 --tensor-parallel 1 --attention flash2 --sharding fsdp --precision bf16-mixed"
)


def test_a_stack_that_exchanges_heads_divides_sequences_alone() -> None:
    """Adapters, too; eight heads of keys do not divide by three or sixteen."""
    assert scenario_of(**ULYSSES, context_parallel=4, method="lora").recipe.parallel == Parallel(1, 4)
    for changed, words in (
        ({"tensor_parallel": 2, "context_parallel": 2}, "divides sequences alone"),
        ({"attention": "sdpa", "context_parallel": 2}, "flash2 is"),
        ({"gpu": "h100-sxm:6", "context_parallel": 3, "seq": 3_072}, "do not divide by 3"),
    ):
        with pytest.raises(NotModelledError, match=words):
            scenario_of(**(ULYSSES | changed))


def test_groups_divide_the_gpus() -> None:
    """Six GPUs have no groups of four."""
    with pytest.raises(UsageError, match="needs groups of 4 GPUs, and the job has 6"):
        scenario_of(gpu="h100-sxm:6", tensor_parallel=4)


def test_other_settings_of_such_a_job_are_checked_too() -> None:
    """What a lever changes is refused as it is where it is given."""
    scenario = scenario_of(tensor_parallel=2, context_parallel=2)
    assert with_flags(scenario, {"batch": "2"}).recipe.parallel == Parallel(2, 2)
    with pytest.raises(RefusedCombinationError):
        with_flags(scenario, {"sharding": "zero3"})


def test_one_group_of_hpz_is_said_too() -> None:
    """What was given is among the assumptions, also where it changes nothing."""
    assert any(entry.name == "hpz" for entry in resolved(BASE | {"hpz": 1}).assumptions)
