"""The checkpoint that a training file names, and how its weights are stored."""

from __future__ import annotations

import re

from planner.catalog.architecture_tables import needed_version
from planner.catalog.models import entry_named_in, known_by_folder, model_entry, spec_of, storage_of
from planner.catalog.packages import parsed_version
from planner.catalog.same_shape import QUANTISED, RELEASED_IN_FP8, quantization_named
from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from planner.domain.recipes.recipe import GPTQ
from planner.errors import show

_TRUST = "trust_remote_code"
# Of these checkpoints bring model code of their own, and Transformers has a class, too: config.json of
# tiiuae/falcon-7b, mosaicml/mpt-7b, microsoft/phi-2 of 2023, microsoft/Phi-3-mini-4k-instruct,
# deepseek-ai/DeepSeek-V2-Lite and DeepSeek-V3 (``auto_map``).
_BRING_CODE = ("falcon", "mpt", "phi", "phi3", "deepseek_v2", "deepseek_v3")
# The own code of these has experts as modules, which quantisers and adapters reach; nobody read it.
# https://github.com/axolotl-ai-cloud/axolotl examples/trinity/README.md: 24.9 GiB in 4 bits, which tensors of
# 16 bits exceed.
_UNREAD_CODE = ("afmoe",)
# With fewer slashes it may be a Hub id.
_PARTS_OF_A_PATH, _MOST_ABOVE = 2, 3
# Words of folders inside of a run: stages, steps and settings.
_OF_A_RUN = re.compile(
    r"(?:full|sft|dpo|kto|orpo|simpo|grpo|ppo|pt|hf|final|best|last|latest|merged|models?|checkpoints?|ckpts?"
    r"|outputs?|global|steps?|epochs?|ep|iter|stage|run|seed|lr|bs|v|wd|warm(?:up)?|len(?:gth)?|actor"
    r"|huggingface)?(?:\d+(?:e\d*)?)?"
)
_FIELDS = ("quantization", "double_quant", "quant_storage")


def read_checkpoint(
    keys: Keys,
    name: str,
    reading: Reading,
    *,
    trusts: str = "",
    whole: bool = False,
) -> None:
    """Enter the model that a key names,
    and how it is stored where its name says that it is quantised already: no name says how.

    Tools load such a checkpoint as it is stored, whatever quantisation the file asks for (transformers 5.23.0
    quantizers/auto.py ``merge_quantization_configs``: that of the checkpoint wins), also where --model names
    another shape.  What becomes of one in fp8 depends on the card and on the stack.  ``trusts``: place that
    tells of a tool that runs a checkpoint's own code without asking.  ``whole``: the tool rounds weights
    itself, which it finds whole, as onebitllms does what is called prequantized.  To be called when the
    quantisation that the file asks for is known.

    Raises:
        InputFileError: not text.
        NotModelledError: a kind of quantisation that no formula covers.
    """
    model = keys.text(name)
    if model is None:
        return
    _say_model(keys, name, model, reading)
    remark_on_own_code(keys, model, reading, trusts)
    last = model.rstrip("/").rpartition("/")[2]
    found, released = QUANTISED.search(last), RELEASED_IN_FP8.fullmatch(last)
    if (found is None and not released) or whole or _says_storage(keys, name, reading):
        return
    if found is None:
        what = f"{show(model)} was released in FP8, and nobody read how: name a copy in 16 bits"
        raise keys.not_modelled(name, what)
    kind = quantization_named(last)
    if not kind:
        raise keys.not_modelled(
            name, f"{show(model)} is quantised already ({found[1]}), which is not modelled"
        )
    if kind == "nf4" and reading.value("quantization") == "nf4":
        return
    _ask(reading, f"{keys.where(name)}: {show(model)} is quantised already: say --quantization {kind}")


def _say_model(keys: Keys, name: str, model: str, reading: Reading) -> None:
    """Enter the model; of a folder that is not here the known model that its name tells."""
    where = keys.where(name)
    try:
        beside = (keys.path.parent / model).exists()
    except (OSError, ValueError):
        beside = True
    known = None if beside else _named_after(model)
    if known is None:
        reading.say("model", model, where)
        return
    text = f"{show(model)} is not here: unless --model says another, {known} is counted, after its name"
    reading.say("model", known, where, text)
    reading.remark(where, text)


def _named_after(model: str) -> str | None:
    """The known model that a folder is named after, else the one that a folder above those of a run is:
    ``saves/Qwen2.5-7B/full/step_100``.
    """
    if (known := known_by_folder(model)) is not None or model.count("/") < _PARTS_OF_A_PATH:
        return known
    inner = model.rstrip("/").split("/")
    for _ in range(_MOST_ABOVE):
        words = re.split(r"[-_.=]", inner.pop().lower())
        if not all(map(_OF_A_RUN.fullmatch, words)) or not inner:
            return None
        if known := known_by_folder(f"{'/'.join(inner)}/"):
            return known
    return None


def came_after(keys: Keys, name: str, transformers: str) -> bool:
    """Whether the model that a key names came after this version of Transformers: such a file is of no
    software that has it, whatever old file it was copied from.

    False where a checkpoint may have brought code of its own before.
    """
    model = (keys.text(name) or "").rstrip("/")
    known = _named_after(model)
    entry = entry_named_in(model) if known is None else model_entry(known)
    if entry is None or entry.config.get("model_type") in _BRING_CODE:
        return False
    return needed_version(spec_of(entry)) > parsed_version("transformers", transformers)


def remark_on_own_code(keys: Keys, model: str, reading: Reading, trusts: str = "") -> None:
    """Say where a checkpoint's own code would run in place of Transformers' class, which is counted.

    Code that is trusted goes before the class (transformers 5.23.0 models/auto/auto_factory.py
    from_pretrained).  Models of which Transformers has no class are counted by their own code.

    Raises:
        NotModelledError: own code that differs from the class in what memory depends on.
    """
    origin = keys.where(_TRUST) if keys.flag(_TRUST) else trusts
    if not origin:
        return
    entry = entry_named_in(model.rstrip("/"))
    if entry is not None and entry.config.get("model_type") in _UNREAD_CODE:
        raise keys.not_modelled(_TRUST, f"the own code of {show(model)} was not read; leave {_TRUST} out")
    if entry is not None and entry.config.get("model_type") in _BRING_CODE:
        reading.remark(
            origin,
            "checkpoints of this family may bring code of their own, which runs here: what is counted is the "
            "class of Transformers, so memory may differ",
        )


def _says_storage(keys: Keys, name: str, reading: Reading) -> bool:
    """Enter how the catalog or its ``config.json`` says that the checkpoint is stored; false where neither
    does.
    """
    stored = storage_of(str(keys.text(name)).rstrip("/"))
    if stored is None:
        return False
    for field in _FIELDS:
        reading.said.pop(field, None)
    if stored.quantization == "fp8":
        return True
    where, note = keys.where(name), "as the checkpoint is stored"
    reading.say("quantization", stored.quantization, where, note)
    if stored.packing.is_stored:
        reading.say("double_quant", stored.double_quant, where, note)
        if stored.quant_storage is not None:
            reading.say("quant_storage", stored.quant_storage, where, note)
    return True


def read_gptq(keys: Keys, reading: Reading) -> None:
    """Axolotl's ``gptq``: the base is one of GPTQ; its bits are asked for where no source says them.

    Source: axolotl 0.19.0 loaders/model.py _set_quantization_config,
    which takes the ``quantization_config`` of the model.
    """
    if (
        keys.flag("gptq")
        and reading.value("quantization") not in GPTQ
        and "quantization" not in reading.needs
    ):
        _ask(
            reading,
            f"{keys.where('gptq')}: the base is quantised by GPTQ: "
            f"say --quantization {' or '.join(sorted(GPTQ))}",
        )


def _ask(reading: Reading, sentence: str) -> None:
    for field in _FIELDS:
        reading.said.pop(field, None)
    reading.needs["quantization"] = sentence
