"""The TRL that a file is for, by keys that others do not have, and what older ones did to a 4-bit base."""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.age import TRANSFORMERS_4, first_held
from planner.configs.shared.keys import Keys
from planner.configs.shared.model_args import DTYPES
from planner.configs.shared.rollouts import UP_TO_0_17

OLDEST = "trl@0"
# Stack of an older TRL -> keys that tell it.  TRL 0.20 dropped max_seq_length, 0.16 use_liger and what
# belongs to it; the mixers are alignment-handbook's of 2023 to 2025-03.  TRL 0.29 dropped torch_dtype,
# Transformers 5 the others.  An update of GRPO in 0.16 and 0.17 makes the same tensors as in 0.24
# (trainer/grpo_trainer.py _get_per_token_logps).  max_prompt_length is GRPO's up to 0.27.2 and DPO's up
# to 0.28.0 (trainer/grpo_config.py and dpo_config.py of 0.28.0 and 0.29.0).
MIDDLE = "trl@0.24"
OLD = {
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
    MIDDLE: (
        UP_TO_0_17,
        "max_prompt_length",
        "torch_dtype",
        "warmup_ratio",
        "group_by_length",
        "logging_dir",
        *TRANSFORMERS_4,
    ),
}
_NEWEST = "trl"
_TITLES = {OLDEST: "TRL 0.9 to 0.19", MIDDLE: "TRL 0.20 to 0.26"}


def read_age(keys: Keys, reading: Reading, asked: str = "", *, generates: bool = False) -> str:
    """The stack of an older TRL where it is ``asked`` for or a key tells it, else nothing.

    Keys of the middle ones are of the oldest, too: their stack is entered as another that the file fits.
    ``generates``: GRPO of the oldest is that of the next one.
    """
    if asked in (_NEWEST, *OLD):
        found = MIDDLE if generates and asked == OLDEST else asked
        if found in OLD:
            reading.take_stack(found, _TITLES[found], str(keys.path), "as asked")
        return found if found in OLD else ""
    for stack, names in OLD.items():
        name = first_held(keys, names)
        if name is None and "torch_dtype" in names:
            init = keys.get("model_init_kwargs")
            name = "model_init_kwargs" if isinstance(init, dict) and "torch_dtype" in init else None
        if name is not None:
            text = "a key that today's TRL and Transformers no longer have"
            found = MIDDLE if generates else stack
            reading.take_stack(found, _TITLES[found], keys.where(name), text)
            if found == MIDDLE and not generates:
                reading.fits = (OLDEST,)
            return found
    return ""


def read_old_preparation(keys: Keys, reading: Reading) -> None:
    """What TRL up to 0.26 did to a 4-bit base: storage in the named dtype.

    Source: trl 0.15.2 to 0.26.2 trainer/utils.py ``get_quantization_config``: bnb_4bit_quant_storage is
    torch_dtype.  That of alignment-handbook sets none.
    """
    if reading.value("quantization") not in ("nf4", "fp4"):
        return
    dtype = reading.said.get("load_dtype")
    if dtype is not None and dtype.value in DTYPES and not keys.has("dataset_mixer"):
        note = "trl 0.15.2 to 0.26.2 trainer/utils.py get_quantization_config"
        reading.default("quant_storage", dtype.value, note)
