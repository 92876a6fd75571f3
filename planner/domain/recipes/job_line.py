"""The job in one line: as the first line of an answer, in fewer words, and as a cell of a table."""

from __future__ import annotations

from collections.abc import Sequence

from planner.domain.hardware import Hardware
from planner.domain.recipes.recipe import Adapter, Recipe
from planner.domain.scenario import Scenario
from planner.units import format_count, plain_number


def job_line(scenario: Scenario) -> str:
    """The whole job: model, method, GPUs, what is divided, sizes, stack."""
    model, batch = scenario.model, scenario.recipe.batch
    active = f", {format_count(model.active_param_count)} active" if model.is_moe else ""
    seq, micro, accum = (plain_number(size) for size in (batch.seq_len, batch.micro_batch, batch.grad_accum))
    parts = [
        f"{model.id} ({format_count(model.param_count)} parameters{active})",
        method_words(scenario.recipe),
        *_task(scenario.recipe),
        _gpus_words(scenario.hardware, scenario.hardware.gpu.name),
        *_distribution(scenario.recipe),
        f"seq {seq} x micro-batch {micro} x accumulation {accum}",
        scenario.stack.id,
    ]
    return ", ".join(parts)


def short_job_line(scenario: Scenario, *, with_gpus: bool = True, also: Sequence[str] = ()) -> str:
    """The job in fewer words, with the card by the name to type.

    ``with_gpus`` is off where the job runs on this machine or on none.  ``also``:
    what else tells this job from its neighbours.
    """
    recipe, hardware = scenario.recipe, scenario.hardware
    accum = plain_number(recipe.batch.grad_accum)
    parts = [
        scenario.model.id,
        method_words(recipe, doubled=False),
        *_task(recipe),
        f"seq {plain_number(recipe.batch.seq_len)}",
        f"batch {plain_number(recipe.batch.micro_batch)}",
        *([] if accum == "1" else [f"accumulation {accum}"]),
        *([_gpus_words(hardware, hardware.gpu.id)] if with_gpus else []),
        scenario.stack.id,
        *_distribution(recipe),
        *also,
    ]
    return ", ".join(parts)


def picture_title(scenario: Scenario) -> str:
    """Above a picture of the step: what decides its memory on any card."""
    also = (scenario.recipe.optimizer, *(recomputation_words(scenario.recipe) or ("no checkpointing",)))
    return short_job_line(scenario, with_gpus=False, also=also)


def job_cell(scenario: Scenario) -> str:
    """Recipe and GPUs beside a row's name:
    ``qlora nf4 r=64 zero3 offload:opt+par 2x rtx4090 4x1024`` (micro-batch x length).
    """
    recipe, hardware, world = scenario.recipe, scenario.hardware, scenario.hardware.world_size
    saved = "+".join(recipe.adapter.modules_to_save) if recipe.adapter else ""
    parts = [
        " ".join((*_task(recipe), f"{method_words(recipe)}{f' +{saved}' if saved else ''}")),
        *(
            each.replace("offload ", "offload:").replace("optimizer", "opt").replace("params", "par")
            for each in _distribution(recipe)
        ),
        f"{f'{world}x ' if world > 1 else ''}{hardware.gpu.id}",
        f"{plain_number(recipe.batch.micro_batch)}x{plain_number(recipe.batch.seq_len)}",
    ]
    return " ".join(parts)


def method_words(recipe: Recipe, *, doubled: bool = True) -> str:
    """What people call the method: ``full``, ``full of last:8``, ``lora r=16``,
    ``qlora nf4+dq r=16``, ``lora on int8 r=16``.

    ``doubled``: whether double quantisation is named; without, ``qlora nf4`` has it and ``lora on nf4`` not,
    as ``--method`` means them.
    """
    numerics = recipe.numerics
    rounded = "" if numerics.qat == "none" else f" qat {numerics.qat}"
    if recipe.adapter is None:
        trained = f" of {'+'.join(recipe.train_layers)}" if recipe.train_layers else ""
        narrow = "" if numerics.fp8 == "none" else f" in fp8 {numerics.fp8}"
        return f"{recipe.method}{trained}{narrow}{rounded}"
    rank = f"{_adapter(recipe.adapter)}{rounded}"
    if numerics.quantization == "none":
        return f"lora {rank}"
    if numerics.quantization in ("nf4", "fp4") and (doubled or numerics.double_quant):
        return f"qlora {numerics.quantization}{'+dq' if doubled and numerics.double_quant else ''} {rank}"
    return f"lora on {numerics.quantization} {rank}"


def _adapter(adapter: Adapter) -> str:
    """The kind of adapters where they are not LoRA's alone, with their rank or the size of their blocks."""
    if adapter.oft_block_size:
        return f"oft b={adapter.oft_block_size}"
    kind = "dora " if adapter.dora else "vera " if adapter.vera else ""
    return f"{kind}r={plain_number(adapter.rank)}"


def _task(recipe: Recipe) -> tuple[str, ...]:
    """What is trained for, where that is not supervised fine-tuning."""
    return () if recipe.task == "sft" else (recipe.task,)


def recomputation_words(recipe: Recipe) -> tuple[str, ...]:
    """``checkpointing``, its reentrant variant, every how many layers;
    nothing where all activations are kept.
    """
    if not recipe.gradient_checkpointing:
        return ()
    kind = "reentrant checkpointing" if recipe.checkpoint_reentrant else "checkpointing"
    kind = f"selective {kind}" if recipe.checkpoint_policy == "selective-op" else kind
    return (f"{kind} every {recipe.checkpoint_every} layers" if recipe.rebuilds_some else kind,)


def _gpus_words(hardware: Hardware, card: str) -> str:
    """``1 x NVIDIA RTX 4090``, or ``4 nodes x 8 x H100 SXM``."""
    nodes = f"{hardware.nodes} nodes x " if hardware.nodes > 1 else ""
    return f"{nodes}{hardware.gpus_per_node} x {card}"


def _distribution(recipe: Recipe) -> tuple[str, ...]:
    parallel = recipe.parallel
    sharding: tuple[str, ...] = (recipe.sharding.name,) if recipe.sharding.communicates else ()
    sharding += (f"{parallel.replicas} replicas",) if parallel.replicas else ()
    sharding += (f"hpz {parallel.hpz}",) if parallel.hpz > 1 else ()
    sharding += (f"tensor parallel {parallel.tensor}",) if parallel.tensor > 1 else ()
    runs = f", {parallel.runs} runs each" if parallel.chunks > 2 else ""
    sharding += (
        (f"pipeline parallel {parallel.pipeline} ({parallel.schedule}{runs})",)
        if parallel.pipeline > 1 and not parallel.in_turn
        else ()
    )
    sharding += (f"layers over {parallel.pipeline} GPUs in one process",) if parallel.in_turn else ()
    sharding += (f"context parallel {parallel.context}",) if parallel.context > 1 else ()
    sharding += (f"expert parallel {parallel.experts}",) if parallel.experts > 1 else ()
    sharding += (f"expert tensor parallel {parallel.expert_tensor}",) if parallel.expert_tensor > 1 else ()
    return sharding if recipe.offload == "none" else (*sharding, f"offload {recipe.offload}")
