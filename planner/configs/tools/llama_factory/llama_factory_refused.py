"""Files that LLaMA-Factory stops at before it trains: what its parser and its loader check.

Source: llamafactory 0.9.5 hparams/parser.py get_train_args and _verify_model_args, ``__post_init__`` of
hparams/finetuning_args.py and data_args.py, data/template.py, model/adapter.py,
model/model_utils/quantization.py and train/trainer_utils.py; ages by the same files of 0.7.1, 0.8.3, 0.9.1,
0.9.2 and 0.9.3.
Checks of files, data sets and installed packages are left to LLaMA-Factory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, starmap

from planner.configs.said_by_file import Reading
from planner.configs.shared.key_tables import names_in
from planner.configs.shared.keys import Keys
from planner.configs.tools.llama_factory.llama_factory_age import OLD_STACK, STACK_OF_0_9, is_of_0_7
from planner.errors import REFUSED_BY_TOOL, NotModelledError, UsageError, show

_ALL, _0_8, _0_9_1, _0_9_5 = (0, 7, 1), (0, 8, 3), (0, 9, 1), (0, 9, 5)
_WITHOUT_REFERENCE = ("orpo", "simpo")
_MUST_BE_NUMBERS = ("loraplus_lr_ratio",)

_ENDS_ONCE = names_in("llama-factory.toml", "templates_that_end_once")


@dataclass(frozen=True, slots=True)
class _File:
    """What the checks ask for: the keys, the stage, how weights are trained, and how state is spread."""

    keys: Keys
    stage: str
    kind: str
    reading: Reading

    def on(self, *names: str) -> bool:
        """Whether all keys are switched on."""
        return all(self.keys.is_on(name) for name in names)

    @property
    def has_bits(self) -> bool:
        """Whether the base is to be quantised."""
        return self.keys.has("quantization_bit")

    @property
    def adapters(self) -> int:
        """How many adapters are loaded."""
        return len(self.keys.names("adapter_name_or_path"))

    @property
    def has_no_ranks(self) -> bool:
        """Whether the launch is known, and starts one process without a launcher of ranks."""
        return bool(self.reading.one_process[0])

    @property
    def is_packed_checkpoint(self) -> bool:
        """Whether the checkpoint is stored quantised, and LLaMA-Factory leaves it so."""
        kind = self.reading.value("quantization")
        return not self.has_bits and kind not in (None, "none", "mxfp4")


@dataclass(frozen=True, slots=True)
class _Check:
    """``key``: whose place is named.  ``why``: what LLaMA-Factory says.
    ``stops``: whether it stops at a file.  ``since``: the oldest version that was read and has the check.
    """

    key: str
    why: str
    stops: Callable[[_File], bool]
    since: tuple[int, int, int] = _ALL


def _beside_other_than_lora(key: str) -> _Check:
    return _Check(key, "is for LoRA alone", lambda it: it.kind != "lora" and _is_given(it, key), _0_8)


def _beside_other_than_sft(key: str, since: tuple[int, int, int] = _ALL) -> _Check:
    return _Check(key, "is for stage sft alone", lambda it: it.stage != "sft" and it.on(key), since=since)


def _is_given(it: _File, key: str) -> bool:
    return it.keys.has(key) if key in _MUST_BE_NUMBERS else it.on(key)


def _has_reference(it: _File) -> bool:
    return it.stage == "dpo" and it.keys.get("pref_loss") not in _WITHOUT_REFERENCE


def _beside_adapters(key: str) -> _Check:
    why = "does not go beside adapters; finetuning_type: full goes with it"
    return _Check(key, why, lambda it: it.kind == "lora" and it.on(key))


def _beside_each_other(first: str, second: str) -> _Check:
    return _Check(second, f"does not go beside {first}", lambda it: it.on(first, second))


def _over_bits(key: str, since: tuple[int, int, int] = _ALL) -> _Check:
    return _Check(key, "does not go with a quantised base", lambda it: it.has_bits and it.on(key), since)


def _beside_zero3(key: str, since: tuple[int, int, int], way_out: str = "") -> _Check:
    return _Check(
        key,
        f"does not go with DeepSpeed's ZeRO-3{way_out}",
        lambda it: it.reading.sharding.is_zero3 and it.on(key),
        since,
    )


def _beside_deepspeed(key: str) -> _Check:
    return _Check(
        key, "does not go with DeepSpeed", lambda it: it.reading.sharding.engine == "deepspeed" and it.on(key)
    )


_OWN_OPTIMIZERS = ("use_galore", "use_apollo", "use_badam")
_OF_KEYS = (
    *map(_beside_adapters, _OWN_OPTIMIZERS),
    *starmap(_beside_each_other, combinations(_OWN_OPTIMIZERS, 2)),
    _Check("adapter_name_or_path", "is for LoRA alone", lambda it: it.kind != "lora" and it.adapters > 0),
    _Check(
        "quantization_bit",
        "goes with adapters only: finetuning_type must be lora or oft",
        lambda it: it.has_bits and it.kind not in ("lora", "oft"),
    ),
    _Check(
        "pissa_init",
        "does not go over a quantised base",
        lambda it: it.has_bits and it.on("pissa_init"),
        _0_8,
    ),
    _Check(
        "pissa_init",
        "does not go with PPO, KTO or a reference model",
        lambda it: it.on("pissa_init") and (it.stage in ("ppo", "kto") or _has_reference(it)),
        _0_8,
    ),
    _over_bits("resize_vocab"),
    _Check(
        "create_new_adapter",
        "does not go with a quantised base that has an adapter",
        lambda it: it.has_bits and it.adapters > 0 and it.on("create_new_adapter"),
    ),
    _Check(
        "adapter_name_or_path",
        "names several adapters, and a quantised base takes one",
        lambda it: it.has_bits and it.adapters > 1,
    ),
    _Check(
        "quantization_device_map",
        "may not be auto in training",
        lambda it: it.keys.get("quantization_device_map") == "auto",
    ),
    _over_bits("fp8", _0_9_5),
    _Check(
        "use_llama_pro",
        "is for LoRA and freeze, not for full",
        lambda it: it.kind == "full" and it.on("use_llama_pro"),
    ),
    *map(_beside_other_than_lora, ("loraplus_lr_ratio", "use_rslora", "use_dora", "pissa_init")),
    _beside_other_than_sft("predict_with_generate"),
    _beside_other_than_sft("neat_packing", _0_8),
    _beside_other_than_sft("train_on_prompt", _0_9_1),
    _beside_other_than_sft("mask_history", _0_9_1),
    _Check(
        "mask_history",
        "does not go with train_on_prompt",
        lambda it: it.on("mask_history", "train_on_prompt"),
        _0_9_1,
    ),
    _Check(
        "load_best_model_at_end",
        "is not for stages rm and ppo",
        lambda it: it.stage in ("rm", "ppo") and it.on("load_best_model_at_end"),
    ),
    _Check(
        "dpo_label_smoothing",
        "is for pref_loss: sigmoid alone",
        lambda it: (
            it.stage == "dpo"
            and it.on("dpo_label_smoothing")
            and it.keys.get("pref_loss") not in (None, "sigmoid")
        ),
    ),
    _Check(
        "compute_accuracy",
        "does not go with predict_with_generate",
        lambda it: it.on("compute_accuracy", "predict_with_generate"),
        _0_8,
    ),
    _Check(
        "streaming",
        "needs max_steps",
        lambda it: it.on("streaming") and it.keys.get("max_steps") in (None, -1),
    ),
    _Check(
        "group_by_length",
        "is a key that Transformers 5 no longer has; train_sampling_strategy: group_by_length is",
        lambda it: it.on("group_by_length"),
        _0_9_5,
    ),
    _Check(
        "train_on_prompt",
        "does not go with this template",
        lambda it: it.on("train_on_prompt") and it.keys.get("template") in _ENDS_ONCE,
        _0_9_5,
    ),
    _Check("val_size", "does not go with eval_dataset", lambda it: it.on("val_size", "eval_dataset"), _0_8),
    _Check("max_samples", "does not go with streaming", lambda it: it.on("streaming", "max_samples")),
    _Check(
        "infer_backend",
        "must be huggingface where the file trains",
        lambda it: str(it.keys.get("infer_backend")).lower() in ("vllm", "sglang"),
    ),
)
"""What the keys alone decide."""
_OF_ENGINES = (
    _Check(
        "deepspeed",
        "needs torchrun on one GPU, too: start it with FORCE_TORCHRUN=1",
        lambda it: it.reading.sharding.engine == "deepspeed" and it.has_no_ranks,
        _0_8,
    ),
    _beside_zero3("pissa_init", _0_8),
    _beside_zero3("pure_bf16", _0_8, ": say bf16"),
    _beside_zero3("predict_with_generate", _0_9_1),
    *map(_beside_deepspeed, ("use_galore", "use_apollo")),
    _Check(
        "quantization_bit",
        "must be 4 under DeepSpeed's ZeRO-3 and FSDP",
        lambda it: (
            it.reading.sharding.gathers_weights
            and str(it.keys.get("quantization_bit")) == "8"
            and it.reading.value("quantization") == "int8"
        ),
        _0_8,
    ),
    _Check(
        "model_name_or_path",
        "is stored quantised, which does not go with DeepSpeed's ZeRO-3 and FSDP",
        lambda it: it.reading.sharding.gathers_weights and it.is_packed_checkpoint,
        _0_8,
    ),
    _Check(
        "use_dora",
        "does not go with a checkpoint that is stored quantised",
        lambda it: (
            it.is_packed_checkpoint
            and it.on("use_dora")
            and it.reading.value("quantization") not in ("nf4", "fp4", "int8")
        ),
    ),
    _Check(
        "pissa_init",
        "does not go with a checkpoint that is stored quantised",
        lambda it: it.is_packed_checkpoint and it.on("pissa_init"),
        _0_8,
    ),
    _Check(
        "finetuning_type",
        "must be lora or oft for a checkpoint that is stored quantised",
        lambda it: it.is_packed_checkpoint and it.kind not in ("lora", "oft"),
    ),
    # data/collator.py: FlashAttention 3 is not asked about.
    _Check(
        "neat_packing",
        "under FlashAttention 2 takes one row: say per_device_train_batch_size: 1",
        lambda it: (
            it.on("neat_packing")
            and it.reading.value("attention") == "flash2"
            and it.keys.get("flash_attn") != "fa3"
            and it.reading.value("batch") != 1
        ),
        _0_9_5,
    ),
)
"""What the engine and the checkpoint decide, too."""


def refuse_keys(keys: Keys, reading: Reading, stage: str) -> None:
    """Raises: UsageError where LLaMA-Factory stops at what the keys say together."""
    _refuse(keys, reading, stage, _OF_KEYS)


def refuse_engine(keys: Keys, reading: Reading, stage: str) -> None:
    """Raises: UsageError where LLaMA-Factory stops at the keys beside this engine or this checkpoint."""
    _refuse(keys, reading, stage, _OF_ENGINES)


def stop_at_unknown_keys(keys: Keys, reading: Reading) -> None:
    """Raises: UsageError where a key that no version has may change memory, as its parser stops at it."""
    try:
        keys.refuse_unknown_here()
    except NotModelledError as error:
        raise UsageError(f"{error}; LLaMA-Factory stops at it [{REFUSED_BY_TOOL}]") from error
    remark_on_unknown_keys(keys, reading)


def remark_on_unknown_keys(keys: Keys, reading: Reading) -> None:
    """Say that its parser stops at a key that no version has (transformers hf_argparser.py parse_dict)."""
    for name in keys.left_over_here():
        reading.remark(
            f"{keys.path}:{show(name)}", "LLaMA-Factory stops at it, unless ALLOW_EXTRA_ARGS=1 is set"
        )


def _refuse(keys: Keys, reading: Reading, stage: str, checks: tuple[_Check, ...]) -> None:
    file = _File(keys, stage, keys.text("finetuning_type") or "lora", reading)
    age = _oldest(keys, reading)
    for check in checks:
        if check.since <= age and check.stops(file):
            raise keys.stops(check.key, f"{check.why}: LLaMA-Factory stops")


def _oldest(keys: Keys, reading: Reading) -> tuple[int, int, int]:
    """The oldest version that the file may be for, as its keys tell it."""
    stack = reading.value("stack")
    if stack == OLD_STACK:
        return _ALL if is_of_0_7(keys, reading) else _0_8
    return (0, 9, 2) if stack == STACK_OF_0_9 else _0_9_5
