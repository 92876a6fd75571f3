"""Programs whose settings were read from their text: TRL's trainers, the Trainer of Transformers, Unsloth.

Their tables: :mod:`planner.configs.programs.arguments`.
"""

from __future__ import annotations

import re

from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.launchers.zero import say_leaves
from planner.configs.said_by_file import Alone, Reading, Stop
from planner.configs.shared.allocator_variable import say_set
from planner.configs.shared.divided_model import read_divided_model
from planner.configs.shared.keys import Keys
from planner.configs.shared.own_scripts import leave_dtype
from planner.configs.shared.trainer_arguments import (
    read_distribution,
    read_trainer,
)
from planner.configs.tools.hf_trainer import read_hf_trainer
from planner.configs.tools.one_process import COPIES, UNREAD
from planner.configs.tools.trl import read_method, read_trl
from planner.configs.tools.trl_age import OLD, OLDEST
from planner.configs.tools.unsloth.unsloth_cli import read_model, say_packing, stop_at_towers
from planner.configs.tools.unsloth.unsloth_train import read_checkpointing
from planner.domain.origin import ToolDefault
from planner.errors import UsageError, show
from planner.words import words

_COMPUTES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_SPREADS = ("auto", "balanced", "balanced_low_0", "sequential")
_RL = "unsloth 2026.8.19 (015bdef0d) models/rl.py"
# The config classes that Unsloth puts in place of TRL's; TrainingArguments keep their own defaults.
_UNSLOTH_DEFAULTS = {
    "per_device_train_batch_size": ("batch", 4),
    "gradient_accumulation_steps": ("grad_accum", 2),
    "per_device_eval_batch_size": ("eval_batch", 4),
    "optim": ("optimizer", "adamw_8bit"),
}
_BESIDE_THE_STEP = words(
    """
    settings_of bf16 fp16 max_length max_seq_length dataset_text_field dataset_num_proc dataset_kwargs
    neftune_noise_alpha embedding_learning_rate
    """
)
_LORA_HARMLESS = words(
    """
    lora_alpha use_rslora max_seq_length temporary_location init_lora_weights random_state
    finetune_vision_layers
    """
)
_ENDS = ("embed_tokens", "lm_head")
_IN_FP32 = re.compile(r"gemma-?[34]|gpt-?oss|glm-?4|qwen-?3\.5")
_ADAPTED = words("finetune_language_layers finetune_attention_modules finetune_mlp_modules")
_OF_FILE = words(
    """
    settings_of loaded_by_program model_class by_trainer prepared_for_kbit padded_to_length use_peft
    lora_r lora_dropout use_bnb_nested_quant bnb_4bit_quant_type quantised_by_trl
    own_collator classifies num_labels norms_in_fp32 dequantizes gathered_whole trainer.tokenizer
    """
)


def read_trl_program(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what a program with a trainer of TRL's says; raises as :func:`read_trl`."""
    read_trl(keys, reading, beside)
    if keys.flag("loaded_by_program"):
        stored = reading.said.get("quant_storage")
        by_trl = keys.flag("quantised_by_trl")
        if stored is not None and isinstance(stored.origin, ToolDefault) and not by_trl:
            del reading.said["quant_storage"]  # That of TRL's own scripts, which load the model themselves.
        if not keys.has("dtype"):
            reading.said.pop("load_dtype", None)
            leave_dtype(keys, reading)
        _read_class(keys, reading)
    if keys.flag("own_collator"):
        reading.said.pop("seq", None)
        reading.needs["seq"] = f"{keys.path}: the program puts batches together itself: say --seq"
    if keys.flag("by_trainer") is False and _keeps_reference(reading):
        reading.switch("copies_adapters", True, str(keys.path))
    _finish(keys, reading)


def _keeps_reference(reading: Reading) -> bool:
    """Whether today's TRL compares with the model that it is handed: one of PEFT gets an adapter "ref".

    Source: trl 0.29.0 trainer/dpo_trainer.py, 0.27.0 grpo_trainer.py, 1.2.0 kto_trainer.py.
    """
    if str(reading.value("stack")) in OLD:
        return False
    task = reading.value("task")
    return task in ("dpo", "kto") or (task == "grpo" and bool(reading.value("compare_reference")))


def read_trainer_program(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what a program with the Trainer of Transformers says; raises as :func:`read_hf_trainer`."""
    read_method(keys, reading, own=False)
    read_hf_trainer(keys, reading, beside)
    for names in (reading.needs, reading.either):
        names.pop("method", None)
    if keys.flag("classifies"):
        reading.say("task", "classify", keys.where("classifies"))
    if keys.flag("padded_to_length"):
        reading.say("padding", "max_length", keys.where("padded_to_length"))
    if not keys.has("dtype"):
        leave_dtype(keys, reading)
    elif "precision" in reading.needs and reading.value("quantization") in (None, "none"):
        named = _COMPUTES.get(str(reading.value("load_dtype")))
        if named is not None:
            del reading.needs["precision"], reading.either["precision"]
            reading.say("precision", named, keys.where("dtype"), "neither bf16 nor fp16 is on")
    _finish(keys, reading)


def _finish(keys: Keys, reading: Reading) -> None:
    """What programs say that no file of these trainers does."""
    _read_allocator(keys, reading)
    _stop_at_other_families(keys, reading)
    _read_norms(keys, reading)
    say_leaves(keys, "gathered_whole", reading)
    read_divided_model(keys, reading)
    quantised = reading.value("quantization") not in (None, "none")
    if keys.flag("dequantizes"):
        reading.say("quantization", "none", keys.where("dequantizes"))
    if keys.flag("prepared_for_kbit"):
        where = keys.where("prepared_for_kbit")
        if quantised:
            reading.switch("kbit_upcast", "all", where)
        else:
            reading.switch("prepares_unquantized", True, where)
    elif quantised and keys.flag("by_trainer") is False:
        reading.switch("kbit_upcast", "none", str(keys.path))
    spread = keys.get("device_map")
    if isinstance(spread, str) and spread in _SPREADS and not reading.sharding.communicates:
        reading.say(
            "device_map", spread, keys.where("device_map"), "one process spreads the layers over its GPUs"
        )
    if keys.flag("loaded_by_program"):
        _take_one_gpu(reading, COPIES)
    keys.skip(
        (*_OF_FILE, "use_peft", "lora_r", "lora_dropout", "use_bnb_nested_quant", "bnb_4bit_quant_type")
    )


def _read_class(keys: Keys, reading: Reading) -> None:
    """A program that loads the text part itself leaves the vision tower out, which TRL would load.

    Source: transformers 5.23.0 models/auto/modeling_auto.py, the mapping of AutoModelForCausalLM.
    """
    if str(keys.get("model_class")).endswith("ForCausalLM"):
        reading.switch("loads_tower", False, keys.where("model_class"))


def _stop_at_other_families(keys: Keys, reading: Reading) -> None:
    """Kernels of Liger that a program puts into one family change nothing in others."""
    family = keys.text("liger_family")
    if family is not None:
        why = f"kernels of Liger are put into {show(family)}, and this model is another: leave them out"
        sentence = f"{keys.path}: {why}"
        reading.stops.append(Stop(lambda model: model.architecture != family, sentence, by_tool=False))


def _read_norms(keys: Keys, reading: Reading) -> None:
    """Norms that the program moves to fp32 lie there already where PEFT prepared a quantised base.

    Raises:
        NotModelledError: it did not.
    """
    prepares = str(reading.value("stack")) == OLDEST and keys.flag("by_trainer") is True
    quantised = reading.value("quantization") not in (None, "none")
    if keys.flag("norms_in_fp32") and not (quantised and (prepares or keys.flag("prepared_for_kbit"))):
        raise keys.not_modelled("norms_in_fp32", "norms that the program moves to fp32 are not modelled here")


def _take_one_gpu(reading: Reading, why: str) -> None:
    """A model that the program loads lies on one GPU of a process, unless a ``device_map`` is said."""
    place, sees = reading.one_process
    if place and "device_map" not in reading.said and not reading.sharding.communicates and not reading.alone:
        reading.alone = Alone(place, sees=sees, unread=why)


def _read_allocator(keys: Keys, reading: Reading) -> None:
    if text := keys.as_written("allocator"):
        say_set(text, str(keys.path), reading)


def read_unsloth_program(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what a program says that trains a model of Unsloth's by a trainer of TRL's.

    Raises:
        UsageError: a value that cannot be used.
        NotModelledError: something that no formula covers.
    """
    model = keys.part("unsloth") or Keys(keys.path, {}, "unsloth.")
    lora = keys.part("unsloth_lora")
    _read_length(keys, model, reading)
    four = model.flag("load_in_4bit") is not False and not any(
        model.flag(name) for name in ("load_in_8bit", "load_in_16bit", "full_finetuning")
    )
    _read_unsloth_method(model, lora, reading)
    read_model(model, "model_name", reading, four_bits=four)
    stop_at_towers(model, "model_name", reading)
    if dtype := model.text("dtype"):
        named = {"bfloat16": "bf16", "float16": "fp16"}.get(dtype)
        if named is None:
            raise model.not_modelled("dtype", f"{show(dtype)} in Unsloth is not modelled")
        _stop_at_precision(keys, model, dtype)
        reading.say("load_dtype", named, model.where("dtype"))
    if keys.get("settings_of") != "TrainingArguments":
        for key, (name, value) in _UNSLOTH_DEFAULTS.items():
            if not keys.has(key):
                reading.default(name, value, f"{_RL}: its config class")
    keys.skip(_BESIDE_THE_STEP)
    if keys.get("packing_strategy") == "bfd":
        keys.skip(("packing_strategy",))  # That of TRL's own default.
    read_trainer(keys, reading, own_loss=True)
    read_checkpointing(model if lora is None else lora, "use_gradient_checkpointing", reading)
    say_packing(keys, "packing", reading)
    if keys.flag("padding_free") is False:
        text = "rows are counted end to end, as Unsloth lays them by default; padded ones may need more"
        reading.remark(keys.where("padding_free"), text)
    read_distribution(keys, reading, beside)
    _read_allocator(keys, reading)
    _take_one_gpu(reading, UNREAD)
    model.skip(("trust_remote_code", "device_map", "use_gradient_checkpointing"))


def _stop_at_precision(keys: Keys, model: Keys, dtype: str) -> None:
    """Raises: UsageError where adapters are to train in the other 16 bits than the model has.

    Source: ``_RL``, "Model is in float16 precision but you want to use bfloat16 precision"; families that it
    keeps in fp32 (models/loader.py FORCE_FLOAT32) do not stop.
    """
    other = {"float16": "bf16", "bfloat16": "fp16"}[dtype]
    forced = _IN_FP32.search(str(model.get("model_name")).lower())
    if keys.flag(other) and not model.flag("full_finetuning") and forced is None:
        raise keys.stops(other, f"Unsloth stops: the model is loaded in {dtype}")


def _read_length(keys: Keys, model: Keys, reading: Reading) -> None:
    """The length is the model's, or that of the trainer where it is shorter: a ``max_length`` gives way."""
    most, asked = model.count("max_seq_length"), keys.count("max_seq_length")
    if most is None:
        reading.default("seq", 2048, "unsloth 2026.8.19 (015bdef0d) models/loader.py: max_seq_length")
        most = 2048
    else:
        reading.say("seq", most, model.where("max_seq_length"))
    if asked is not None and asked < most:
        del reading.said["seq"]
        reading.say("seq", asked, keys.where("max_seq_length"))


def _read_unsloth_method(model: Keys, lora: Keys | None, reading: Reading) -> None:
    full = bool(model.flag("full_finetuning"))
    model.refuse_switched_on(
        {
            "fast_inference": "vLLM beside the training is not read from a program of Unsloth's",
            "load_in_fp8": "adapters on fp8 in Unsloth are not modelled",
            "qat_scheme": "quantisation-aware training in Unsloth is not modelled",
            "unsloth_tiled_mlp": "Unsloth's feed-forward in tiles is not modelled",
            "offload_embedding": "a token table in host RAM is not modelled",
            "float32_mixed_precision": "fp32 in Unsloth is not modelled",
            "unsloth_force_compile": "compiled models in Unsloth are not modelled",
            "resize_model_vocab": "a resized vocabulary is not modelled",
        }
    )
    model.skip(("rope_scaling", "max_lora_rank", "gpu_memory_utilization", "float8_kv_cache", "text_only"))
    if lora is None and not full:
        where = model.where("full_finetuning")
        raise UsageError(f"{where}: neither adapters nor full_finetuning: what is trained is not said")
    reading.say(
        "method", "full" if full else "lora", model.where("full_finetuning") if full else str(model.path)
    )
    if model.flag("load_in_8bit") and not full:
        reading.say("quantization", "int8", model.where("load_in_8bit"))
    if lora is not None and not full:
        _read_unsloth_adapters(lora, reading)


def _read_unsloth_adapters(lora: Keys, reading: Reading) -> None:
    reading.take(lora, {"r": "lora_rank", "lora_dropout": "lora_dropout"})
    if lora.get("bias") not in (None, "none"):
        raise lora.not_modelled("bias", "trained biases are not modelled")
    for name in _ADAPTED:
        if lora.flag(name) is False:
            raise lora.not_modelled(
                name, "adapters on some parts only, by Unsloth's switches, are not modelled"
            )
    lora.refuse_switched_on(
        {
            "loftq_config": "LoftQ in Unsloth is not modelled",
            "layers_to_transform": "adapters on some layers only are not modelled",
            "layers_pattern": "adapters on some layers only are not modelled",
            "finetune_last_n_layers": "adapters on some layers only are not modelled",
            "qat_scheme": "quantisation-aware training in Unsloth is not modelled",
        }
    )
    if lora.flag("use_dora"):
        reading.say("dora", True, lora.where("use_dora"))
    targets = (*lora.names("target_modules"), *lora.parameter_targets("target_parameters"))
    # unsloth 2026.8.19 (015bdef0d) models/llama.py get_peft_model: trained whole, wherever they are named.
    ends = tuple(each for each in _ENDS if each in targets)
    if adapted := tuple(each for each in targets if each not in ends):
        reading.say("lora_targets", adapted, lora.where("target_modules"))
    if extra := tuple(dict.fromkeys((*lora.names("modules_to_save"), *ends))):
        reading.say("modules_to_save", extra, lora.where("modules_to_save"))
    lora.skip(_LORA_HARMLESS)
