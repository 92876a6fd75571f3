"""Named amounts: the one list of terms and of phases that all instruments share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from planner.domain.recipes.recipe import Number

Phase = Literal[
    "load",
    "adapters",
    "generation",
    "forward",
    "loss",
    "backward",
    "optimizer_step",
    "generation_2",
    "forward_2",
    "loss_2",
    "backward_2",
    "eval",
    "save",
]
PHASES: tuple[Phase, ...] = get_args(Phase)

# The first micro-step meets no optimizer states; later ones do, and with accumulation gradients too.
PHASE_WORDS: dict[Phase, str] = {
    "load": "loading the model",
    "adapters": "adding the adapters",
    "generation": "generation, 1st time",
    "forward": "forward, 1st micro-batch",
    "loss": "loss, 1st micro-batch",
    "backward": "backward, 1st micro-batch",
    "optimizer_step": "optimizer step",
    "generation_2": "generation, later",
    "forward_2": "forward, later micro-batches",
    "loss_2": "loss, later micro-batches",
    "backward_2": "backward, later micro-batches",
    "eval": "evaluation",
    "save": "saving",
}
"""What people call each phase."""

TermName = Literal[
    "weights",
    "quantization_constants",
    "adapters",
    "master_weights",
    "autocast_copies",
    "gradients",
    "gradient_buckets",
    "optimizer_states",
    "optimizer_temporaries",
    "saved_activations",
    "block_recompute",
    "logits_and_loss",
    "kv_cache",
    "vllm_awake",
    "dequantization",
    "gathered_parameters",
    "other_temporaries",
    "allocator_slack",
    "paged_optimizer_states",
    "context",
    "nccl",
    "vllm_engine",
]
TERM_NAMES: tuple[TermName, ...] = get_args(TermName)
TERM_NUMBERS: dict[TermName, int] = {name: number for number, name in enumerate(TERM_NAMES)}
TermKind = Literal["replicated", "sharded", "transient"]

# Which of the three totals a term belongs to: allocator slack adds to reserved,
# driver terms to the device total.
RESERVED_TERMS: frozenset[str] = frozenset({"allocator_slack"})
DRIVER_TERMS: frozenset[str] = frozenset({"context", "nccl", "paged_optimizer_states", "vllm_engine"})
ALLOCATED_TERMS: frozenset[str] = frozenset(get_args(TermName)) - RESERVED_TERMS - DRIVER_TERMS
# What stands on the device from setting up to saving, whatever the kernels and the allocator.
STATE_TERMS: frozenset[TermName] = frozenset(
    {"weights", "quantization_constants", "adapters", "master_weights", "optimizer_states"}
)
TERM_WORDS: dict[TermName, str] = {
    "weights": "weights",
    "quantization_constants": "quantization constants",
    "adapters": "LoRA adapters",
    "master_weights": "fp32 master weights",
    "autocast_copies": "autocast weight copies",
    "gradients": "gradients",
    "gradient_buckets": "gradient buckets",
    "optimizer_states": "optimizer states",
    "optimizer_temporaries": "optimizer temporaries",
    "saved_activations": "saved activations",
    "block_recompute": "one layer at work",
    "logits_and_loss": "logits and loss",
    "kv_cache": "KV cache of generation",
    "vllm_awake": "vLLM while it generates",
    "dequantization": "expanded weights",
    "gathered_parameters": "gathered parameters",
    "other_temporaries": "masks, workspaces, rounding",
}
"""What people call each term of what the training itself allocates."""


def in_words(name: str) -> str:
    """What people call a phase or a term of this name."""
    words: dict[Any, str] = {**PHASE_WORDS, **TERM_WORDS}
    return words.get(name, name.replace("_", " "))


# Label of the term of what changing shapes leave behind in the cache.
LENGTH_CACHE = "length-varying cache"
# Place of each allocated term in every table that has a row per term.
ALLOCATED_TERM_ORDER: dict[str, int] = {
    name: place for place, name in enumerate(each for each in get_args(TermName) if each in ALLOCATED_TERMS)
}


@dataclass(frozen=True, slots=True)
class Term:
    """``n_bytes`` of one kind of thing alive on one GPU during ``phases``.

    ``formula`` names the function that computes it (``planner.memory.outside:context_bytes``) or writes its
    operators down (``planner.program.load:load``); ``detail`` gives its numbers, or its operators with their
    sizes.
    """

    name: TermName
    label: str
    n_bytes: Number
    kind: TermKind
    phases: frozenset[Phase]
    formula: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class HostTerm:
    """Host RAM of one kind; ``n_bytes`` is per process.

    ``pinned`` memory cannot be swapped.
    """

    name: str
    n_bytes: Number
    formula: str
    pinned: bool = False
    detail: str = ""


@dataclass(frozen=True, slots=True)
class TimeTerm:
    """Seconds per optimizer step that one group of kernels or transfers needs.

    ``overlapped`` seconds hide behind the others and do not add to the step.
    """

    name: str
    seconds: Number
    formula: str
    overlapped_s: Number = 0.0
    detail: str = ""
