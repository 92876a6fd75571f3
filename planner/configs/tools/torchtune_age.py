"""Files of torchtune up to 0.2: FSDP1, whole logits, and lengths that the data sets' builders say.

Source: torchtune 0.2.1 (2024-07-25) recipes/*.py, datasets/*.py; 34162c9b2 (2024-08-14), whose full
recipe has FSDP2 already.
"""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys

STACK = "torchtune@0.2"
_TOOL = "torchtune 0.2.1"
_UTILS = "torchtune.utils."
# Tokens that a builder of data cuts each sample to, where the file does not say (datasets/*.py max_seq_len).
_LENGTHS = {"alpaca_dataset": 512, "alpaca_cleaned_dataset": 512, "slimorca_dataset": 1024}


def read_age(keys: Keys, reading: Reading) -> bool:
    """Whether checkpoints are read by ``torchtune.utils``, which has had no such class since 0.3.0.

    Raises:
        NotModelledError: compiled, or with units of FSDP1 that are not modelled.
    """
    part = keys.part("checkpointer")
    component = "" if part is None else part.text("_component_") or ""
    if part is None:
        return False
    part.skip(part.left_over_here())
    if not component.startswith(_UTILS):
        return False
    where = part.where("_component_")
    reading.take_stack(STACK, _TOOL, where, f"{_UTILS} has had no class for checkpoints since torchtune 0.3")
    if keys.flag("compile"):
        raise keys.not_modelled("compile", "torch.compile of torchtune up to 0.2 is not modelled")
    if keys.flag("memory_efficient_fsdp_wrap"):
        raise keys.not_modelled(
            "memory_efficient_fsdp_wrap", "table and head as units of FSDP1 by themselves are not modelled"
        )
    strategy = keys.text("fsdp_sharding_strategy")
    if strategy not in (None, "FULL_SHARD"):
        raise keys.not_modelled("fsdp_sharding_strategy", f"{strategy} is not modelled; FULL_SHARD is")
    return True


def read_length(data: Keys, reading: Reading) -> None:
    """The tokens that samples are cut to."""
    reading.take(data, {"max_seq_len": "seq"})
    name = (data.text("_component_") or "").rpartition(".")[2]
    if name in _LENGTHS and not data.has("max_seq_len"):
        reading.default("seq", _LENGTHS[name], f"{_TOOL} datasets: max_seq_len of {name}")
