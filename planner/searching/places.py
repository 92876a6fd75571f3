"""Changes of where a job runs: other software, other or more cards, GPUs that share a sequence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.catalog.gpus import load_gpu
from planner.catalog.stacks import load_stack
from planner.domain.hardware import GpuSpec, Hardware
from planner.domain.recipes.sharding import DDP, FSDP, NONE, ZERO3
from planner.domain.scenario import Scenario
from planner.domain.stack import Stack
from planner.intake.supported import lacks_flash2
from planner.searching.common_stacks import (
    COMMON_STACKS,
    LOADS_ON_HOST,
    offloads_activations,
    runs_sharding,
    stack_is_open,
)
from planner.searching.moves import Move, divisible, mixed_precision, stepped
from planner.searching.variants import Flags, request_of
from planner.units import GIB
from planner.words import words

MAX_LARGER_CARDS = 3
MAX_GPUS_OF_A_NODE = 8
_FACTORS = (2, 4, 8)
_NODE_FACTORS = (*_FACTORS, 16)
# At this length an 8B model with adapters, checkpoints and a fused loss needs 27 GiB of one GPU:
# shorter sequences have cheaper ways out.
_LONG_TOKENS = 16_384
# Cards of one size differ by a few per cent in what they make visible; that is not more memory.
_LARGER = 1.1
# Cards that are commonly bought or rented, of every size.
COMMON_CARDS = words(
    """
    rtx3060-12g rtx4060ti-16g rtx3090 rtx4090 rtx5090 rtx-a6000 rtx6000-ada l40s a100-40-sxm a100-80-sxm
    h100-sxm rtxpro6000-bw h200-sxm b200
    """
)


def other_stacks(scenario: Scenario) -> tuple[Move, ...]:
    """The common stacks that could run the job instead of the assumed one; none where the stack was given."""
    if not stack_is_open(scenario):
        return ()
    stacks = (
        load_stack(name)
        for name in COMMON_STACKS
        if name != scenario.stack.id and runs_sharding(name, scenario.recipe.sharding)
    )
    return tuple(
        Move(
            "stack",
            "free",
            f"stack {stack.id.partition('@')[0]}",
            {"stack": stack.id, **_loss_of(stack, scenario)},
            stack=stack,
        )
        for stack in stacks
    )


def _loss_of(stack: Stack, scenario: Scenario) -> dict[str, str]:
    """The stack's own loss where it has no switch for Liger's, which the job asks for."""
    has_none = scenario.recipe.loss == "liger" and not stack.offers_liger_loss
    return {"loss": stack.defaults.loss} if has_none else {}


def inputs_in_host_ram(scenario: Scenario) -> Iterator[Move]:
    """Other common stacks that keep saved block inputs in host RAM, where the job's own cannot.

    FlashAttention 2 comes along: it needs no mask, which of long sequences is the largest tensor.
    """
    recipe = scenario.recipe
    keeps = recipe.gradient_checkpointing and recipe.offload == "none"
    if not keeps or offloads_activations(scenario.stack):
        return
    flags: Flags = {} if lacks_flash2(scenario.hardware.gpu) else {"attention": "flash2"}
    for move in other_stacks(scenario):
        if move.stack is not None and offloads_activations(move.stack):
            yield replace(
                move,
                kind="time",
                description=f"{move.description}, saved block inputs in host RAM",
                flags={**move.flags, **flags, "offload": "activations"},
            )


def loaded_on_host(scenario: Scenario) -> Iterator[Move]:
    """4-bit weights divided by FSDP, which newer software first has whole on each GPU."""
    recipe = scenario.recipe
    packs = recipe.numerics.quantization in ("nf4", "fp4") and recipe.offload == "none"
    if scenario.hardware.world_size == 1 or not packs or not stack_is_open(scenario):
        return
    stack = load_stack(LOADS_ON_HOST)
    divided = {**divisible(scenario, FSDP), **stepped(scenario, FSDP)}
    flags: Flags = {"stack": stack.id, "sharding": FSDP.name, **divided, "gradient-checkpointing": True}
    text = "4-bit weights divided over the GPUs, loaded by older software"
    yield Move("stack", "time", text, flags, stack=stack)
    text += ", and kept in host RAM"
    yield Move("stack", "money", text, {**flags, "offload": "optimizer+params"}, stack=stack)


def larger_cards(scenario: Scenario, need_bytes: float) -> tuple[Move, ...]:
    """The next larger common cards that make ``need_bytes`` visible, one of each size, smallest first.

    Of equal sizes the card of the same generation is taken, then the one with the highest memory bandwidth.
    """
    current, count = scenario.hardware.gpu, scenario.hardware.gpus_per_node
    wanted = max(
        need_bytes + scenario.hardware.gpu_reserved_bytes, _LARGER * (current.visible_memory_bytes or 0)
    )
    cards = [card for card in map(load_gpu, COMMON_CARDS) if (card.visible_memory_bytes or 0) >= wanted]
    by_size: dict[int, GpuSpec] = {}
    for card in sorted(cards, key=lambda each: _card_order(each, current)):
        by_size.setdefault(card.marketing_memory_bytes or 0, card)
    chosen = sorted(by_size.values(), key=lambda each: each.visible_memory_bytes or 0)[:MAX_LARGER_CARDS]
    return tuple(
        Move(
            "card",
            "money",
            f"{_size_text(card)} card: {card.name.partition(' (')[0]}",
            {"gpu": f"{card.id}:{count}" if count > 1 else card.id, **_own_memory(scenario)},
            replace(scenario.hardware, gpu=card),
        )
        for card in chosen
    )


def more_cards(scenario: Scenario) -> tuple[Move, ...]:
    """Two, four and eight times as many of the same card in the node, with the weights divided over them.

    Accumulation falls with the number of cards where it can, so that the global batch stays.
    """
    hardware = scenario.hardware
    if not hardware.gpu.is_cuda or "mig" in hardware.gpu.id or hardware.nodes > 1:
        return ()
    counts = (factor * hardware.gpus_per_node for factor in _FACTORS)
    return tuple(
        _divided(
            scenario,
            f"{count} of these cards, weights divided",
            {"gpu": f"{hardware.gpu.id}:{count}"},
            replace(hardware, gpus_per_node=count),
        )
        for count in counts
        if count <= MAX_GPUS_OF_A_NODE
    )


def more_nodes(scenario: Scenario) -> tuple[Move, ...]:
    """Twice to 16 times as many nodes, where no node takes more cards."""
    hardware = scenario.hardware
    if not hardware.gpu.is_cuda or 2 * hardware.gpus_per_node <= MAX_GPUS_OF_A_NODE:
        return ()
    return tuple(
        _divided(
            scenario,
            f"{factor * hardware.nodes} such nodes, weights divided",
            {"nodes": str(factor * hardware.nodes)},
            replace(hardware, nodes=factor * hardware.nodes),
        )
        for factor in _NODE_FACTORS
    )


def _divided(scenario: Scenario, description: str, place: Flags, hardware: Hardware) -> Move:
    """The weights divided over more of the same cards, by less accumulation where it can fall."""
    recipe = scenario.recipe
    factor, accum = hardware.world_size // scenario.hardware.world_size, int(recipe.batch.grad_accum)
    sharding = recipe.sharding if recipe.sharding.gathers_weights else FSDP
    flags = dict(place)
    flags |= {"sharding": sharding.name} if sharding != recipe.sharding else {}
    flags |= {**divisible(scenario, sharding), **stepped(scenario, sharding)}
    flags |= {"grad-accum": str(accum // factor)} if accum % factor == 0 else {}
    return Move("card", "money", description, flags, hardware)


def divided_sequences(scenario: Scenario) -> tuple[Move, ...]:
    """Each long sequence over two, four or eight GPUs of a node, with what the software wants beside that.

    Accumulation grows with the number of GPUs that share a sequence, so that the global batch stays.
    """
    recipe, batch = scenario.recipe, scenario.recipe.batch
    if batch.seq_len < _LONG_TOKENS or batch.rows > 1 or batch.is_padded or recipe.parallel.divides:
        return ()
    by_deepspeed = scenario.stack.model_parallel == "features"
    sharding = ZERO3 if by_deepspeed and recipe.sharding.engine != "deepspeed" else recipe.sharding
    wanted: dict[str, str] = {} if batch.padding == "packed" else {"padding": "packed"}
    wanted |= {"sharding": sharding.name} if sharding != recipe.sharding else {}
    wanted |= {**mixed_precision(scenario, sharding), **divisible(scenario, sharding)}
    if not by_deepspeed and scenario.stack.model_parallel != "tokens" and recipe.attention != "flash2":
        wanted["attention"] = "flash2"
    return tuple(
        Move(
            "context",
            "time",
            f"each sequence divided over {count} GPUs",
            {"context-parallel": str(count), **wanted, "grad-accum": str(int(batch.grad_accum) * count)},
        )
        for count in (2, 4, 8)
        if scenario.hardware.gpus_per_node % count == 0
    )


def one_process(scenario: Scenario) -> tuple[Move, ...]:
    """The layers spread over the GPUs of a node in one process, which accumulates for all of them."""
    hardware, recipe = scenario.hardware, scenario.recipe
    count = hardware.gpus_per_node
    if count == 1 or hardware.nodes > 1 or recipe.sharding not in (NONE, DDP) or recipe.parallel.divides:
        return ()
    flags: dict[str, str | bool | None] = {"device-map": "auto"}
    flags |= {"sharding": None} if "sharding" in request_of(scenario).values else {}
    flags |= {"grad-accum": str(int(recipe.batch.grad_accum) * count)}
    return (Move("sharding", "time", "layers spread over the GPUs in one process", flags),)


def _own_memory(scenario: Scenario) -> dict[str, None]:
    """Leaves ``--gpu-memory`` out where it was given: another card has its own."""
    memory = scenario.assumption("gpu_memory")
    return {} if memory is None or memory.is_from_catalog or memory.is_assumed else {"gpu-memory": None}


def _size_text(card: GpuSpec) -> str:
    return f"{round((card.marketing_memory_bytes or card.visible_memory_bytes or 0) / GIB)} GB"


def _card_order(card: GpuSpec, current: GpuSpec) -> tuple[bool, float, str]:
    return card.generation != current.generation, -(card.memory_bandwidth_bytes_per_s or 0), card.id
