"""Arguments of LMFlow's ``examples/finetune.py``, on a command line or in the JSON file that it reads.

Keys and defaults: OptimalScale/LMFlow at f3597dba (2026-04-25, version 1.1.0) src/lmflow/args.py
ModelArguments, DatasetArguments and FinetunerArguments; what becomes of them: models/hf_model_mixin.py,
tokenization/hf_decoder_model.py and pipeline/finetuner.py there.
Ignored: rows that a longer vocabulary adds to the embedding.
"""

from __future__ import annotations

from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.said_by_file import Reading
from planner.configs.shared.age import TRANSFORMERS_4, first_held
from planner.configs.shared.checkpoints import read_checkpoint
from planner.configs.shared.frozen_layers import say_lisa
from planner.configs.shared.kernels import read_dtype
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.configs.shared.trainer_arguments import (
    need_precision,
    read_distribution,
    read_precision,
    read_trainer,
)
from planner.configs.yaml_or_json import Document
from planner.domain.recipes.recipe import TARGETS_OF_PEFT
from planner.errors import show

TOOL = "LMFlow 1.1.0"
STACK = "lmflow"
_OLD_TOOL = "LMFlow 1.0 on Transformers 4"
_OLD_STACK = "lmflow@4"
MARKS = frozenset(names_in("lmflow.toml", "marks"))
_PLACE = "OptimalScale/LMFlow f3597dba src/lmflow/args.py"
_UNMODELLED = texts_in("lmflow.toml", "unmodelled")


def is_lmflow(document: Document) -> bool:
    """Whether arguments are those of LMFlow: one of its own, or three that no other tool has together."""
    keys = document.table.keys()
    return bool(MARKS & keys) or {"model_name_or_path", "dataset_path", "block_size"} <= keys


def read_lmflow(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what arguments of LMFlow say."""
    keys.refuse_switched_on(_UNMODELLED)
    if keys.text("arch_type") not in (None, "decoder_only"):
        raise keys.not_modelled("arch_type", "models other than decoder_only are not modelled")
    other = keys.text("config_name")
    if other not in (None, keys.get("model_name_or_path")):
        raise keys.not_modelled("config_name", f"the configuration of another model ({show(other)}) is not")
    old = first_held(keys, TRANSFORMERS_4)
    if old is not None:
        reading.take_stack(
            _OLD_STACK, _OLD_TOOL, keys.where(old), "an argument that Transformers 5 no longer has"
        )
    _read_length(keys, reading)
    _read_method(keys, reading)
    read_checkpoint(keys, "model_name_or_path", reading)
    read_dtype(keys, reading)
    if keys.flag("use_flash_attention"):
        reading.say("attention", "flash2", keys.where("use_flash_attention"))
    _read_optimizer(keys)
    read_trainer(keys, reading)
    read_precision(keys, reading)
    if reading.value("precision") is None:
        need_precision(reading)
    read_distribution(keys, reading, beside)
    _read_lisa(keys, reading)
    keys.skip(names_in("lmflow.toml", "harmless"))


def _read_length(keys: Keys, reading: Reading) -> None:
    """``block_size``, to which samples are cut and padded, or at which their joined text is cut.

    Source: tokenization/hf_decoder_model.py blocking, pipeline/finetuner.py group_text.
    """
    block, longest = keys.count("block_size"), keys.count("model_max_length")
    joined = keys.flag("disable_group_texts") is False
    sizes = {"block_size": block, "model_max_length": longest}
    if joined and block and keys.flag("truncate_to_model_max_length") is False:
        sizes.pop("model_max_length")
    said = {name: size for name, size in sizes.items() if size is not None}
    if said:
        name = min(said, key=lambda each: said[each])
        reading.say("seq", said[name], keys.where(name))
    else:
        reading.needs["seq"] = (
            f"{keys.path}: block_size is not given, so the length of the tokenizer decides: say --seq"
        )
    if joined:
        reading.say("padding", "packed", keys.where("disable_group_texts"))


def _read_method(keys: Keys, reading: Reading) -> None:
    """Adapters, over a base in 4 or 8 bits where ``use_qlora`` says so."""
    name = next((each for each in ("use_qlora", "use_lora", "use_dora") if keys.flag(each)), None)
    adapter = {"lora_r": "lora_rank", "lora_dropout": "lora_dropout"}
    if name is None:
        said = next((each for each in ("use_lora", "use_qlora", "use_dora") if keys.has(each)), None)
        if said is None:
            reading.default("method", "full", f"{_PLACE}: use_lora")
        else:
            reading.say("method", "full", keys.where(said))
        keys.skip((*adapter, "lora_target_modules", "quant_bit", "bits", "quant_type", "double_quant"))
        return
    reading.say("method", "lora", keys.where(name))
    reading.take(keys, adapter)
    targets = keys.names("lora_target_modules")
    if targets:
        reading.say("lora_targets", targets, keys.where("lora_target_modules"))
    else:
        reading.default("lora_targets", (TARGETS_OF_PEFT,), f"{_PLACE}: lora_target_modules")
    if keys.flag("use_dora"):
        reading.say("dora", True, keys.where("use_dora"))
    if name == "use_qlora":
        _read_quantisation(keys, reading)
    keys.skip(("quant_bit", "bits", "quant_type", "double_quant"))


def _read_quantisation(keys: Keys, reading: Reading) -> None:
    if keys.has("bits"):
        raise keys.not_modelled(
            "bits",
            "how LMFlow before March 2025 prepares a quantised base is not modelled; say quant_bit where "
            "it is today's",
        )
    bits = keys.count("quant_bit") or 4
    if bits == 8:
        reading.say("quantization", "int8", keys.where("quant_bit"))
    elif bits != 4:
        raise keys.stops("quant_bit", "LMFlow stops: it is 4 or 8")
    else:
        kind = keys.text("quant_type") or "nf4"
        if kind not in ("nf4", "fp4"):
            raise keys.wrong("quant_type", "nf4 or fp4", kind)
        reading.say("quantization", kind, keys.where("use_qlora"))
        reading.default("double_quant", keys.flag("double_quant") is not False, f"{_PLACE}: double_quant")
        place = "OptimalScale/LMFlow f3597dba src/lmflow/models/hf_model_mixin.py: bnb_4bit_quant_storage"
        reading.default("quant_storage", "bf16", place)


def _read_lisa(keys: Keys, reading: Reading) -> None:
    """LISA, as Axolotl has it (pipeline/utils/lisa_trainer.py)."""
    count, interval = keys.count("lisa_activated_layers") or 2, keys.count("lisa_interval_steps") or 20
    attribute = keys.text("lisa_layers_attribute")
    if not keys.flag("use_lisa"):
        return
    if attribute not in (None, "model.model.layers"):
        raise keys.not_modelled("lisa_layers_attribute", "layers of another name are not modelled")
    adapters = "adapters" if reading.value("method") == "lora" else None
    divided = reading.said.get("sharding") if reading.sharding.divides_optimizer else None
    say_lisa(
        keys,
        reading,
        "use_lisa",
        f"drawn:{count}@{interval}",
        adapters if divided is None else f"{divided.value} ({divided.origin})",
    )


def _read_optimizer(keys: Keys) -> None:
    """Optimizers of LMFlow's own, whatever ``optim`` says."""
    if keys.flag("use_customized_optim"):
        name = show(keys.get("customized_optim") or "sign_sgd")
        raise keys.not_modelled(
            "use_customized_optim",
            f"LMFlow's own optimizer '{name}' is not modelled: those of Transformers are, by optim",
        )
