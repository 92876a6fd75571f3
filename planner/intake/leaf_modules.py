"""Modules that ZeRO-3 gathers whole, with all that is inside of them (leaf modules), by names of classes.

Transformers calls classes after the ``model_type``, with a word for what they are behind it.
Source: DeepSpeed 0.19.8 utils/z3_leaf_module.py; transformers 5.23 models/*/modeling_*.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from planner.domain.model import ModelSpec
from planner.intake.supported import folded, names_of
from planner.words import words

LeafKind = Literal["layer", "mixture", "experts"]
"""A layer, its mixture of experts with the router, or all its experts."""

_KINDS: tuple[tuple[re.Pattern[str], LeafKind], ...] = (
    (re.compile(r"(?:Text)?DecoderLayer$"), "layer"),
    (re.compile(r"(?:Text)?(?<!Naive)Experts$"), "experts"),
    (re.compile(r"(?:Text)?(?:SparseMo[eE]Block|MoE|Moe)$|(?<=^GptOss)MLP$|(?<=^Dbrx)FFN$"), "mixture"),
)

# Source: transformers 5.23 models/*/modeling_*.py, ``__init__`` of the mixtures.
EXPERTS_FIRST = frozenset(
    words("""
    deepseek_v2 deepseek_v3 dots1 exaone_moe glm4_moe glm4_moe_lite glm4v_moe glm4v_moe_text lfm2_moe llama4
    llama4_text mistral4 nemotron_h qwen3_moe qwen3_vl_moe solar_open
    """)
)
"""Models whose mixtures make their experts before the router, so that they are gathered ahead first."""


def leaf_kind(name: str, model: ModelSpec) -> LeafKind | None:
    """What a class is, with or without its module; ``None``: of another model, or anything else."""
    name = name.rpartition(".")[2]
    for pattern, kind in _KINDS:
        found = pattern.search(name)
        if found and folded(name[: found.start()]) in names_of(model):
            return kind
    return None


def leaf_kinds(names: Iterable[str], model: ModelSpec) -> frozenset[LeafKind]:
    """What of a model is gathered whole where these classes are leaves."""
    return frozenset(kind for name in names if (kind := leaf_kind(name, model)) is not None)


def is_readable(name: str) -> bool:
    """Whether a class is called as one that may be gathered whole here, of whatever model."""
    return any(pattern.search(name) for pattern, _ in _KINDS)
