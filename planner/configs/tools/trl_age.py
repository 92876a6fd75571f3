"""The TRL that a file is for, by keys that others do not have, and what older ones did to a 4-bit base."""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.age import TRANSFORMERS_4, first_held
from planner.configs.shared.kernels import DTYPES
from planner.configs.shared.key_tables import names_in
from planner.configs.shared.keys import Keys

OLDEST = "trl@0"
MIDDLE = "trl@0.24"
# Stack of an older TRL -> keys that tell it.
OLD = {
    OLDEST: names_in("trl.toml", "keys_to_0_19"),
    MIDDLE: (*names_in("trl.toml", "keys_to_0_28"), *TRANSFORMERS_4),
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
