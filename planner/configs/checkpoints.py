"""What the name of a checkpoint says of how its weights are stored."""

from __future__ import annotations

import re

from planner.catalog.same_shape import QUANTISED
from planner.configs.keys import Keys
from planner.configs.reading import Reading
from planner.errors import show

_EIGHT = re.compile("int8|8-?bit", re.IGNORECASE)
_SAYABLE = {"gptq": "gptq-int4", "bnb": "nf4"}
_FIELDS = ("quantization", "double_quant", "quant_storage")


def read_checkpoint(keys: Keys, name: str, reading: Reading) -> None:
    """Enter the model that a key names, and how it is stored where its name says that it is quantised already.

    Tools load such a checkpoint as it is stored, whatever quantisation the file asks for (transformers 5.23.0
    quantizers/auto.py ``merge_quantization_configs``: that of the checkpoint wins), also where --model names another shape.
    To be called when the quantisation that the file asks for is known.

    Raises:
        InputFileError: not text.
        NotModelledError: a kind of quantisation that no formula covers.
    """
    model = keys.text(name)
    if model is None:
        return
    reading.say("model", model, keys.where(name))
    found = QUANTISED.search(model.rstrip("/").rpartition("/")[2])
    if found is None:
        return
    kind = None if _EIGHT.search(model) else _SAYABLE.get(re.split("[-_4]", found[1].lower())[0])
    if kind is None:
        raise keys.not_modelled(name, f"{show(model)} is quantised already ({found[1]}), which is not modelled")
    if kind == "nf4" and reading.value("quantization") == "nf4":
        return
    for field in _FIELDS:
        reading.said.pop(field, None)
    reading.needs["quantization"] = f"{keys.where(name)}: {show(model)} is quantised already: say --quantization {kind}"
