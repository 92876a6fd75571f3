"""Arguments of a script about how its model is loaded, as those of Transformers and TRL name them."""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from planner.domain.recipes.attention_kernels import ATTENTION_FACTS
from planner.errors import show

# attn_implementation -> ours.
ATTENTIONS = {theirs: ours for ours, facts in ATTENTION_FACTS.items() for theirs in facts.names}
DTYPES = ("bfloat16", "float16", "float32")
# How names of later generations of FlashAttention end, which need as much memory in less time.
_GENERATIONS = {"attention_3": 3, "-attn3": 3, "fa3": 3, "attention_4": 4}


def read_dtype(keys: Keys, reading: Reading) -> None:
    """Enter the dtype in which the model is loaded, by its new or its old name.

    Source: transformers 5.23.0 modeling_utils.py ``from_pretrained``: ``dtype``, before 4.56 ``torch_dtype``.

    Raises:
        InputFileError: no such dtype.
    """
    for name in ("dtype", "torch_dtype"):
        dtype = keys.text(name)
        if dtype is None:
            continue
        if dtype not in ("auto", *DTYPES):
            raise keys.wrong(name, f"auto, {', '.join(DTYPES)}", dtype)
        reading.say("load_dtype", "checkpoint" if dtype == "auto" else dtype, keys.where(name))


def read_attention(keys: Keys, name: str, reading: Reading) -> None:
    """Enter the attention kernel that a key names in the words of Transformers.

    Raises:
        NotModelledError: a kernel that no formula covers.
    """
    said = keys.text(name)
    if said is None:
        return
    kernel = ATTENTIONS.get(said.removeprefix("paged|").lower())
    if kernel is None:
        raise keys.not_modelled(
            name, f"attention '{show(said)}' is not modelled; these are: {', '.join(ATTENTIONS)}"
        )
    reading.say("attention", kernel, keys.where(name))
    say_generation(said, reading, keys.where(name))


def say_generation(kernel: str, reading: Reading, origin: str) -> None:
    """Enter the generation of FlashAttention that the name of a kernel says: its time, not its memory."""
    for ending, generation in _GENERATIONS.items():
        if kernel.lower().endswith(ending):
            reading.switch("flash_generation", generation, origin)
