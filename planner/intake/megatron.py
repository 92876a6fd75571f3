"""Jobs of Megatron-Core: which models and combinations were read, and which layers each group has.

Source: megatron-core 0.16.1 transformer/transformer_config.py, pipeline_parallel/schedules.py; mcore-bridge
1.6.5 model/gpts/llm.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.domain.model import ModelSpec
from planner.domain.origin import stack_default
from planner.domain.recipes.fp8 import te_scaling
from planner.domain.recipes.parallel import Parallel
from planner.domain.recipes.sharding import DISTRIBUTED_OPTIMIZER
from planner.domain.scenario import Scenario
from planner.domain.stack import Stack
from planner.errors import UnreadCombinationError, UsageError
from planner.intake.given.ledger import Ledger

_WITH_LATENTS = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite")
_KNOWN = ("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", *_WITH_LATENTS)
_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused")


def check_megatron(scenario: Scenario) -> None:
    """Whether this job was read.

    Raises:
        UnreadCombinationError: it was not, or Megatron refuses it; says why.
    """
    reasons = (*_of_recipe(scenario), *_of_batch(scenario), *_of_model(scenario))
    if reasons:
        raise UnreadCombinationError(f"Megatron is not modelled {reasons[0]}")


def _of_recipe(scenario: Scenario) -> Iterator[str]:
    recipe, numerics, adapter = scenario.recipe, scenario.recipe.numerics, scenario.recipe.adapter
    some_layers = recipe.checkpoint_policy != "full" or recipe.checkpoint_every != 1
    odd = adapter is not None and (not adapter.is_plain or adapter.modules_to_save)
    narrow = numerics.quantization != "none" or (numerics.fp8 != "none" and not te_scaling(numerics.fp8))
    plain = (numerics.precision, numerics.load_dtype) == ("bf16", "bf16")
    own = DISTRIBUTED_OPTIMIZER.name
    reasons = (
        (recipe.has_own_loss, f"for task {recipe.task}; sft and pretrain are"),
        (narrow, "over bases in 8 or 4 bits, and with products of torchao in 8 bits"),
        (not plain, f"in {numerics.precision} with weights in {numerics.load_dtype}; bf16 is"),
        (recipe.sharding.name != own, f"with sharding {recipe.sharding.name}; {own} is"),
        (recipe.optimizer not in _OPTIMIZERS, f"with {recipe.optimizer}; {' and '.join(_OPTIMIZERS)} are"),
        (recipe.offload not in ("none", "optimizer"), f"with offload {recipe.offload}; optimizer is"),
        (recipe.attention != "flash2", f"with attention {recipe.attention}; flash2 is"),
        (recipe.loss != "hf", f"with loss {recipe.loss}; hf is"),
        (
            recipe.gradient_checkpointing and some_layers,
            "with some layers computed again, or parts of layers; all are, and none",
        ),
        (bool(recipe.train_layers or recipe.frozen), "where only a part of the model is trained"),
        (bool(odd), "with DoRA, OFT and modules_to_save"),
        (
            adapter is not None and adapter.targets != ("all-linear",),
            "with adapters on some matrices; all-linear is",
        ),
    )
    yield from (text for found, text in reasons if found)


def _of_batch(scenario: Scenario) -> Iterator[str]:
    recipe, parallel = scenario.recipe, scenario.recipe.parallel
    if recipe.batch.is_padded or recipe.batch.lengths is not None or recipe.batch.images is not None:
        yield "for padded samples, samples of their own lengths and images; --padding packed is"
    if parallel.expert_gpus > 1:
        yield from _of_experts(scenario)
    # Two pieces of a sequence for each GPU that divides it.
    pieces = parallel.tensor * (2 * parallel.context if parallel.context > 1 else 1)
    if recipe.batch.rows * recipe.batch.seq_len % pieces:
        yield f"for {recipe.batch.seq_len} tokens, which do not divide by {pieces}"
    if scenario.stack.exchanges_heads and parallel.context > 1:
        heads = parallel.tensor * parallel.context
        if any(group.block.attention.n_kv_heads % heads for group in scenario.model.groups):
            yield f"for '{scenario.model.id}', whose heads of keys do not divide by {heads}"
    if parallel.pipeline > 1 and scenario.model.tied:
        yield f"with a pipeline for '{scenario.model.id}', whose head is its token table"


def _of_experts(scenario: Scenario) -> Iterator[str]:
    parallel, model, gpus = scenario.recipe.parallel, scenario.model, scenario.recipe.parallel.expert_gpus
    mixtures = [group.block.mlp for group in model.groups if group.block.mlp.n_experts]
    if not mixtures or any(mlp.n_experts % parallel.experts for mlp in mixtures):
        yield f"for '{model.id}', whose experts do not divide by {parallel.experts}"
    elif parallel.expert_tensor not in (1, parallel.tensor):
        taken = "" if parallel.tensor == 1 else f", and {parallel.tensor} as --tensor-parallel"
        yield f"with --expert-tensor-parallel {parallel.expert_tensor}; 1 is{taken}"
    elif (same := scenario.hardware.world_size // parallel.pipeline) % gpus:
        yield (
            f"where {same} GPUs share layers, which do not divide by the {gpus} of --expert-parallel times "
            "--expert-tensor-parallel: lower one"
        )
    elif any(mlp.width % parallel.expert_tensor for mlp in mixtures):
        yield f"for '{model.id}': features of its experts do not divide by {parallel.expert_tensor}"
    elif parallel.expert_tensor > 1 and scenario.recipe.adapter is not None:
        yield "with adapters of experts whose features are divided; expert_tensor_parallel 1 is"


def _of_model(scenario: Scenario) -> Iterator[str]:
    model, parts = scenario.model, scenario.recipe.parallel.tensor
    if model.architecture not in _KNOWN:
        yield f"for architecture '{model.architecture}'; {', '.join(_KNOWN)} are"
    elif model.vision is not None:
        yield "for models that see"
    elif not _divides(model, parts):
        yield f"for '{model.id}': its heads or features do not divide by {parts}"
    elif model.architecture in _WITH_LATENTS:
        yield from _of_latents(scenario)


def _of_latents(scenario: Scenario) -> Iterator[str]:
    recipe, model = scenario.recipe, scenario.model
    if not scenario.stack.pads_latent_values:
        yield f"for latents of '{model.id}' on stack '{scenario.stack.id}'; those of ms-swift are"
    if recipe.parallel.context > 1:
        yield f"for latents of '{model.id}' where sequences are divided"
    if recipe.adapter is not None and recipe.parallel.tensor > 1:
        yield f"with adapters for latents of '{model.id}' beside divided matrices"
    if recipe.numerics.fp8 != "none":
        yield f"for latents of '{model.id}' in 8 bits"


def _divides(model: ModelSpec, parts: int) -> bool:
    blocks = [group.block for group in model.groups]
    counts = [
        n
        for block in blocks
        for n in (
            block.attention.n_heads,
            block.attention.n_kv_heads,
            block.mlp.shared_width if block.mlp.n_experts else block.mlp.width,
        )
    ]
    return all(n % parts == 0 for n in counts)


def with_expert_features(ledger: Ledger, stack: Stack, parallel: Parallel, model: ModelSpec) -> Parallel:
    """Over how many GPUs the features of an expert are divided: over one, or as other matrices are.

    Raises:
        UsageError: such a number without Megatron.
    """
    name = "expert_tensor_parallel"
    own, said = stack.model_code == "megatron-core", ledger.is_given(name)
    if (ledger.request.get(name) or 1) > 1 and not own:
        raise UsageError(f"{name} is for mixtures of Megatron: say --stack megatron, or leave it out")
    default = parallel.tensor if stack.divides_experts and model.is_moe else 1
    if not own or not (said or default > 1):
        return parallel
    return replace(parallel, expert_tensor=ledger.choose(name, default, stack_default(stack.id)))


def with_layers(ledger: Ledger, stack: Stack, parallel: Parallel, n_layers: int) -> Parallel:
    """How a pipeline of Megatron divides the layers: evenly, but for what the first and the last group are
    said to have; table and head count as none.

    Raises:
        UsageError: such numbers without a pipeline of Megatron.
        UnreadCombinationError: what is left does not divide evenly, which Megatron refuses, too.
    """
    said = [ledger.request.get(name) for name in ("pipeline_first_layers", "pipeline_last_layers")]
    runs, own = parallel.pipeline * parallel.chunks, stack.model_code == "megatron-core"
    runs_said = ledger.is_given("pipeline_runs")
    if runs_said and (not own or parallel.chunks == 1 or parallel.runs == 1):
        raise UsageError("pipeline_runs is for interleaved pipelines of Megatron, from 2 on")
    if runs_said:
        ledger.choose("pipeline_runs", parallel.runs, "assumed")
    if parallel.pipeline == 1 or parallel.in_turn or not own:
        if said != [None, None]:
            raise UsageError("pipeline_first_layers and pipeline_last_layers are for pipelines of Megatron")
        return parallel
    for name, count in zip(("pipeline_first_layers", "pipeline_last_layers"), said, strict=True):
        if count is not None:
            ledger.choose(name, count, "assumed")
    ends = [each for each in said if each is not None]
    groups, left = parallel.pipeline - len(ends), n_layers - sum(ends)
    uneven = left % (groups * parallel.chunks) if groups else left
    if left < 0 or uneven or any(each % parallel.chunks for each in ends):
        raise UnreadCombinationError(
            f"Megatron divides layers evenly, and {left} do not divide into "
            f"{max(groups, 0) * parallel.chunks} runs: say how many the first or the last group has, with "
            "--pipeline-first-layers or --pipeline-last-layers"
        )
    each = left // groups if groups else 0
    first, last = (each if count is None else count for count in said)
    of_groups = (first, *(each,) * (parallel.pipeline - 2), last)
    counts = tuple(count // parallel.chunks for _ in range(parallel.chunks) for count in of_groups)
    assert len(counts) == runs
    return replace(parallel, layers=counts)
