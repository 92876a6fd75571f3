"""What a training file of LLaMA-Factory's v1 trains on, and over which base: pairs, images, packed weights.

Keys and defaults: hiyouga/LLaMA-Factory at ff6d4d12e (2026-08-18) src/llamafactory/v1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from planner.configs.said_by_file import IMAGES_UNSAID, Reading
from planner.configs.shared.keys import Keys
from planner.domain.recipes.recipe import Task
from planner.errors import UsageError, show

# What a file's data is made for decides between ``llamafactory-cli sft``, ``dpo`` and ``rm``: no key does.
_PAIRS = re.compile(r"(?:^|[/_.-])(dpo|orpo|simpo|prefs?|preference)(?=$|[/_.-])", re.IGNORECASE)
_OTHER_PREFERENCES = re.compile(r"(?:^|[/_.-])(kto|rm|reward)(?=$|[/_.-])", re.IGNORECASE)
_OF_IMAGES = re.compile(r"mllm|image|vision|visual|multimodal", re.IGNORECASE)
_PREFERENCE_KEYS = ("pref_loss", "pref_beta", "pref_ftx", "simpo_gamma", "dpo_label_smoothing", "ld_alpha")
_LOSSES: dict[str, Task] = {"sigmoid": "dpo", "orpo": "orpo", "simpo": "simpo"}
_HALVED = "chosen and rejected share a row of cutoff_len tokens: half of it each"


def read_task(keys: Keys, reading: Reading, default_length: int) -> None:
    """``llamafactory-cli dpo`` where the data or a key say so, else ``sft``.

    Source: trainers/dpo_trainer.py run_dpo; core/rendering/rendering.py process_samples.

    Raises:
        NotModelledError: reward models.
    """
    data = keys.text("train_dataset") or ""
    if _OTHER_PREFERENCES.search(data):
        raise keys.not_modelled(
            "train_dataset",
            f"{show(data)} sounds like data of reward models, which v1 trains with a head "
            "for each token that is not modelled",
        )
    if _OF_IMAGES.search(data):
        reading.say("images_per_sample", 1, keys.where("train_dataset"), IMAGES_UNSAID)
    if not is_pair_table({name: keys.get(name) for name in (*_PREFERENCE_KEYS, "train_dataset")}):
        reading.remark(str(keys.path), "counted as started by llamafactory-cli sft: no key of v1 says so")
        return
    loss = keys.text("pref_loss") or "sigmoid"
    if loss not in _LOSSES:
        raise keys.wrong("pref_loss", "sigmoid, orpo or simpo", loss)
    where = keys.where("pref_loss" if keys.has("pref_loss") else "train_dataset")
    reading.say("task", _LOSSES[loss], where)
    reading.remark(where, "counted as started by llamafactory-cli dpo")
    reading.say("seq", (keys.count("cutoff_len") or default_length) // 2, keys.where("cutoff_len"))
    reading.remark(keys.where("cutoff_len"), _HALVED)
    _refuse_copied(keys, loss)
    keys.skip(("cutoff_len", *_PREFERENCE_KEYS))


def is_pair_table(table: Mapping[str, object]) -> bool:
    """Whether a file trains on pairs, which lie in one row each."""
    data = table.get("train_dataset")
    named = isinstance(data, str) and bool(_PAIRS.search(data))
    return named or any(table.get(name) is not None for name in _PREFERENCE_KEYS)


def _refuse_copied(keys: Keys, loss: str) -> None:
    """A full fine-tune copies the model for its reference when an engine has divided it.

    Source: trainers/dpo_trainer.py _init_ref_model; torch 2.13 distributed/fsdp/_fully_shard/_fully_shard.py
    _unimplemented_deepcopy.
    """
    dist, peft = keys.get("dist_config"), keys.get("peft_config")
    if (
        loss != "sigmoid"
        or not isinstance(dist, dict)
        or (isinstance(peft, dict) and peft.get("name") == "lora")
    ):
        return
    if dist.get("name") == "fsdp2":
        raise UsageError(
            f"{keys.where('dist_config')}: LLaMA-Factory v1 copies the model as a reference, "
            "which FSDP2 refuses: say peft_config with lora, or pref_loss orpo or simpo"
        )
    raise keys.not_modelled(
        "dist_config", "a reference of DPO that copies a model of DeepSpeed is not modelled"
    )


def read_quantization(keys: Keys, reading: Reading) -> None:
    """``quant_config``: bitsandbytes, packed on the card of each process,
    in 4 bits that ``compute_dtype`` holds, float16 unless said.

    Source: plugins/model_plugins/quantization.py BnbParams, quantization_with_bnb; core/model_engine.py.

    Raises:
        UsageError: what v1 or the libraries refuse.
    """
    part = keys.part("quant_config")
    if part is None:
        return
    name, bits = part.text("name") or "bnb", part.count("quantization_bit")
    if name not in ("auto", "bnb") or bits not in (None, 4, 8):
        raise part.wrong("quantization_bit", "4 or 8, by name auto or bnb", f"{name}: {bits}")
    if name == "auto" and bits is None:
        reading.remark(part.where("name"), "nothing is quantised: auto wants quantization_bit")
        part.skip(("compute_dtype", "double_quantization", "quantization_type"))
        return
    if reading.value("method") != "lora":
        raise UsageError(
            f"{part.where('name')}: a quantised base is trained with adapters: say peft_config lora"
        )
    reading.say(
        "quantization", "int8" if bits == 8 else part.text("quantization_type") or "nf4", part.where("name")
    )
    if bits == 8:
        part.skip(("compute_dtype", "double_quantization", "quantization_type"))
        return
    reading.say(
        "double_quant", part.flag("double_quantization") is not False, part.where("double_quantization")
    )
    _read_held_dtype(part, reading, keys)


def _read_held_dtype(part: Keys, reading: Reading, keys: Keys) -> None:
    """The dtype that holds 4-bit values and that their products compute in.

    What FSDP2 makes of it: torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param.py init_dtype_attrs.
    """
    where, said = part.where("compute_dtype"), part.text("compute_dtype") or "float16"
    if said not in ("float16", "bfloat16"):
        raise part.not_modelled("compute_dtype", f"4-bit products in {show(said)} are not modelled")
    reading.say("quant_storage", said, where)
    if said == "float16":
        reading.switch("linear4bit_dtype", "fp16", where)
    dist = keys.get("dist_config")
    divided = isinstance(dist, dict) and dist.get("name") == "fsdp2"
    if said == "float16" and divided and keys.flag("bf16") is not False:
        reading.remark(
            where, "FSDP2 casts float16 that holds 4-bit values to bfloat16, which changes them: say bfloat16"
        )
