"""Arguments of a script about how its model is loaded, as those of Transformers and TRL name them."""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys

DTYPES = ("bfloat16", "float16", "float32")


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
