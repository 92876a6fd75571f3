"""Single changes of a job that could save memory: what each costs,
the words for it and the flags that ask for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from planner.domain.hardware import Hardware
from planner.domain.recipes.optimizers import TRAINED_BYTES, Optimizer
from planner.domain.recipes.recipe import Offload
from planner.domain.recipes.sharding import FSDP, ZERO2, ZERO3, Sharding
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
    offloads_activations,
)
from planner.searching.variants import Flags, request_of, warnings_about
from planner.units import GIB

LeverKind = Literal["free", "time", "money", "training"]
"""What a change costs: nothing (the training stays as it is, too), time, money or host RAM,
or the training itself changes.
"""
KINDS: tuple[LeverKind, ...] = ("free", "time", "money", "training")
CHEAP = KINDS[:2]
"""What the first answer shows of a job that fits: nobody pays otherwise for room that is not needed."""
_SMALLEST_LENGTH_TOKENS = 2


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
    if storage := divisible(scenario, scenario.recipe.sharding):
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
        return
    if recipe.checkpoint_every > 1:
        yield Move("checkpointing", "time", "checkpointing of every layer", {"checkpoint-every": "1"})
    if recipe.checkpoint_policy != "full":
        yield Move(
            "policy", "time", "checkpointed layers keep their input alone", {"checkpoint-policy": "full"}
        )


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
            **mixed_precision(scenario, option),
            **divisible(scenario, option),
            **stepped(scenario, option),
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
            **mixed_precision(scenario, sharding),
            **divisible(scenario, sharding),
            **stepped(scenario, sharding),
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
    return bool(TRAINED_BYTES * job_of(scenario, Coefficients()).trained >= GIB)


def mixed_precision(scenario: Scenario, sharding: Sharding) -> dict[str, str]:
    """DeepSpeed keeps fp32 masters: what says pure 16-bit has to say mixed there."""
    precision = scenario.recipe.numerics.precision
    return (
        {"precision": f"{precision}-mixed"}
        if sharding.engine == "deepspeed" and precision in ("bf16", "fp16")
        else {}
    )


def divisible(scenario: Scenario, sharding: Sharding) -> dict[str, str]:
    """4-bit bytes are divided only when they are stored as elements of a float dtype;
    PEFT advises that of the compute.
    """
    numerics = scenario.recipe.numerics
    four_bit = numerics.quantization in ("nf4", "fp4") and numerics.quant_storage is None
    return {"quant-storage": numerics.compute_dtype} if four_bit and sharding.gathers_weights else {}


def stepped(scenario: Scenario, sharding: Sharding) -> dict[str, str]:
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
