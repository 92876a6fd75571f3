"""The TRL that a file is for, by keys that others do not have, and what older ones did to a 4-bit base."""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.age import TRANSFORMERS_4, enter_age, first_held
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
_RELEASES = {
    _NEWEST: (_NEWEST, "TRL 1.16.0"),
    MIDDLE: (MIDDLE, "TRL 0.20 to 0.26"),
    OLDEST: (OLDEST, "TRL 0.9 to 0.19"),
}


def read_age(keys: Keys, reading: Reading, asked: str = "", *, generates: bool = False) -> str:
    """The stack of an older TRL where it is ``asked`` for or a key tells it, else nothing.

    Keys of the middle ones are of the oldest, too.  ``generates``: GRPO of the oldest is that of the next
    one.
    """
    ages: tuple[str, ...] = (_NEWEST,)
    place = ""
    for stack, names in OLD.items():
        if name := _held(keys, names):
            ages = (MIDDLE,) if generates else (stack,) if stack == OLDEST else (MIDDLE, OLDEST)
            place = keys.where(name)
            break
    asked = MIDDLE if generates and asked == OLDEST else asked
    sign = (place, "a key that today's TRL and Transformers no longer have")
    found = enter_age(reading, ages, _RELEASES, asked, sign)
    return "" if found == _NEWEST else found


def _held(keys: Keys, names: tuple[str, ...]) -> str | None:
    init = keys.get("model_init_kwargs")
    inside = "torch_dtype" in names and isinstance(init, dict) and "torch_dtype" in init
    return first_held(keys, names) or ("model_init_kwargs" if inside else None)


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
