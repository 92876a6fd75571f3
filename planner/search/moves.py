"""Single changes of a job that could save memory: each is a scenario, the words for it and the flags that ask for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from planner.catalog.gpus import gpu_ids, load_gpu
from planner.domain.hardware import GpuSpec
from planner.domain.recipe import Offload, Optimizer, Sharding
from planner.domain.scenario import Scenario
from planner.intake.kernels import LIGER_STACKS, code_lacks, lacks_flash2
from planner.search.variants import with_batch, with_length, with_method, with_rank, with_recipe, with_sharding

MAX_LARGER_CARDS = 3
_SMALLEST_LENGTH_TOKENS = 2
# Cards of one size differ by a few per cent in what they make visible; that is not more memory.
_LARGER = 1.1


@dataclass(frozen=True, slots=True)
class Move:
    """``scenario`` with one thing changed.  Moves of one ``topic`` exclude each other.

    ``flags`` maps names of flags to their values, an empty one for a flag that takes none.
    """

    topic: str
    description: str
    flags: Mapping[str, str]
    scenario: Scenario


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
    current = scenario.hardware.gpu
    wanted = need_bytes + scenario.hardware.gpu_reserved_bytes
    cards = [card for card in map(load_gpu, gpu_ids()) if card.is_cuda and (card.visible_memory_bytes or 0) >= wanted]
    cards = [card for card in cards if (card.visible_memory_bytes or 0) > _LARGER * (current.visible_memory_bytes or 0)]
    by_size: dict[int, GpuSpec] = {}
    for card in sorted(cards, key=lambda each: _card_order(each, current)):
        by_size.setdefault(card.marketing_memory_bytes or 0, card)
    chosen = sorted(by_size.values(), key=lambda each: each.visible_memory_bytes or 0)[:MAX_LARGER_CARDS]
    return tuple(_card_move(scenario, card) for card in chosen)


def _card_order(card: GpuSpec, current: GpuSpec) -> tuple[bool, float, str]:
    return card.generation != current.generation, -(card.memory_bandwidth_bytes_per_s or 0), card.id


def _card_move(scenario: Scenario, card: GpuSpec) -> Move:
    count = scenario.hardware.gpus_per_node
    flag = f"{card.id}:{count}" if count > 1 else card.id
    changed = replace(scenario, hardware=replace(scenario.hardware, gpu=card))
    return Move("card", f"a card with more memory: {card.name}", {"gpu": flag}, changed)


def _checkpointing(scenario: Scenario) -> Iterator[Move]:
    recipe = scenario.recipe
    if not recipe.gradient_checkpointing:
        changed = with_recipe(scenario, replace(recipe, gradient_checkpointing=True))
        yield Move("checkpointing", "recompute activations in backward", {"gradient-checkpointing": ""}, changed)


def _batch(scenario: Scenario) -> Iterator[Move]:
    micro, accum = int(scenario.recipe.batch.micro_batch), int(scenario.recipe.batch.grad_accum)
    halved = micro // 2 if micro % 2 == 0 else 1
    for size in sorted({halved, 1}, reverse=True):
        if size < micro:
            steps = accum * micro // size
            flags = {"batch": str(size), "grad-accum": str(steps)}
            yield Move("batch", "smaller micro-batch, same global batch", flags, with_batch(scenario, size, steps))


def _length(scenario: Scenario) -> Iterator[Move]:
    batch = scenario.recipe.batch
    if batch.seq_len < _SMALLEST_LENGTH_TOKENS:
        return
    length = int(batch.seq_len) // 2
    real = min(batch.tokens_per_sample, length)
    flags = {"seq": str(length)}
    if batch.tokens_per_sample not in (batch.seq_len, real):
        flags["tokens-per-sample"] = str(length)
    yield Move("length", "half the length: changes the data, longer samples are cut", flags, with_length(scenario, length, real))


def _attention(scenario: Scenario) -> Iterator[Move]:
    if scenario.recipe.attention == "flash2":
        return
    if scenario.recipe.attention == "eager" and not code_lacks(scenario.model, scenario.stack, "sdpa"):
        changed = with_recipe(scenario, replace(scenario.recipe, attention="sdpa"))
        yield Move("attention", "fused attention kernel of PyTorch", {"attention": "sdpa"}, changed)
    if not lacks_flash2(scenario.hardware.gpu):
        changed = with_recipe(scenario, replace(scenario.recipe, attention="flash2"))
        yield Move("attention", "FlashAttention 2", {"attention": "flash2"}, changed)


def _loss(scenario: Scenario) -> Iterator[Move]:
    if scenario.recipe.loss != "hf":
        return
    if scenario.stack.defaults.loss == "chunked":
        changed = with_recipe(scenario, replace(scenario.recipe, loss="chunked"))
        yield Move("loss", "head and loss in chunks", {"loss": "chunked"}, changed)
    if scenario.stack.id in LIGER_STACKS and not scenario.model.remote_code:
        changed = with_recipe(scenario, replace(scenario.recipe, loss="liger"))
        yield Move("loss", "head and loss in one Liger kernel", {"loss": "liger"}, changed)


def _optimizer(scenario: Scenario) -> Iterator[Move]:
    recipe = scenario.recipe
    options: list[tuple[Optimizer, str]] = []
    if recipe.optimizer == "adamw_torch":
        options.append(("adamw_torch_fused", "fused AdamW, without foreach temporaries"))
    if recipe.optimizer in ("adamw_torch", "adamw_torch_fused", "paged_adamw_32bit", "lion"):
        options.append(("adamw_8bit", "optimizer states in 8 bits"))
    if recipe.optimizer != "paged_adamw_8bit":
        options.append(("paged_adamw_8bit", "optimizer states in 8 bits, paged to host RAM"))
    for name, description in options:
        yield Move("optimizer", description, {"optimizer": name}, with_recipe(scenario, replace(recipe, optimizer=name)))


def _method(scenario: Scenario) -> Iterator[Move]:
    recipe = scenario.recipe
    if recipe.method == "full":
        yield Move("method", "train adapters instead of all weights", {"method": "lora"}, with_method(scenario, "lora"))
    if recipe.numerics.quantization in ("none", "int8"):
        yield Move("method", "adapters over a 4-bit base", {"method": "qlora"}, with_method(scenario, "qlora"))


def _sharding(scenario: Scenario) -> Iterator[Move]:
    recipe = scenario.recipe
    if scenario.hardware.world_size == 1 or recipe.offload != "none":
        return
    four_bit = recipe.numerics.quantization in ("nf4", "fp4")
    options: tuple[Sharding, ...] = ("zero2", "zero3", "fsdp")
    for name in options:
        if name == recipe.sharding or (name == "zero2" and recipe.sharding not in ("none", "ddp", "zero1")):
            continue
        changed = with_sharding(scenario, name, "none")
        flags = {"sharding": name, **_precision_flag(scenario, changed)}
        if four_bit and name != "zero2" and recipe.numerics.quant_storage is None:
            # 4-bit bytes are divided only when they are stored as a float dtype; that of the compute is the one PEFT advises.
            storage = recipe.numerics.compute_dtype
            numerics = replace(changed.recipe.numerics, quant_storage=storage)
            changed = with_recipe(changed, replace(changed.recipe, numerics=numerics))
            flags["quant-storage"] = storage
        divided = "optimizer states and gradients" if name == "zero2" else "weights, gradients and optimizer states"
        yield Move("sharding", f"divide {divided} over the GPUs", flags, changed)


def _offload(scenario: Scenario) -> Iterator[Move]:
    recipe = scenario.recipe
    if recipe.offload != "none":
        return
    stage: Sharding = recipe.sharding if recipe.uses_deepspeed or recipe.uses_fsdp else "zero2"
    options: list[tuple[Sharding, Offload, str]] = []
    if stage in ("zero1", "zero2", "zero3"):
        options.append((stage, "optimizer", "optimizer states in host RAM"))
    whole: Sharding = stage if recipe.uses_fsdp else "zero3"
    options.append((whole, "optimizer+params", "optimizer states and weights in host RAM"))
    for sharding, offload, description in options:
        changed = with_sharding(scenario, sharding, offload)
        flags = {"offload": offload, **_precision_flag(scenario, changed)}
        if sharding != recipe.sharding:
            flags = {"sharding": sharding, **flags}
        if changed.recipe.optimizer != recipe.optimizer:
            flags["optimizer"] = changed.recipe.optimizer
        yield Move("offload", description, flags, changed)


def _precision_flag(before: Scenario, after: Scenario) -> dict[str, str]:
    precision = after.recipe.numerics.precision
    return {} if precision == before.recipe.numerics.precision else {"precision": precision}


def _adapter(scenario: Scenario) -> Iterator[Move]:
    adapter = scenario.recipe.adapter
    if adapter is None:
        return
    rank = int(adapter.rank)
    if rank > 1:
        yield Move("rank", "half the LoRA rank", {"lora-rank": str(rank // 2)}, with_rank(scenario, rank // 2))
    if adapter.modules_to_save:
        changed = with_recipe(scenario, replace(scenario.recipe, adapter=replace(adapter, modules_to_save=())))
        named = ", ".join(adapter.modules_to_save)
        yield Move("modules", f"do not train {named}: leave --modules-to-save out", {}, changed)
