"""Kernels of attention by name, and what is known of each beside its operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Attention = Literal["eager", "sdpa", "flash2", "flex"]
ATTENTIONS: tuple[Attention, ...] = get_args(Attention)
FLASH_WIDEST = 256
"""Features of the widest head that a kernel called like FlashAttention 2 takes."""


@dataclass(frozen=True, slots=True)
class AttentionFacts:
    """What readers, rules and formulas ask of a kernel.

    ``family``: separate operators (``eager``); torch's fused attention, which takes masks and chooses among
    kernels (``torch``); or one that is called like FlashAttention 2 (``flash``).  The latter takes no mask of
    all pairs, computes over the tokens and the window alone, and in 16 bits.  It takes heads of at most 256
    features, and needs a GPU of compute capability 8.0.  ``names``: values of ``attn_implementation``, the
    one that real runs use first.
    """

    title: str
    family: Literal["eager", "torch", "flash"]
    names: tuple[str, ...]

    @property
    def is_flash(self) -> bool:
        """Whether it is called like FlashAttention 2."""
        return self.family == "flash"


ATTENTION_FACTS: Mapping[Attention, AttentionFacts] = {
    "eager": AttentionFacts("Eager attention", "eager", ("eager",)),
    "sdpa": AttentionFacts("PyTorch's fused attention", "torch", ("sdpa",)),
    "flash2": AttentionFacts(
        "FlashAttention 2",
        "flash",
        (
            "flash_attention_2",
            "flash_attention_3",
            "flash_attention_4",
            "kernels-community/flash-attn",
            "kernels-community/flash-attn2",
            "kernels-community/flash-attn3",
            "kernels-community/vllm-flash-attn3",
        ),
    ),
    "flex": AttentionFacts("FlexAttention", "flash", ("flex_attention",)),
}
