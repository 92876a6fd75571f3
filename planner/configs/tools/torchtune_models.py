"""Builders of torchtune's models: the checkpoint that each has the shapes of, and its tables of positions.

Source: torchtune 0.6.1 models/*/_model_builders.py and _component_builders.py; bd2a0fc7c of 2026-04 for
Qwen 3.
"""

from __future__ import annotations

import re

from planner.configs.shared.key_tables import texts_in

_LLAMA, _QWEN, _GEMMA = "meta-llama/", "Qwen/", "google/"
BUILDERS = texts_in("torchtune.toml", "builders")
# Builders by their names -> positions in a table (max_seq_len), by the first that matches.
_POSITIONS = (
    (r"llama3_[123]_|qwen2_5_(1_5|7|14|32|72)b_base", 131_072),
    (r"qwen3_.*_base|qwen2_|mistral_", 32_768),
    (r"qwen3_", 40_960),
    (r"phi4_|code_llama2_", 16_384),
    (r"llama3_|gemma", 8_192),
    (r"", 4_096),
)


def positions(builder: str) -> int:
    """Positions in a table of cosines and sines, beyond which a model of torchtune ends."""
    return next(rows for pattern, rows in _POSITIONS if re.match(pattern, builder))


def tables(builder: str, *, adapted: bool, copies: bool) -> str:
    """How these tables are laid out (switch ``rotary_tables``).

    Builders with adapters make one in each attention, but for Llama from 3.1 on.  ``copies``: of one layer,
    which older builders make.
    """
    kind = "halves" if builder.startswith(("qwen", "phi")) else "pairs"
    shared = not copies and (not adapted or re.match("llama3_[123]_", builder))
    return kind if shared else f"{kind}_of_layers"
