"""GPUs that share a batch: which stacks divide a model so, and which of their combinations were read.

Source: transformers 5.23 distributed/configuration_utils.py, distributed/utils.py
initialize_distributed_mesh, trainer.py (``dp_shard_size = model_dp_size``); accelerate 1.15
parallelism_config.py ``__post_init__`` and ``_validate_accelerator``; torchtitan 0.3.0
models/llama3/parallelize.py, models/qwen3/parallelize.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from planner.domain.attention_shape import AttentionSpec
from planner.domain.hardware import Hardware
from planner.domain.model import BlockSpec, ModelSpec
from planner.domain.origin import split_place
from planner.domain.recipes.attention_kernels import FLASH_WIDEST
from planner.domain.recipes.parallel import Parallel
from planner.domain.recipes.sharding import (
    DDP,
    DISTRIBUTED_OPTIMIZER,
    FSDP,
    FSDP_GRAD_OP,
    NONE,
    ZERO3,
    ShardingName,
)
from planner.domain.scenario import Scenario
from planner.domain.stack import Stack
from planner.errors import UnreadCombinationError, UsageError
from planner.intake.device_map import check_device_map, resolve_device_map
from planner.intake.divided_matrices import of_divided_matrices
from planner.intake.expert_parallel import of_experts, resolve_experts
from planner.intake.given.ledger import Ledger
from planner.intake.given.request import ScenarioRequest
from planner.intake.megatron import check_megatron, with_expert_features, with_layers
from planner.intake.supported import lacks_flash2
from planner.words import words

FIELDS = ("tensor_parallel", "context_parallel", "pipeline_parallel")
# Models whose plan divides query, key, value, gate and up by outputs,
# and the two matrices behind them by inputs.
_PLANNED = frozenset(
    words(
        """
        apertus arcee cohere cohere2 ernie4_5 exaone4 gemma gemma2 gemma3_text granite internlm3 llama
        ministral ministral3 mistral olmo qwen2 qwen3 seed_oss smollm3
        """
    )
)
_TITAN = frozenset({"llama", "qwen3"})
_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused")
_CASTS_NOTHING = "in {} without FSDP, where torchtitan casts nothing: say --precision fp32"


def degrees(request: ScenarioRequest) -> Parallel:
    """What the request says."""
    tensor, context, pipeline = (int(request.get(name) or 1) for name in FIELDS)
    return Parallel(
        tensor,
        context,
        request.get("replicas"),
        request.get("hpz") or 1,
        pipeline,
        request.get("pipeline_schedule") or Parallel().schedule,
        request.get("pipeline_microbatches"),
        runs=int(request.get("pipeline_runs") or Parallel().runs),
    )


def asks_to_divide(request: ScenarioRequest) -> bool:
    """Whether flags ask for divided sequences: a file's tool decides itself what goes with them."""
    given = request.values.get("context_parallel")
    return given is not None and given.value > 1 and not split_place(given.origin)[1]


def packs_divided(request: ScenarioRequest, stack: Stack) -> bool:
    """Whether sequences that flags ask to divide are taken as packed: not beside FSDP2 of the Trainer, where
    TRL refuses that.

    Source: trl 1.16 trainer/sft_trainer.py SFTTrainer.__init__.
    """
    in_ring = stack.model_parallel == "features" and (request.get("sharding") or "").startswith("fsdp")
    return asks_to_divide(request) and not in_ring


def group_gpus(request: ScenarioRequest) -> int:
    """GPUs that come and go together, by what the request says of dividing them: jobs have multiples of
    that.
    """
    parallel = degrees(request)
    return (parallel.replicas or 1) * math.lcm(parallel.gpus, int(request.get("expert_parallel") or 1))


def resolve_parallel(ledger: Ledger, hardware: Hardware, stack: Stack, model: ModelSpec) -> Parallel:
    """How many GPUs share a batch; entered where that is given.

    Raises:
        UsageError: more GPUs than there are, or not a part of them, or words about a pipeline without one.
    """
    parallel = degrees(ledger.request)
    if parallel.pipeline == 1:
        for name in ("pipeline_schedule", "pipeline_microbatches", "pipeline_runs"):
            if ledger.request.get(name) is not None:
                raise UsageError(f"{name} is for pipelines: say pipeline_parallel, or leave it out")
    if ledger.request.get("device_map") and hardware.world_size > 1:
        return resolve_device_map(ledger, hardware, parallel)
    parallel = with_expert_features(ledger, stack, _resolve_ranks(ledger, hardware, parallel), model)
    return with_layers(ledger, stack, parallel, model.n_layers)


def _resolve_ranks(ledger: Ledger, hardware: Hardware, parallel: Parallel) -> Parallel:
    copies = parallel.replicas or 1
    if parallel.replicas:
        ledger.choose("replicas", copies, "assumed")
        if hardware.world_size % (copies * parallel.gpus):
            raise UsageError(
                f"{hardware.world_size} GPUs cannot be divided into {copies} replicas of groups of "
                f"{parallel.gpus}"
            )
    if parallel.hpz > 1 or ledger.request.get("hpz"):
        parallel = replace(parallel, hpz=min(parallel.hpz, int(hardware.world_size)))
        ledger.choose("hpz", parallel.hpz, "assumed")
        if hardware.world_size % parallel.hpz:
            raise UsageError(
                f"{hardware.world_size} GPUs have no groups of {parallel.hpz}, which hpz asks for"
            )
    if parallel.divides:
        degrees_of = (parallel.tensor, parallel.context, parallel.pipeline)
        for name, degree in zip(FIELDS, degrees_of, strict=True):
            if name != "pipeline_parallel" or degree > 1:
                ledger.choose(name, degree, "assumed")
        if hardware.world_size % parallel.gpus:
            asked = " x ".join(f"{name} {n}" for name, n in zip(FIELDS, degrees_of, strict=True) if n > 1)
            raise UsageError(
                f"{asked} needs groups of {parallel.gpus} GPUs, and the job has {hardware.world_size}: "
                f"--gpu X:{parallel.gpus}"
            )
        sharing = parallel.tensor * parallel.context
        if sharing > hardware.gpus_per_node:
            raise UnreadCombinationError(
                f"{sharing} GPUs that share a batch across nodes are not modelled; a node at most is"
            )
    return _resolve_pipeline(ledger, hardware, resolve_experts(ledger, hardware, parallel))


def default_sharding(
    parallel: Parallel, hardware: Hardware, stack: Stack, of_stack: ShardingName
) -> tuple[ShardingName, str]:
    """The sharding where nothing is given, and why; ``of_stack``: what the stack takes by itself."""
    divides_by, world = stack.model_parallel, hardware.world_size
    if of_stack == DISTRIBUTED_OPTIMIZER.name:
        return of_stack, ""
    if parallel.in_turn:
        return NONE.name, "one process has all GPUs"
    if parallel.pipeline > 1:
        chosen = NONE if world == parallel.gpus else FSDP_GRAD_OP
        return chosen.name, "torchtitan keeps weights whole between the micro-batches of a pipeline"
    if divides_by == "features" and parallel.context > 1:
        return ZERO3.name, "the Trainer's division of sequences was read beside ZeRO"
    if parallel.divides and divides_by != "gathered_heads" and world > parallel.tensor:
        return FSDP.name, "beside GPUs that share a batch the libraries have FSDP2 alone"
    if parallel.experts > 1 and parallel.replicas is None:
        return FSDP.name, "beside experts that are divided torchtitan has FSDP2 alone"
    if world == parallel.tensor:
        return NONE.name, ""
    return of_stack, "several GPUs and nothing given: each holds everything" if of_stack == DDP.name else ""


def _resolve_pipeline(ledger: Ledger, hardware: Hardware, parallel: Parallel) -> Parallel:
    """Schedule and micro-batches of a pipeline."""
    if parallel.pipeline == 1:
        return parallel
    ledger.choose("pipeline_schedule", parallel.schedule, "assumed")
    all_of_step = int(ledger.request.get("grad_accum") or 1)
    count = ledger.choose("pipeline_microbatches", parallel.microbatches or all_of_step, "assumed")
    group, per_node = hardware.world_size // parallel.pipeline, hardware.gpus_per_node
    if group % per_node and per_node % group:
        raise UnreadCombinationError(
            f"pipeline parallel of {parallel.pipeline} is not modelled where a group of {group} GPUs is "
            f"neither whole nodes of {per_node} nor an equal part of one"
        )
    if all_of_step % count:
        raise UsageError(
            f"grad_accum {all_of_step} does not divide into rounds of {count} pipeline_microbatches"
        )
    if parallel.schedule == "interleaved" and count % max(1, count // parallel.pipeline):
        raise UnreadCombinationError(
            f"schedule interleaved cannot run {count} micro-batches on {parallel.pipeline} groups; "
            f"a multiple of {parallel.pipeline} it can"
        )
    return replace(parallel, microbatches=count)


def check_parallel(scenario: Scenario) -> None:
    """Whether this way to divide a model was read.

    Raises:
        UnreadCombinationError: it was not, or the libraries refuse it; says why.
    """
    parallel = scenario.recipe.parallel
    if parallel.in_turn:
        check_device_map(scenario)
        return
    if scenario.stack.model_code == "megatron-core":
        check_megatron(scenario)
        return
    if parallel.experts > 1:
        reasons: tuple[str, ...] = (*of_experts(scenario), *_of_divided_model(scenario))
        if reasons:
            raise UnreadCombinationError(
                f"expert parallel of {parallel.experts} is not modelled {reasons[0]}"
            )
    if parallel.divides:
        _refuse_short_round(parallel)
        reasons = (
            *_of_pipeline(scenario),
            *_of_job(scenario),
            *_of_model(scenario),
            *_of_stack(scenario),
        )
        if reasons:
            raise UnreadCombinationError(f"{_asked(scenario.recipe.parallel)} is not modelled {reasons[0]}")


def _refuse_short_round(parallel: Parallel) -> None:
    """Source: torch 2.13 distributed/pipelining/schedules.py Schedule1F1B, which refuses them."""
    if (
        parallel.pipeline > 1
        and parallel.schedule == "1f1b"
        and (parallel.microbatches or 1) < parallel.pipeline
    ):
        raise UnreadCombinationError(
            "schedule 1f1b needs as many micro-batches as groups: say "
            f"--grad-accum {parallel.pipeline} or more, or --pipeline-schedule gpipe"
        )


def _asked(parallel: Parallel) -> str:
    parts = {
        "tensor parallel": parallel.tensor,
        "context parallel": parallel.context,
        "pipeline parallel": parallel.pipeline,
    }
    return " x ".join(f"{name} of {degree}" for name, degree in parts.items() if degree > 1)


def _by_trainer(scenario: Scenario) -> bool:
    """Whether the Trainer divides sequences: by DeepSpeed's exchange of heads (Ulysses) or torch's ring."""
    return scenario.stack.model_parallel == "features" and scenario.recipe.parallel.context > 1


def _by_deepspeed(scenario: Scenario) -> bool:
    return _by_trainer(scenario) and scenario.recipe.uses_deepspeed


def _by_ring(scenario: Scenario) -> bool:
    return _by_trainer(scenario) and not scenario.recipe.uses_deepspeed


def _divides_sequences_alone(scenario: Scenario) -> bool:
    """Whether only attention knows that a batch has several GPUs, so that whatever else the job is may be."""
    return scenario.stack.model_parallel in ("gathered_heads", "exchanged_heads") or _by_trainer(scenario)


def _of_pipeline(scenario: Scenario) -> Iterator[str]:
    """Source: torchtitan e347b1e5e train.py (``maybe_enable_amp``: mixed precision beside a pipeline is
    FSDP's); torch 2.13 distributed/pipelining/schedules.py.
    """
    recipe, parallel, stack = scenario.recipe, scenario.recipe.parallel, scenario.stack
    if parallel.pipeline == 1:
        return
    alone = scenario.hardware.world_size == parallel.gpus
    if stack.model_parallel != "tokens":
        yield f"on stack '{stack.id}'; it is on torchtitan"
    if parallel.context > 1:
        yield "beside divided sequences"
    if min(parallel.layers_of_stages(scenario.model.n_layers)) < 1:
        yield f"of {scenario.model.n_layers} layers, as a group would have none"
    if recipe.sharding.name != ("none" if alone else "fsdp-grad-op"):
        yield (
            f"with sharding {recipe.sharding.name}; "
            + ("none is, where a group has one batch" if alone else "fsdp-grad-op is, as weights stay whole")
        )
    if alone and recipe.numerics.mixed:
        yield _CASTS_NOTHING.format(recipe.numerics.precision)
    if recipe.loss != "hf":
        yield f"with loss {recipe.loss}; hf is"
    if scenario.run.evaluates:
        yield "with evaluation"


def _of_job(scenario: Scenario) -> Iterator[str]:
    return (_of_divided_sequence if _divides_sequences_alone(scenario) else _of_divided_model)(scenario)


def _of_divided_sequence(scenario: Scenario) -> Iterator[str]:
    recipe = scenario.recipe
    ring, pieces = _by_ring(scenario), recipe.parallel.context
    taken = ("sdpa",) if ring else ("flash2", "sdpa") if _by_deepspeed(scenario) else ("flash2",)
    pieces = 2 * pieces if ring else pieces
    if recipe.task != "sft":
        yield f"for task {recipe.task}; sft is"
    if recipe.attention not in taken:
        yield f"with attention {recipe.attention}, which it refuses, too; {' or '.join(taken)} is"
    if recipe.batch.is_padded or recipe.batch.lengths is not None:
        full = "full ones are: leave --tokens-per-sample and --data out"
        yield f"for samples of their own lengths; {full if ring else 'packed ones are (--padding packed)'}"
    elif recipe.batch.rows > 1 and not (ring or scenario.stack.model_parallel == "exchanged_heads"):
        yield "for several packed rows of one GPU; one is (--batch 1)"
    if recipe.batch.seq_len % pieces:
        yield f"for sequences of {recipe.batch.seq_len} tokens, which do not divide by {pieces}"


def _of_divided_model(scenario: Scenario) -> Iterator[str]:
    recipe = scenario.recipe
    if recipe.numerics.quantization != "none":
        yield f"over a base in {recipe.numerics.quantization}; one in 16 bits is"
    if recipe.has_own_loss:
        yield f"for task {recipe.task}; sft and pretrain are"
    if recipe.offloads_something:
        yield f"with offload {recipe.offload}; none is"
    if recipe.optimizer not in _OPTIMIZERS:
        yield f"with optimizer {recipe.optimizer}; {' and '.join(_OPTIMIZERS)} are"
    if recipe.method == "lora":
        yield "with adapters; --method full is"
    if recipe.train_layers:
        yield "where only a part of the model is trained"
    if recipe.batch.is_padded or recipe.batch.lengths is not None:
        yield "for samples of their own lengths; packed ones are (--padding packed)"
    if recipe.parallel.context > 1 and scenario.stack.model_parallel == "tokens":
        yield from _of_attention(scenario)
    if recipe.batch.seq_len % (2 * recipe.parallel.context):
        yield (
            f"for sequences of {recipe.batch.seq_len} tokens, which do not divide by "
            f"{2 * recipe.parallel.context}"
        )


def _of_attention(scenario: Scenario) -> Iterator[str]:
    """Divided sequences of torchtitan: FlexAttention over gathered keys, before 2026 torch's ring.

    Source: torchtitan 0.3.0 distributed/full_dtensor.py validate_config, which refuses any other (its default
    ``spmd_backend`` is ``spmd_types``); e347b1e5e distributed/context_parallel.py.
    """
    attention, has_flex = scenario.recipe.attention, scenario.stack.selective_flex != "unread"
    if has_flex and attention != "flex":
        yield f"with attention {attention}, which torchtitan refuses, too; flex is"
    elif not has_flex and attention != "sdpa":
        yield f"with attention {attention}; sdpa is"
    elif not has_flex:
        yield from _of_ring(scenario)


def _of_model(scenario: Scenario) -> Iterator[str]:
    model, parallel = scenario.model, scenario.recipe.parallel
    if _divides_sequences_alone(scenario):
        blocks = [group.block for group in model.groups]
        if model.vision is not None or not all(_has_plain_heads(each) for each in blocks):
            yield "for models that see, and layers other than attention with rotary positions"
        elif _by_ring(scenario):
            yield from _of_ring(scenario)
        elif scenario.stack.model_parallel != "gathered_heads" and not all(
            _heads_divide(scenario, each.attention) for each in blocks
        ):
            yield (
                f"for '{model.id}': its heads do not divide by {parallel.context}, which the library "
                "refuses, too"
            )
        return
    known = _TITAN if scenario.stack.model_parallel == "tokens" else _PLANNED
    if model.architecture not in known:
        yield f"for architecture '{model.architecture}'; {', '.join(sorted(known))} are"
    elif model.vision is not None or model.is_moe:
        yield "for mixtures of experts and models that see"
    elif not _divides(model, parallel.tensor):
        yield (
            f"for '{model.id}': its heads or features do not divide by {parallel.tensor}, which the "
            "libraries refuse, too"
        )
    elif (parallel.tensor > 1 or parallel.pipeline > 1) and model.tied:
        yield "for models whose head is their token table"
    windows = any(group.block.attention.window_tokens for group in model.groups)
    if parallel.context > 1 and windows:
        yield "for layers with a window, which Accelerate refuses, too"


def _has_plain_heads(block: BlockSpec) -> bool:
    """Heads of one width with rotary positions, which is all that the code of the gathered heads takes."""
    spec = block.attention
    latent = any(linear.reads == "attn_latent_kv" for linear in block.linears)
    plain = spec.position == "rope" and spec.head_dim == spec.value_head_dim and spec.pieces == "none"
    return block.mixer is None and plain and not (latent or spec.softcap or spec.sinks)


def _heads_divide(scenario: Scenario, spec: AttentionSpec) -> bool:
    """Whether every GPU gets as many heads; DeepSpeed copies those of keys where there are fewer than GPUs.

    Source: deepspeed 0.19.8 runtime/sequence_parallel/ulysses_sp.py UlyssesSPAttentionHF.__init__.
    """
    parts = scenario.recipe.parallel.context
    copies = _by_deepspeed(scenario) and parts % spec.n_kv_heads == 0
    return not spec.n_heads % parts and (copies or not spec.n_kv_heads % parts)


def _of_stack(scenario: Scenario) -> Iterator[str]:
    recipe, stack, hardware = scenario.recipe, scenario.stack, scenario.hardware
    if stack.model_parallel == "unread":
        yield f"on stack '{stack.id}', of which nobody read how it divides a model"
    elif stack.model_parallel in ("gathered_heads", "exchanged_heads") and recipe.parallel.tensor > 1:
        yield f"on stack '{stack.id}', which divides sequences alone"
    elif _by_trainer(scenario):
        yield from _of_trainer(scenario)
    elif stack.model_parallel == "features":
        yield from of_divided_matrices(scenario)
        if recipe.loss != "hf":
            yield f"with loss {recipe.loss}: say --loss hf"
    elif (
        stack.model_parallel != "gathered_heads"
        and recipe.parallel.pipeline == 1
        and not recipe.sharding.frees_blocks
    ):
        alone = hardware.world_size == recipe.parallel.gpus and not recipe.sharding.communicates
        if not alone:
            yield (
                f"with sharding {recipe.sharding.name} on stack '{stack.id}', which has FSDP2 alone: "
                "say --sharding fsdp or hsdp"
            )
        elif recipe.numerics.mixed:
            yield _CASTS_NOTHING.format(recipe.numerics.precision)


def _of_trainer(scenario: Scenario) -> Iterator[str]:
    recipe, stack = scenario.recipe, scenario.stack
    if _by_ring(scenario) and not stack.runs_trainer:
        yield f"on stack '{stack.id}', of whose division of sequences nobody read the code"
    if not (recipe.uses_deepspeed or recipe.sharding in (FSDP, FSDP_GRAD_OP)) or recipe.parallel.tensor > 1:
        yield (
            f"on stack '{stack.id}' without ZeRO or FSDP2, or with divided matrices: "
            "--sharding zero3 or fsdp has it"
        )
    if scenario.run.evaluates and not _by_ring(scenario):
        yield "with evaluation, for which DeepSpeed divides no sequence"


def _of_ring(scenario: Scenario) -> Iterator[str]:
    """What torch's ring does not take: it calls FlashAttention inside of SDPA, without a mask.

    Source: torch 2.13 distributed/tensor/experimental/_context_parallel/_attention.py; accelerate 1.15
    big_modeling.py _attach_context_parallel_hooks, which refuses windows; trl 1.16 trainer/sft_trainer.py.
    """
    shapes = [group.block.attention for group in scenario.model.groups]
    if any(each.window_tokens for each in shapes):
        yield "for layers with a window, which Accelerate refuses, too"
    wide = any(each.head_dim > FLASH_WIDEST for each in shapes)
    if wide or scenario.recipe.numerics.compute_dtype == "fp32" or lacks_flash2(scenario.hardware.gpu):
        yield "where SDPA has no FlashAttention, whose steps alone were read"
    if any(each.n_kv_heads != each.n_heads and each.sdpa_input != "grouped" for each in shapes):
        yield "for keys that are broadcast over heads"
    if scenario.stack.masks_samples(scenario.recipe):
        yield "for packed samples, whose mask the ring drops; TRL refuses them, too: --padding longest"


def _divides(model: ModelSpec, parts: int) -> bool:
    """Whether heads and feed-forward features divide evenly."""
    blocks = [group.block for group in model.groups]
    counts = [
        n for block in blocks for n in (block.attention.n_heads, block.attention.n_kv_heads, block.mlp.width)
    ]
    return all(n % parts == 0 for n in counts)
