"""Single changes of a job that could save memory: what each costs,
the words for it and the flags that ask for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from planner.catalog.gpus import load_gpu
from planner.catalog.stacks import load_stack
from planner.domain.hardware import GpuSpec, Hardware
from planner.domain.recipes.optimizers import Optimizer
from planner.domain.recipes.recipe import Offload
from planner.domain.recipes.sharding import DDP, FSDP, NONE, ZERO2, ZERO3, Sharding
from planner.domain.scenario import Scenario
from planner.domain.stack import Stack
from planner.domain.uncertainty.coefficients import Coefficients
from planner.intake.supported import (
    GPU_ONLY_OPTIMIZERS,
    cannot_step,
    code_lacks,
    has_sinks,
    lacks_flash2,
    stops_at_liger_loss,
    takes_liger_loss,
)
from planner.program.job import job_of
from planner.searching.common_stacks import (
    COMMON_STACKS,
    LOADS_ON_HOST,
    offloads_activations,
    runs_sharding,
    stack_is_open,
)
from planner.searching.variants import Flags, request_of, warnings_about
from planner.units import GIB
from planner.words import words

LeverKind = Literal["free", "time", "money", "training"]
"""What a change costs: nothing (the training stays as it is, too), time, money or host RAM,
or the training itself changes.
"""
KINDS: tuple[LeverKind, ...] = ("free", "time", "money", "training")
CHEAP = KINDS[:2]
"""What the first answer shows of a job that fits: nobody pays otherwise for room that is not needed."""
MAX_LARGER_CARDS = 3
MAX_GPUS_OF_A_NODE = 8
_FACTORS = (2, 4, 8)
_NODE_FACTORS = (*_FACTORS, 16)
_SMALLEST_LENGTH_TOKENS = 2
# Of one trained parameter, all in fp32: itself, its gradient and the two states of AdamW.
_STATE_BYTES = 16
# At this length an 8B model with adapters, checkpoints and a fused loss needs 27 GiB of one GPU:
# shorter sequences have cheaper ways out.
_LONG_TOKENS = 16_384
# Cards of one size differ by a few per cent in what they make visible; that is not more memory.
_LARGER = 1.1
# Cards that are commonly bought or rented, of every size.
_COMMON_CARDS = words(
    """
    rtx3060-12g rtx4060ti-16g rtx3090 rtx4090 rtx5090 rtx-a6000 rtx6000-ada l40s a100-40-sxm a100-80-sxm
    h100-sxm rtxpro6000-bw h200-sxm b200
    """
)


@dataclass(frozen=True, slots=True)
class Move:
    """One change.  Moves of one ``topic`` exclude each other.
    ``hardware`` and ``stack`` are what a move to others takes.
    """

    topic: str
    kind: LeverKind
    description: str
    flags: Flags
    hardware: Hardware | None = None
    stack: Stack | None = None


def moves(scenario: Scenario) -> tuple[Move, ...]:
    """Changes of the recipe worth an estimate, the cheapest kind first.  Some may break a rule:
    the caller checks.
    """
    every = (
        *_loss(scenario),
        *_storage(scenario),
        *_attention(scenario),
        *_optimizer(scenario),
        *_checkpointing(scenario),
        *_vllm(scenario),
        *_evaluation(scenario),
        *_batch(scenario),
        *_sharding(scenario),
        *_offload(scenario),
        *_method(scenario),
        *_load_dtype(scenario),
        *_adapter(scenario),
        *_length(scenario),
    )
    return tuple(sorted(every, key=lambda move: KINDS.index(move.kind)))


def other_stacks(scenario: Scenario) -> tuple[Move, ...]:
    """The common stacks that could run the job instead of the assumed one; none where the stack was given."""
    if not stack_is_open(scenario):
        return ()
    names = [
        name
        for name in COMMON_STACKS
        if name != scenario.stack.id and runs_sharding(name, scenario.recipe.sharding)
    ]
    return tuple(
        Move(
            "stack",
            "free",
            f"stack {name.partition('@')[0]}",
            {"stack": name},
            stack=load_stack(name),
        )
        for name in names
    )


def loaded_on_host(scenario: Scenario) -> Iterator[Move]:
    """4-bit weights divided by FSDP, which newer software first has whole on each GPU."""
    recipe = scenario.recipe
    packs = recipe.numerics.quantization in ("nf4", "fp4") and recipe.offload == "none"
    if scenario.hardware.world_size == 1 or not packs or not stack_is_open(scenario):
        return
    stack = load_stack(LOADS_ON_HOST)
    divided = {**_divisible(scenario, FSDP), **_stepped(scenario, FSDP)}
    flags: Flags = {"stack": stack.id, "sharding": FSDP.name, **divided, "gradient-checkpointing": True}
    text = "4-bit weights divided over the GPUs, loaded by older software"
    yield Move("stack", "time", text, flags, stack=stack)
    text += ", and kept in host RAM"
    yield Move("stack", "money", text, {**flags, "offload": "optimizer+params"}, stack=stack)


def smaller_batches(scenario: Scenario) -> tuple[Move, ...]:
    """Half of the micro-batch, half of that and so on; where it does not halve, one sample.

    The optimizer step stays the same: it is summed up over more and smaller passes.
    """
    micro, accum = int(scenario.recipe.batch.micro_batch), int(scenario.recipe.batch.grad_accum)
    found, size = [], micro
    while size > 1:
        size = size // 2 if size % 2 == 0 else 1
        flags: Flags = {"batch": str(size), "grad-accum": str(accum * micro // size)}
        found.append(Move("batch", "time", f"micro-batch {size}, same global batch", flags))
    return tuple(found)


def less_offload(scenario: Scenario) -> tuple[Move, ...]:
    """Less in host RAM, for a node that has too little of it: what comes back takes memory of the card."""
    options = {"optimizer+params": ("optimizer", "none"), "none": ()}.get(scenario.recipe.offload, ("none",))
    words = {"optimizer": "weights on the card", "none": "nothing in host RAM"}
    return tuple(Move("offload", "free", words[each], {"offload": each}) for each in options)


def larger_cards(scenario: Scenario, need_bytes: float) -> tuple[Move, ...]:
    """The next larger common cards that make ``need_bytes`` visible, one of each size, smallest first.

    Of equal sizes the card of the same generation is taken, then the one with the highest memory bandwidth.
    """
    current, count = scenario.hardware.gpu, scenario.hardware.gpus_per_node
    wanted = max(
        need_bytes + scenario.hardware.gpu_reserved_bytes, _LARGER * (current.visible_memory_bytes or 0)
    )
    cards = [card for card in map(load_gpu, _COMMON_CARDS) if (card.visible_memory_bytes or 0) >= wanted]
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
    flags |= {**_divisible(scenario, sharding), **_stepped(scenario, sharding)}
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
    wanted |= {**_mixed_precision(scenario, sharding), **_divisible(scenario, sharding)}
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


def _loss(scenario: Scenario) -> Iterator[Move]:
    if scenario.recipe.loss != "hf":
        return
    if scenario.stack.defaults.loss == "chunked":
        yield Move("loss", "free", "head and loss in pieces", {"loss": "chunked"})
    model, stack = scenario.model, scenario.stack
    useless = model.remote_code or not takes_liger_loss(model, stack) or stops_at_liger_loss(model, stack)
    if stack.offers_liger_loss and not useless:
        yield Move("loss", "free", "Liger's fused head and loss", {"loss": "liger"})


def _storage(scenario: Scenario) -> Iterator[Move]:
    if storage := _divisible(scenario, scenario.recipe.sharding):
        yield Move("storage", "free", "4-bit weights divided over the GPUs", storage)


def _attention(scenario: Scenario) -> Iterator[Move]:
    current = scenario.recipe.attention
    if current == "eager" and not code_lacks(scenario.model, scenario.stack, "sdpa"):
        yield Move("attention", "free", "PyTorch's fused attention", {"attention": "sdpa"})
    if current != "flash2" and not (lacks_flash2(scenario.hardware.gpu) or has_sinks(scenario.model)):
        yield Move("attention", "free", "FlashAttention 2", {"attention": "flash2"})


_ADAMW_OF_32_BITS = ("adamw_torch", "adamw_torch_fused", "adamw_hf")


def _optimizer(scenario: Scenario) -> Iterator[Move]:
    current = scenario.recipe.optimizer
    options: list[tuple[Optimizer, LeverKind, str]] = []
    if current in ("adamw_torch", "adamw_hf"):
        options.append(("adamw_torch_fused", "free", "fused AdamW"))
    if current in _ADAMW_OF_32_BITS:
        options.append(("paged_adamw_32bit", "money", "optimizer states paged to host RAM"))
    if current in (*_ADAMW_OF_32_BITS, "paged_adamw_32bit", "lion"):
        options.append(("adamw_8bit", "training", "optimizer states in 8 bits"))
    if current != "paged_adamw_8bit":
        options.append(("paged_adamw_8bit", "training", "optimizer states in 8 bits, paged"))
    for name, kind, description in options:
        if not cannot_step(name, scenario.recipe.sharding):
            yield Move("optimizer", kind, description, {"optimizer": name})


def _checkpointing(scenario: Scenario) -> Iterator[Move]:
    recipe = scenario.recipe
    if not recipe.gradient_checkpointing:
        yield Move("checkpointing", "time", "gradient checkpointing", {"gradient-checkpointing": True})
    elif recipe.checkpoint_every > 1:
        yield Move("checkpointing", "time", "checkpointing of every layer", {"checkpoint-every": "1"})


def _vllm(scenario: Scenario) -> Iterator[Move]:
    """vLLM on the same card need not keep its memory while the model is trained."""
    rollout = scenario.recipe.rollout
    if rollout is not None and rollout.generator == "vllm" and not rollout.vllm_sleeps:
        yield Move("vllm", "time", "a vLLM that sleeps while the model is trained", {"vllm-sleep": True})


def _batch(scenario: Scenario) -> Iterator[Move]:
    """Half of the micro-batch, and one sample."""
    found = smaller_batches(scenario)
    yield from (*found[:1], *found[1:][-1:])


def _sharding(scenario: Scenario) -> Iterator[Move]:
    recipe = scenario.recipe
    if scenario.hardware.world_size == 1 or recipe.offload not in ("none", "activations"):
        return
    for option in (ZERO2, ZERO3, FSDP):
        if option == recipe.sharding or (recipe.sharding.divides_gradients and not option.divides_weights):
            continue
        flags = {
            **_mixed_precision(scenario, option),
            **_divisible(scenario, option),
            **_stepped(scenario, option),
        }
        divided = "weights" if option.divides_weights else "states and gradients"
        yield Move(
            "sharding",
            "time",
            f"{divided} divided over the GPUs ({option})",
            {"sharding": option.name, **flags},
        )


def _offload(scenario: Scenario) -> Iterator[Move]:
    recipe = scenario.recipe
    if recipe.offload != "none":
        return
    if recipe.gradient_checkpointing and offloads_activations(scenario.stack):
        yield Move("offload", "time", "saved block inputs in host RAM", {"offload": "activations"})
    divided = recipe.sharding.divides_optimizer
    stage = recipe.sharding if divided else ZERO2
    wholes = (FSDP, ZERO3) if not divided and scenario.hardware.world_size > 1 else (ZERO3,)
    options: list[tuple[Sharding, Offload, str]] = [
        (whole, "optimizer+params", "weights and optimizer")
        for whole in ((stage,) if recipe.uses_fsdp else wholes)
    ]
    if not recipe.uses_fsdp and has_large_states(scenario):
        options.append((stage, "optimizer", "optimizer states"))
    for sharding, offload, moved in options:
        flags: dict[str, str | bool | None] = (
            {} if sharding == recipe.sharding else {"sharding": sharding.name}
        )
        flags |= {
            "offload": offload,
            **_mixed_precision(scenario, sharding),
            **_divisible(scenario, sharding),
            **_stepped(scenario, sharding),
        }
        if recipe.optimizer in GPU_ONLY_OPTIMIZERS:
            flags["optimizer"] = "adamw_torch"
        yield Move("offload", "money", f"{moved} in host RAM", flags)


def has_large_states(scenario: Scenario) -> bool:
    """Whether what is trained, with its gradients and states, is a GiB or more: of adapters it seldom is.

    Of a model whose layers are divided nobody counts it: its states are taken for large.
    """
    if scenario.recipe.parallel.pipeline > 1:
        return True
    return bool(_STATE_BYTES * job_of(scenario, Coefficients()).trained >= GIB)


def _mixed_precision(scenario: Scenario, sharding: Sharding) -> dict[str, str]:
    """DeepSpeed keeps fp32 masters: what says pure 16-bit has to say mixed there."""
    precision = scenario.recipe.numerics.precision
    return (
        {"precision": f"{precision}-mixed"}
        if sharding.engine == "deepspeed" and precision in ("bf16", "fp16")
        else {}
    )


def _divisible(scenario: Scenario, sharding: Sharding) -> dict[str, str]:
    """4-bit bytes are divided only when they are stored as elements of a float dtype;
    PEFT advises that of the compute.
    """
    numerics = scenario.recipe.numerics
    four_bit = numerics.quantization in ("nf4", "fp4") and numerics.quant_storage is None
    return {"quant-storage": numerics.compute_dtype} if four_bit and sharding.gathers_weights else {}


def _stepped(scenario: Scenario, sharding: Sharding) -> dict[str, str]:
    """An optimizer that can step what the sharding hands it."""
    return {"optimizer": "adamw_torch"} if cannot_step(scenario.recipe.optimizer, sharding) else {}


def _method(scenario: Scenario) -> Iterator[Move]:
    recipe = scenario.recipe
    everything: Flags = {"train-layers": None} if recipe.train_layers else {}
    if recipe.method == "full":
        yield Move("method", "training", "adapters instead of all weights", {"method": "lora", **everything})
    if recipe.numerics.quantization in ("none", "int8"):
        given = "quantization" in request_of(scenario).values
        flags: Flags = {"method": "qlora", "quantization": "nf4"} if given else {"method": "qlora"}
        yield Move("method", "training", "adapters over a 4-bit base", {**flags, **everything})


def _load_dtype(scenario: Scenario) -> Iterator[Move]:
    """A frozen base in 32 bits is cast for each product anyway; DeepSpeed casts all of it at once."""
    numerics = scenario.recipe.numerics
    narrow = numerics.compute_dtype
    if scenario.recipe.adapter is None or numerics.load_dtype != "fp32" or narrow == "fp32":
        return
    if numerics.quantization == "none":
        yield Move("load", "free", f"frozen weights loaded in {narrow}", {"load-dtype": narrow})


def _adapter(scenario: Scenario) -> Iterator[Move]:
    adapter = scenario.recipe.adapter
    if adapter is None:
        return
    if "fused-experts-adapted" in warnings_about(scenario):
        text = "adapters of attention alone, none of experts"
        yield Move("targets", "training", text, {"lora-targets": "attention"})
    if adapter.rank > 1:
        yield Move("rank", "training", "half the LoRA rank", {"lora-rank": str(int(adapter.rank) // 2)})
    if adapter.modules_to_save:
        yield Move(
            "modules",
            "training",
            f"{', '.join(adapter.modules_to_save)} not trained",
            {"modules-to-save": None},
        )


def _evaluation(scenario: Scenario) -> Iterator[Move]:
    evaluated, trained = scenario.run.eval_micro_batch, int(scenario.recipe.batch.micro_batch)
    if evaluated is not None and evaluated > trained:
        yield Move(
            "evaluation", "free", "evaluation in batches of the training's size", {"eval-batch": str(trained)}
        )


def _length(scenario: Scenario) -> Iterator[Move]:
    batch = scenario.recipe.batch
    if batch.seq_len < _SMALLEST_LENGTH_TOKENS:
        return
    length = int(batch.seq_len) // 2
    flags = {"seq": str(length)}
    if "tokens_per_sample" in request_of(scenario).values and batch.tokens_per_sample > length:
        flags["tokens-per-sample"] = str(length)
    yield Move("length", "training", "half the length: cuts longer samples", flags)
