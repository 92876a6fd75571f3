"""Checkpoints that Unsloth loads in place of the one that is named.

Source: unsloth 2026.10.9 models/mapper.py (``FLOAT_TO_INT_MAPPER``, ``INT_TO_FLOAT_MAPPER``) and
models/loader_utils.py (``get_model_name``, ``BAD_MAPPINGS``).
"""

from __future__ import annotations

import re

from planner.configs.shared.key_tables import names_in


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PARTLY_PACKED = {name.lower(): name for name in names_in("unsloth.toml", "partly_packed")}
_OWNERS = frozenset(names_in("unsloth.toml", "owners"))
_PACKED = re.compile(r"(?:-unsloth)?-bnb-4bit$", re.IGNORECASE)


def loaded_name(name: str, *, four_bits: bool) -> str:
    """The checkpoint that Unsloth loads where ``name`` is asked for.

    ``four_bits``: ``load_in_4bit``.  Without it a packed checkpoint of its own is not loaded either, but the
    one that was packed.
    """
    owner, slash, model = name.partition("/")
    if not slash or "/" in model or owner.lower() not in _OWNERS:
        return name
    plain = _PACKED.sub("", model)
    if not four_bits:
        return f"unsloth/{plain}" if owner.lower() == "unsloth" else name
    own = _PARTLY_PACKED.get(plain.lower())
    return name if own is None else f"unsloth/{own}-unsloth-bnb-4bit"
