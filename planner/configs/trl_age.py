"""The age of a TRL file by its keys, and what TRL of that age did."""

from __future__ import annotations

from planner.configs.age import TRANSFORMERS_4, first_held
from planner.configs.keys import Keys
from planner.configs.model_args import DTYPES
from planner.configs.reading import Reading

OLDEST = "trl@0"
# Stack of an older TRL -> keys that tell it.  TRL 0.20 dropped max_seq_length, 0.16 use_liger and what belongs to it; the mixers
# are alignment-handbook's of 2023 to 2025-03.  TRL 0.29 dropped torch_dtype, Transformers 5 the others.
_OLD = {
    OLDEST: (
        "max_seq_length",
        "evaluation_strategy",
        "use_liger",
        "num_of_sequences",
        "chars_per_token",
        "dataset_batch_size",
        "use_flash_attention_2",
        "dataset_mixer",
        "dispatch_batches",
        "split_batches",
    ),
    "trl@0.24": ("torch_dtype", "warmup_ratio", "group_by_length", "logging_dir", *TRANSFORMERS_4),
}
_TITLES = {OLDEST: "TRL 0.9 to 0.19", "trl@0.24": "TRL 0.20 to 0.26"}


def read_age(keys: Keys, reading: Reading) -> str:
    """The stack of an older TRL where a key tells it, else nothing."""
    for stack, names in _OLD.items():
        name = first_held(keys, names)
        if name is None and "torch_dtype" in names:
            init = keys.get("model_init_kwargs")
            name = "model_init_kwargs" if isinstance(init, dict) and "torch_dtype" in init else None
        if name is not None:
            reading.take_stack(stack, keys.where(name), "a key that today's TRL and Transformers no longer have")
            reading.tool = _TITLES[stack]
            return stack
    return ""


def read_old_preparation(keys: Keys, reading: Reading) -> None:
    """What TRL up to 0.26 did to a 4-bit base under bf16: fp32 norms, a 16-bit token table and head, storage in the named dtype.

    Source: trl 0.9.6 to 0.24.0 ``peft_module_casting_to_bf16`` (unsharded bases only, models/utils.py:538-565), and 0.15.2 to
    0.26.2 trainer/utils.py ``get_quantization_config``: bnb_4bit_quant_storage is torch_dtype.  That of alignment-handbook sets
    none.
    """
    if reading.value("quantization") not in ("nf4", "fp4"):
        return
    place = keys.where("load_in_4bit")
    if reading.sharding.gathers_weights:
        reading.switch("kbit_upcast", "none", place)
    elif reading.value("precision") == "bf16-mixed":
        reading.switch("kbit_upcast", "norms", place)
    dtype = reading.said.get("load_dtype")
    if dtype is not None and dtype.value in DTYPES and not keys.has("dataset_mixer"):
        note = "trl 0.15.2 to 0.26.2 trainer/utils.py get_quantization_config"
        reading.default("quant_storage", dtype.value, note)
