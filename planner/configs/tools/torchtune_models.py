"""Builders of torchtune's models: the checkpoint that each has the shapes of, and its tables of positions.

Source: torchtune 0.6.1 models/*/_model_builders.py and _component_builders.py; bd2a0fc7c of 2026-04 for
Qwen 3.
"""

from __future__ import annotations

import re

_LLAMA, _QWEN, _GEMMA = "meta-llama/", "Qwen/", "google/"
BUILDERS = {
    "llama2_7b": f"{_LLAMA}Llama-2-7b-hf",
    "llama2_13b": f"{_LLAMA}Llama-2-13b-hf",
    "llama2_70b": f"{_LLAMA}Llama-2-70b-hf",
    "code_llama2_7b": "codellama/CodeLlama-7b-hf",
    "code_llama2_13b": "codellama/CodeLlama-13b-hf",
    "llama3_8b": f"{_LLAMA}Meta-Llama-3-8B",
    "llama3_70b": f"{_LLAMA}Meta-Llama-3-70B",
    "llama3_1_8b": f"{_LLAMA}Llama-3.1-8B",
    "llama3_1_70b": f"{_LLAMA}Llama-3.1-70B",
    "llama3_1_405b": f"{_LLAMA}Llama-3.1-405B",
    "llama3_2_1b": f"{_LLAMA}Llama-3.2-1B",
    "llama3_2_3b": f"{_LLAMA}Llama-3.2-3B",
    "llama3_3_70b": f"{_LLAMA}Llama-3.3-70B-Instruct",
    "mistral_7b": "mistralai/Mistral-7B-v0.1",
    # models/phi3/_component_builders.py has a matrix for each of q, k, v, gate and up, as these checkpoints.
    "phi3_mini": "unsloth/Phi-3.5-mini-instruct",
    "phi4_14b": "unsloth/phi-4",
    **{f"gemma_{size}": f"{_GEMMA}gemma-{size}" for size in ("2b", "7b")},
    **{f"gemma2_{size}": f"{_GEMMA}gemma-2-{size}" for size in ("2b", "9b", "27b")},
    **{f"qwen2_{size}": f"{_QWEN}Qwen2-{size.replace('_', '.').upper()}" for size in ("0_5b", "1_5b", "7b")},
    **{
        f"qwen2_5_{size}{kind}": f"{_QWEN}Qwen2.5-{size.replace('_', '.').upper()}"
        for size in ("0_5b", "1_5b", "3b", "7b", "14b", "32b", "72b")
        for kind in ("", "_base", "_instruct")
    },
    **{
        f"qwen3_{size}{kind}": f"{_QWEN}Qwen3-{size.replace('_', '.').upper()}"
        for size in ("0_6b", "1_7b", "4b", "8b", "14b", "32b")
        for kind in ("", "_base", "_instruct")
    },
}
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
