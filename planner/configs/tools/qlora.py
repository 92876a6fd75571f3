"""Arguments of ``qlora.py``, the script of QLoRA's authors, over bases in 4 and 8 bits.

Keys and defaults: artidoro/qlora at 7f4e95a (2023-07-24), which pins Transformers 4.31 (eager attention) and
PEFT 0.4; what becomes of them: get_accelerate_model and DataCollatorForCausalLM there.
Ignored: the row that a padding token adds to the token table.
"""

from __future__ import annotations

from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.said_by_file import Reading
from planner.configs.shared.checkpoints import read_checkpoint
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.configs.shared.trainer_arguments import read_distribution, read_precision, read_trainer
from planner.domain.recipes.recipe import LINEAR_MODULES
from planner.errors import show

TOOL = "qlora.py of 2023"
STACK = "hf-trainer@4"
_PLACE = "artidoro/qlora 7f4e95a qlora.py"
_SOURCE, _TARGET = 1024, 256
_NO_SOURCE = ("oasst1", "hh-rlhf")
"""Data whose samples are a target alone, behind the token with which they begin (format_dataset)."""
_DEFAULTS = {
    "batch": ("per_device_train_batch_size", 1),
    "grad_accum": ("gradient_accumulation_steps", 16),
    "gradient_checkpointing": ("gradient_checkpointing", True),
    "optimizer": ("optim", "paged_adamw_32bit"),
}
_UNMODELLED = texts_in("qlora.toml", "unmodelled")
_HARMLESS = names_in("qlora.toml", "harmless")


def read_qlora(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what a command line of the script says.

    Raises:
        NotModelledError: a base in 16 bits, another precision than bf16, or an argument of a fork.
    """
    keys.refuse_switched_on(_UNMODELLED)
    _read_base(keys, reading)
    read_checkpoint(keys, "model_name_or_path", reading)
    reading.take(keys, {"lora_r": "lora_rank", "lora_dropout": "lora_dropout"})
    reading.default("lora_rank", 64, f"{_PLACE} TrainingArguments.lora_r")
    reading.default("lora_targets", (LINEAR_MODULES,), f"{_PLACE} find_all_linear_names")
    _read_length(keys, reading)
    reading.say("attention", "eager", f"{_PLACE}: requirements.txt has Transformers 4.31")
    reading.remark(str(keys.path), "counted with Transformers 4.31; --attention sdpa is 4.36 and later")
    for name, (key, value) in _DEFAULTS.items():
        if not keys.has(key):
            reading.default(name, value, f"{_PLACE} TrainingArguments.{key}")
    read_trainer(keys, reading)
    read_precision(keys, reading)
    if reading.value("precision") != "bf16-mixed":
        raise keys.not_modelled("bf16", "this script in another precision is not modelled; true is")
    # Head and token table are 16 bits again, norms are not, and adapters are 16 bits.
    reading.switch("kbit_upcast", "norms", _PLACE)
    reading.say("adapter_dtype", "bf16", keys.where("bf16"))
    reading.say("load_dtype", "bfloat16", keys.where("bf16"), "as the script loads it")
    read_distribution(keys, reading, beside)
    keys.skip(_HARMLESS)
    keys.refuse_rest("no argument of qlora.py: what a fork makes of it is not known")


def _read_base(keys: Keys, reading: Reading) -> None:
    bits, kind = str(keys.get("bits") or 4), keys.text("quant_type") or "nf4"
    if bits not in ("4", "8"):
        raise keys.not_modelled("bits", f"{show(bits)} bits of this script are not modelled; 4 and 8 are")
    if keys.text("lora_modules") not in (None, "all"):
        raise keys.not_modelled("lora_modules", "its first versions had it; all is modelled")
    where = keys.where("bits")
    reading.say("method", "lora", where)
    reading.say("quantization", kind if bits == "4" else "int8", where)
    if bits == "4":
        reading.say("double_quant", keys.flag("double_quant") is not False, keys.where("double_quant"))


def _read_length(keys: Keys, reading: Reading) -> None:
    """Source and target are cut apart, and lie behind each other."""
    source, target = keys.count("source_max_len") or _SOURCE, keys.count("target_max_len") or _TARGET
    data = keys.text("dataset_format") or keys.text("dataset")
    if data in _NO_SOURCE:
        source = min(source, 1)
    note = f"{source} of the source and {target} of the target"
    reading.say("seq", source + target, keys.where("target_max_len"), note)
