"""A supervised training of ms-swift 1.2 to 2.6, whose arguments have other names and defaults than in 3.0.

Keys and defaults: swift/llm/utils/argument.py SftArguments of v1.2.0 to v2.6.0; what is done with them:
swift/llm/sft.py, swift/llm/tuner.py (before 2.0 in sft.py) and swift/llm/utils/model.py of these versions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from planner.catalog.location import data_dir
from planner.catalog.models import entry_named_in
from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.said_by_file import Reading, Stop
from planner.configs.shared.checkpoints import read_checkpoint
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.configs.shared.stock import stock_engine
from planner.configs.shared.trainer_arguments import (
    read_files,
    read_trainer,
)
from planner.configs.tools.ms_swift_launch import PARTS_BY_NAME, read_processes
from planner.domain.model import ModelSpec
from planner.errors import show
from planner.files.structured import read_toml

TOOL, STACK = "ms-swift 2.0.0", "swift@1"
_MARKS = ("sft_type", "model_id_or_path", "lora_target_modules", "quantization_bit", "use_flash_attn")
# Arguments that ms-swift 3 no longer has.
_PLACE = "ms-swift 2.0.0 swift/llm/utils/argument.py SftArguments"
_NAMES = texts_in("ms-swift.toml", "names_before_3")
_UNMODELLED = {**PARTS_BY_NAME, **texts_in("ms-swift.toml", "unmodelled_before_3")}
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
# swift/llm/utils/model.py LoRATM: attention's projections of query, key and value by architecture.
_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
_DEFAULT_TARGETS = {
    "baichuan": ("W_pack",),
    "chatglm": ("query_key_value",),
    "internlm2": ("wqkv",),
    "phi3": ("qkv_proj",),
    "qwen": ("c_attn",),
    **dict.fromkeys(
        ("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "gemma", "gemma2", "internlm", "cohere"),
        _PROJECTIONS,
    ),
}
_OWN_ATTENTION = ("baichuan", "chatglm", "internlm2", "qwen")
# Models whose module was not read; swift/llm/utils/model.py trains Phi-2 by the checkpoint's own code and
# without checkpoints.
_NOT_READ: tuple[tuple[Callable[[ModelSpec], bool], str], ...] = (
    (lambda spec: spec.vision is not None, "models that see are not modelled of ms-swift before 3.0"),
    (lambda spec: spec.architecture == "phi", "Phi-2 is not modelled of ms-swift before 3.0"),
)
# Arguments that 2.3 brought.
_SINCE_2_3 = ("target_modules", "lora_dropout", "modules_to_save", "device_map_config", "eval_strategy")


def is_before_3(keys: Keys) -> bool:
    """Whether arguments are those of ms-swift before 3.0, which asks for a ``model``."""
    later = any(keys.has(name) for name in ("model", "tuner_type", "train_type"))
    return any(keys.has(name) for name in _MARKS) or (keys.has("model_type") and not later)


def read_ms_swift_2(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what arguments of ms-swift before 3.0 say."""
    name = next((name for name in _MARKS if keys.has(name)), "model_type")
    if newer := next((each for each in ("model", "tuner_type", "train_type") if keys.has(each)), ""):
        raise keys.not_modelled(name, f"an argument of ms-swift before 3.0, beside {newer} of later ones")
    reading.take_stack(STACK, TOOL, keys.where(name), "an argument that ms-swift no longer has since 3.0")
    since_2_3 = any(keys.has(name) for name in _SINCE_2_3)
    keys.rename(_NAMES)
    _refuse(keys)
    _read_method(keys, reading)
    quantised = _read_model(keys, reading)
    _read_dtype(keys, reading, quantised=quantised)
    if reading.value("method") == "lora":
        _read_adapters(keys, reading, newer=since_2_3)
    if keys.has("only_save_model"):
        _ask_of_1(keys, reading)
    else:
        _read_attention(keys, reading, newer=since_2_3)
    _read_length(keys, reading)
    ranks = read_processes(keys, reading, beside)
    _read_steps(keys, reading)
    _read_engine(keys, reading, beside)
    if reading.sharding.engine == "native" and "gpus" in reading.said and ranks:
        reading.default("sharding", "ddp", "ms-swift 2.0.0 swift/cli/main.py: torchrun without an engine")
    for applies, why in _NOT_READ:
        reading.stops.append(Stop(applies, f"{keys.path}: {why}", by_tool=False))
    keys.skip(
        (
            "sft_type",
            "model_type",
            "fsdp_config",
            *names_in("ms-swift.toml", "harmless"),
            *names_in("ms-swift.toml", "harmless_before_3"),
        )
    )


def _refuse(keys: Keys) -> None:
    """Refuse what was not read of these versions."""
    keys.refuse_switched_on(_UNMODELLED)
    keys.refuse_above_one({"sequence_parallel_size": "a sequence-parallel degree"})
    variables = keys.get("ENV")
    if isinstance(variables, dict) and str(variables.get("USE_TORCHACC", "0")) not in ("0", "false"):
        raise keys.not_modelled("ENV", "USE_TORCHACC: TorchAcc is not modelled")
    backend = keys.text("tuner_backend")
    if backend not in (None, "swift", "peft"):
        raise keys.not_modelled("tuner_backend", f"{show(backend)} inside ms-swift is not modelled; peft is")


def _read_method(keys: Keys, reading: Reading) -> None:
    """LoRA unless ``sft_type`` says else; bits without a method are those of bitsandbytes."""
    kind, bits, method = keys.text("sft_type"), keys.get("quantization_bit") or 0, keys.text("quant_method")
    if kind not in (None, "lora", "full"):
        raise keys.not_modelled("sft_type", f"'{show(kind)}': this tuner is not modelled; lora and full are")
    if kind is None:
        reading.default("method", "lora", f"{_PLACE}: sft_type")
    else:
        reading.say("method", kind, keys.where("sft_type"))
    double, storage = keys.flag("bnb_4bit_use_double_quant"), keys.text("bnb_4bit_quant_storage")
    four_bits = keys.text("bnb_4bit_quant_type") or "nf4"
    if method not in (None, "bnb") or bits not in (0, 4, 8):
        named = "quantization_bit" if method is None else "quant_method"
        raise keys.not_modelled(named, "of quantisations bitsandbytes' 4 and 8 bits are modelled")
    if not bits:
        return
    if kind == "full":
        raise keys.stops("quantization_bit", "a quantised base is trained through adapters only")
    where = keys.where("quantization_bit")
    reading.say("quantization", "int8" if bits == 8 else four_bits, where)
    if bits == 4 and double is None:
        reading.default("double_quant", True, f"{_PLACE}: bnb_4bit_use_double_quant")
    elif bits == 4:
        reading.say("double_quant", double, keys.where("bnb_4bit_use_double_quant"))
    if bits == 4 and storage not in (None, "uint8"):
        reading.say("quant_storage", storage, keys.where("bnb_4bit_quant_storage"))


def _read_model(keys: Keys, reading: Reading) -> bool:
    """The checkpoint, by its id or by ms-swift's own name for it; whether it is packed already.

    Source: swift/llm/utils/argument.py set_model_type.
    """
    kind, name = keys.text("model_type"), keys.text("model_id_or_path")
    trusts = f"{TOOL}, which trusts a checkpoint's own code"
    known = None if kind is None else _model_types().get(kind)
    if known is not None and (name is None or name.startswith(("/", "~", "."))):
        stated = Keys(keys.path, {"model_type": known})
        read_checkpoint(stated, "model_type", reading, trusts=trusts)
    elif name is not None:
        read_checkpoint(keys, "model_id_or_path", reading, trusts=trusts)
    elif kind is not None:
        reading.needs["model"] = f"{keys.where('model_type')}: '{show(kind)}' is not known: say --model"
    packed = f"{kind or ''} {name or ''}".lower()
    return any(word in packed for word in ("int4", "int8", "awq", "4bits"))


@cache
def _model_types() -> dict[str, str]:
    """ms-swift's names of models -> Hub ids."""
    return dict(read_toml(data_dir() / "ms_swift_models.toml")["models"])


def _read_dtype(keys: Keys, reading: Reading, *, quantised: bool) -> None:
    """Weights in bf16 where nothing is said, in fp16 where they are packed, whatever the checkpoint has;
    autocast follows them.  Full fine-tunes in fp16 keep weights in fp32.

    Source: swift/llm/utils/argument.py select_dtype and select_bnb.
    """
    said, computes = keys.text("dtype"), keys.text("bnb_4bit_comp_dtype")
    name = said if said not in (None, "AUTO") else "fp16" if quantised else "bf16"
    if name not in _DTYPES:
        raise keys.wrong("dtype", f"{', '.join(_DTYPES)} or AUTO", said)
    if computes not in (None, "AUTO", name):
        why = "4-bit matrices that compute in another dtype than the weights are not modelled"
        raise keys.not_modelled("bnb_4bit_comp_dtype", why)
    where = keys.where("dtype") if said == name else f"{_PLACE} select_dtype"
    in_fp32 = name == "fp32" or (name == "fp16" and reading.value("method") == "full")
    reading.say("load_dtype", _DTYPES["fp32" if in_fp32 else name], where)
    reading.say("precision", "fp32" if name == "fp32" else f"{name}-mixed", where)


def _read_adapters(keys: Keys, reading: Reading, *, newer: bool) -> None:
    """Rank, targets and dtype of adapters: 1.x made its own in fp32, 2.0 has PEFT make them in the dtype of
    the base, where that is one of floating numbers; fp16 ones are made fp32.

    Source: swift/llm/tuner.py prepare_model; peft 0.10 tuners/lora/layer.py update_layer.
    """
    reading.take(keys, {"lora_rank": "lora_rank", "lora_dropout": "lora_dropout"})
    if keys.flag("use_dora"):
        reading.say("dora", True, keys.where("use_dora"))
    if keys.text("lora_bias_trainable") not in (None, "none"):
        raise keys.not_modelled("lora_bias_trainable", "trained biases are not modelled")
    dtype = keys.text("lora_dtype")
    if dtype not in (None, "AUTO", *_DTYPES):
        raise keys.wrong("lora_dtype", f"{', '.join(_DTYPES)} or AUTO", dtype)
    if dtype in _DTYPES:
        reading.say("adapter_dtype", "fp32" if dtype == "fp16" else dtype, keys.where("lora_dtype"))
    elif keys.text("tuner_backend") != "swift" and not newer:
        in_bf16 = reading.value("load_dtype") == "bfloat16" and reading.value("quantization") is None
        place = f"{_PLACE}: lora_dtype AUTO, that of the base"
        reading.default("adapter_dtype", "bf16" if in_bf16 else "fp32", place)
    _read_targets(keys, reading)


def _read_targets(keys: Keys, reading: Reading) -> None:
    """``ALL`` are all linear modules but the head, ``DEFAULT`` those of the architecture's table."""
    targets: list[str] = []
    for target in keys.names("target_modules") or ("DEFAULT",):
        if target in ("DEFAULT", "AUTO"):
            targets += _default_targets(keys, reading)
        elif target == "ALL":
            targets.append("all-linear")
        elif target.isupper():
            raise keys.not_modelled("target_modules", f"'{show(target)}' is not modelled: name the modules")
        else:
            targets.append(target)
    if targets:
        reading.say("lora_targets", tuple(targets), keys.where("target_modules"))
    extra = keys.names("modules_to_save")
    if any(each in ("EMBEDDING", "LN") for each in extra):
        raise keys.not_modelled("modules_to_save", "EMBEDDING and LN are not modelled: name the modules")
    if extra:
        reading.say("modules_to_save", extra, keys.where("modules_to_save"))


def _default_targets(keys: Keys, reading: Reading) -> tuple[str, ...]:
    found = _DEFAULT_TARGETS.get(_architecture(reading))
    if found is None:
        reading.needs["lora_targets"] = (
            f"{keys.where('target_modules')}: which modules are DEFAULT of this model is not known: say "
            "--lora-targets"
        )
    return found or ()


def _ask_of_1(keys: Keys, reading: Reading) -> None:
    """What follows from the version where an argument is one of 1.2 to 1.5: FlashAttention where it is asked
    for, else that of Transformers 4.33 to 4.36, and reentrant checkpoints until 1.4, with which matrices of
    bitsandbytes keep no inputs.  Qwen, Baichuan, ChatGLM and InternLM 2 bring their own attention.

    Source: modelscope/ms-swift c445b330c of 2023-11-28, in 1.4.0; requirements/framework.txt.
    """
    where = keys.where("only_save_model")
    if keys.flag("use_flash_attn"):
        reading.say("attention", "flash2", keys.where("use_flash_attn"))
    elif _architecture(reading) not in _OWN_ATTENTION:
        reading.needs["attention"] = f"{where}: before 1.6 Transformers decides: say --attention eager"
    if reading.value("quantization") is not None:
        reading.needs["checkpoint_reentrant"] = (
            f"{where}: before 1.6 the version decides: say --checkpoint-reentrant up to 1.3, or "
            "--no-checkpoint-reentrant"
        )


def _architecture(reading: Reading) -> str:
    """The ``model_type`` of the known model, empty for others."""
    model = reading.value("model")
    entry = None if model is None else entry_named_in(str(model))
    return "" if entry is None else str(entry.config.get("model_type"))


def _read_attention(keys: Keys, reading: Reading, *, newer: bool) -> None:
    """FlashAttention where it is asked for; else Transformers' own choice up to 2.1, and eager attention from
    2.2 on.

    Source: swift/llm/utils/model.py get_model_tokenizer_with_flash_attn.
    """
    where = keys.where("use_flash_attn")
    if keys.flag("use_flash_attn"):
        reading.say("attention", "flash2", where)
    elif newer:
        reading.default("attention", "eager", "ms-swift 2.3.0 swift/llm/utils/model.py: use_flash_attn")
    else:
        text = (
            "without FlashAttention ms-swift 2.2 and later have Transformers attend eagerly: say --attention"
        )
        reading.remark(where if keys.has("use_flash_attn") else str(keys.path), text)


def _read_length(keys: Keys, reading: Reading) -> None:
    """2,048 tokens where nothing is said; -1 is no limit."""
    if keys.get("max_length") == -1:
        reading.needs["seq"] = f"{keys.where('max_length')}: the longest sample decides: say --seq"
    elif (length := keys.count("max_length")) is not None:
        reading.say("seq", length, keys.where("max_length"))
    else:
        reading.default("seq", 2048, f"{_PLACE}: max_length")
    if keys.text("truncation_strategy") not in (None, "delete", "ignore"):
        reading.switch("drops_long_samples", False, keys.where("truncation_strategy"))


def _read_steps(keys: Keys, reading: Reading) -> None:
    """Micro-batch 1, so many micro-steps that a step has 16 samples at least, and an evaluation of as many
    samples at a time as are trained on, of 1 % of the data.
    """
    for name, field, own in (
        ("per_device_train_batch_size", "batch", "batch_size"),
        ("num_train_epochs", "epochs", "num_train_epochs"),
    ):
        if not keys.has(name):
            reading.default(field, 1, f"{_PLACE}: {own}")
    if not keys.has("gradient_accumulation_steps"):
        reading.least_batch = (16, f"{_PLACE}: gradient_accumulation_steps")
    if keys.flag("ddp_find_unused_parameters") is None:
        unused = "always" if keys.flag("gradient_checkpointing") is False else "never"
        reading.switch("ddp_finds_unused", unused, f"{_PLACE} _init_training_args")
    read_trainer(keys, reading)
    if reading.least_batch is not None:
        reading.said.pop("grad_accum", None)
    reading.said.pop("eval_batch", None)
    asked = str(keys.get("eval_strategy") or "steps").lower()
    held_out = keys.has("val_dataset") or keys.get("dataset_test_ratio") is None
    if asked not in ("no", "false") and (held_out or keys.is_on("dataset_test_ratio")):
        size = keys.count("per_device_eval_batch_size") or reading.value("batch")
        reading.default(
            "eval_batch", size, f"{_PLACE}: evaluation_strategy, dataset_test_ratio, eval_batch_size"
        )


def _read_engine(keys: Keys, reading: Reading, beside: Beside) -> None:
    """DeepSpeed by the name of a file that ms-swift ships, or by a file."""
    said = keys.get("deepspeed")
    shipped = stock_engine(f"{said}@2") if isinstance(said, str) else None
    read_files(keys, reading, beside, shipped)
