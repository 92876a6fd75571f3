"""Single changes of a job that could save memory: the words for each and the flags that ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.catalog.gpus import gpu_ids, load_gpu
from planner.domain.hardware import GpuSpec
from planner.domain.recipe import Offload, Optimizer, Sharding
from planner.domain.scenario import Scenario
from planner.intake.kernels import GPU_ONLY_OPTIMIZERS, cannot_step, code_lacks, lacks_flash2
from planner.searching.variants import Flags, request_of

MAX_LARGER_CARDS = 3
_SMALLEST_LENGTH_TOKENS = 2
# Cards of one size differ by a few per cent in what they make visible; that is not more memory.
_LARGER = 1.1


@dataclass(frozen=True, slots=True)
class Move:
    """One change.  Moves of one ``topic`` exclude each other.  ``gpu`` is the card that a move to another card takes."""

    topic: str
    description: str
    flags: Flags
    gpu: GpuSpec | None = None


def moves(scenario: Scenario) -> tuple[Move, ...]:
    """Changes of the recipe worth an estimate.  Some may break a rule: the caller checks."""
    return (
        *_checkpointing(scenario),
        *_batch(scenario),
        *_attention(scenario),
        *_loss(scenario),
        *_optimizer(scenario),
        *_method(scenario),
        *_sharding(scenario),
        *_offload(scenario),
        *_adapter(scenario),
        *_length(scenario),
    )


def larger_cards(scenario: Scenario, need_bytes: float) -> tuple[Move, ...]:
    """The next larger CUDA cards of the catalog that make ``need_bytes`` visible, one of each size, smallest first.

    Of equal sizes the card of the same generation is taken, then the one with the highest memory bandwidth.
    """
    current, count = scenario.hardware.gpu, scenario.hardware.gpus_per_node
    wanted = max(need_bytes + scenario.hardware.gpu_reserved_bytes, _LARGER * (current.visible_memory_bytes or 0))
    cards = [card for card in map(load_gpu, gpu_ids()) if card.is_cuda and (card.visible_memory_bytes or 0) >= wanted]
    by_size: dict[int, GpuSpec] = {}
    for card in sorted(cards, key=lambda each: _card_order(each, current)):
        by_size.setdefault(card.marketing_memory_bytes or 0, card)
    chosen = sorted(by_size.values(), key=lambda each: each.visible_memory_bytes or 0)[:MAX_LARGER_CARDS]
    return tuple(
        Move("card", f"a card with more memory: {card.name}", {"gpu": f"{card.id}:{count}" if count > 1 else card.id}, card)
        for card in chosen
    )


def _card_order(card: GpuSpec, current: GpuSpec) -> tuple[bool, float, str]:
    return card.generation != current.generation, -(card.memory_bandwidth_bytes_per_s or 0), card.id


def _checkpointing(scenario: Scenario) -> Iterator[Move]:
    if not scenario.recipe.gradient_checkpointing:
        yield Move("checkpointing", "recompute activations in backward", {"gradient-checkpointing": True})


def _batch(scenario: Scenario) -> Iterator[Move]:
    micro, accum = int(scenario.recipe.batch.micro_batch), int(scenario.recipe.batch.grad_accum)
    halved = micro // 2 if micro % 2 == 0 else 1
    for size in sorted({halved, 1}, reverse=True):
        if size < micro:
            flags: Flags = {"batch": str(size), "grad-accum": str(accum * micro // size)}
            yield Move("batch", "smaller micro-batch, same global batch", flags)


def _length(scenario: Scenario) -> Iterator[Move]:
    batch = scenario.recipe.batch
    if batch.seq_len < _SMALLEST_LENGTH_TOKENS:
        return
    length = int(batch.seq_len) // 2
    flags = {"seq": str(length)}
    if "tokens_per_sample" in request_of(scenario).values and batch.tokens_per_sample > length:
        flags["tokens-per-sample"] = str(length)
    yield Move("length", "half the length: changes the data, longer samples are cut", flags)


def _attention(scenario: Scenario) -> Iterator[Move]:
    current = scenario.recipe.attention
    if current == "eager" and not code_lacks(scenario.model, scenario.stack, "sdpa"):
        yield Move("attention", "fused attention kernel of PyTorch", {"attention": "sdpa"})
    if current != "flash2" and not lacks_flash2(scenario.hardware.gpu):
        yield Move("attention", "FlashAttention 2", {"attention": "flash2"})


def _loss(scenario: Scenario) -> Iterator[Move]:
    if scenario.recipe.loss != "hf":
        return
    if scenario.stack.defaults.loss == "chunked":
        yield Move("loss", "head and loss in chunks", {"loss": "chunked"})
    if scenario.stack.liger_loss and not scenario.model.remote_code:
        yield Move("loss", "head and loss in one Liger kernel", {"loss": "liger"})


def _optimizer(scenario: Scenario) -> Iterator[Move]:
    current = scenario.recipe.optimizer
    options: list[tuple[Optimizer, str]] = []
    if current == "adamw_torch":
        options.append(("adamw_torch_fused", "fused AdamW, without foreach temporaries"))
    if current in ("adamw_torch", "adamw_torch_fused", "paged_adamw_32bit", "lion"):
        options.append(("adamw_8bit", "optimizer states in 8 bits"))
    if current != "paged_adamw_8bit":
        options.append(("paged_adamw_8bit", "optimizer states in 8 bits, paged to host RAM"))
    for name, description in options:
        if not cannot_step(name, scenario.recipe.sharding):
            yield Move("optimizer", description, {"optimizer": name})


def _method(scenario: Scenario) -> Iterator[Move]:
    recipe = scenario.recipe
    if recipe.method == "full":
        yield Move("method", "train adapters instead of all weights", {"method": "lora"})
    if recipe.numerics.quantization in ("none", "int8"):
        said = "quantization" in request_of(scenario).values
        flags: Flags = {"method": "qlora", "quantization": "nf4"} if said else {"method": "qlora"}
        yield Move("method", "adapters over a 4-bit base", flags)


def _sharding(scenario: Scenario) -> Iterator[Move]:
    recipe = scenario.recipe
    if scenario.hardware.world_size == 1 or recipe.offload != "none":
        return
    options: tuple[Sharding, ...] = ("zero2", "zero3", "fsdp")
    for name in options:
        if name == recipe.sharding or (name == "zero2" and recipe.sharding not in ("none", "ddp", "zero1")):
            continue
        flags = {"sharding": name, **_mixed_precision(scenario, name), **_divisible(scenario, name)}
        if cannot_step(recipe.optimizer, name):
            flags["optimizer"] = "adamw_torch"
        divided = "optimizer states and gradients" if name == "zero2" else "weights, gradients and optimizer states"
        yield Move("sharding", f"divide {divided} over the GPUs", flags)


def _offload(scenario: Scenario) -> Iterator[Move]:
    recipe = scenario.recipe
    if recipe.offload != "none":
        return
    stage: Sharding = recipe.sharding if recipe.uses_deepspeed or recipe.uses_fsdp else "zero2"
    whole: Sharding = stage if recipe.uses_fsdp else "zero3"
    options: list[tuple[Sharding, Offload, str]] = [(whole, "optimizer+params", "optimizer states and weights in host RAM")]
    if not recipe.uses_fsdp:
        options.append((stage, "optimizer", "optimizer states in host RAM"))
    # Much of what this saves may be the engine's doing: it computes in 16 bits throughout, without autocast's copies.
    engine = "" if recipe.uses_deepspeed or recipe.uses_fsdp else "DeepSpeed's 16-bit engine, "
    for sharding, offload, description in options:
        flags: dict[str, str | bool | None] = {} if sharding == recipe.sharding else {"sharding": sharding}
        flags |= {"offload": offload, **_mixed_precision(scenario, sharding), **_divisible(scenario, sharding)}
        if recipe.optimizer in GPU_ONLY_OPTIMIZERS:
            flags["optimizer"] = "adamw_torch"
        yield Move("offload", engine + description, flags)


def _mixed_precision(scenario: Scenario, sharding: Sharding) -> dict[str, str]:
    """DeepSpeed keeps fp32 masters: what says pure 16-bit has to say mixed there."""
    precision = scenario.recipe.numerics.precision
    return {"precision": f"{precision}-mixed"} if sharding.startswith("zero") and precision in ("bf16", "fp16") else {}


def _divisible(scenario: Scenario, sharding: Sharding) -> dict[str, str]:
    """4-bit bytes are divided only when they are stored as elements of a float dtype; PEFT advises that of the compute."""
    numerics = scenario.recipe.numerics
    needed = numerics.quantization in ("nf4", "fp4") and numerics.quant_storage is None and sharding in ("zero3", "fsdp")
    return {"quant-storage": numerics.compute_dtype} if needed else {}


def _adapter(scenario: Scenario) -> Iterator[Move]:
    adapter = scenario.recipe.adapter
    if adapter is None:
        return
    if adapter.rank > 1:
        yield Move("rank", "half the LoRA rank", {"lora-rank": str(int(adapter.rank) // 2)})
    if adapter.modules_to_save:
        named = ", ".join(adapter.modules_to_save)
        yield Move("modules", f"do not train {named}: leave --modules-to-save out", {"modules-to-save": None})
