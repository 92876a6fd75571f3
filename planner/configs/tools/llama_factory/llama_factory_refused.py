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
    return _Check(
        key, "is for LoRA alone", lambda file: file.kind != "lora" and _is_given(file, key), since=_0_8
    )


def _beside_other_than_sft(key: str, since: tuple[int, int, int] = _ALL) -> _Check:
    return _Check(
        key, "is for stage sft alone", lambda file: file.stage != "sft" and file.on(key), since=since
    )


def _is_given(file: _File, key: str) -> bool:
    return file.keys.has(key) if key in _MUST_BE_NUMBERS else file.on(key)


def _has_reference(file: _File) -> bool:
    return file.stage == "dpo" and file.keys.get("pref_loss") not in _WITHOUT_REFERENCE


def _beside_adapters(key: str) -> _Check:
    why = "does not go beside adapters; finetuning_type: full goes with it"
    return _Check(key, why, lambda file: file.kind == "lora" and file.on(key))


def _beside_each_other(first: str, second: str) -> _Check:
    return _Check(second, f"does not go beside {first}", lambda file: file.on(first, second))


def _beside_zero3(key: str, since: tuple[int, int, int], way_out: str = "") -> _Check:
    return _Check(
        key,
        f"does not go with DeepSpeed's ZeRO-3{way_out}",
        lambda file: file.reading.sharding.is_zero3 and file.on(key),
        since=since,
    )


def _beside_deepspeed(key: str) -> _Check:
    return _Check(
        key,
        "does not go with DeepSpeed",
        lambda file: file.reading.sharding.engine == "deepspeed" and file.on(key),
    )


_OWN_OPTIMIZERS = ("use_galore", "use_apollo", "use_badam")
_OF_KEYS = (
    *map(_beside_adapters, _OWN_OPTIMIZERS),
    *starmap(_beside_each_other, combinations(_OWN_OPTIMIZERS, 2)),
    _Check(
        "adapter_name_or_path", "is for LoRA alone", lambda file: file.kind != "lora" and file.adapters > 0
    ),
    _Check(
        "quantization_bit",
        "goes with adapters only: finetuning_type must be lora or oft",
        lambda file: file.has_bits and file.kind not in ("lora", "oft"),
    ),
    _Check(
        "pissa_init",
        "does not go over a quantised base",
        lambda file: file.has_bits and file.on("pissa_init"),
        since=_0_8,
    ),
    _Check(
        "pissa_init",
        "does not go with PPO, KTO or a reference model",
        lambda file: file.on("pissa_init") and (file.stage in ("ppo", "kto") or _has_reference(file)),
        since=_0_8,
    ),
    _Check(
        "resize_vocab",
        "does not go with a quantised base",
        lambda file: file.has_bits and file.on("resize_vocab"),
    ),
    _Check(
        "create_new_adapter",
        "does not go with a quantised base that has an adapter",
        lambda file: file.has_bits and file.adapters > 0 and file.on("create_new_adapter"),
    ),
    _Check(
        "adapter_name_or_path",
        "names several adapters, and a quantised base takes one",
        lambda file: file.has_bits and file.adapters > 1,
    ),
    _Check(
        "quantization_device_map",
        "may not be auto in training",
        lambda file: file.keys.get("quantization_device_map") == "auto",
    ),
    _Check(
        "fp8",
        "does not go with a quantised base",
        lambda file: file.has_bits and file.on("fp8"),
        since=_0_9_5,
    ),
    _Check(
        "use_llama_pro",
        "is for LoRA and freeze, not for full",
        lambda file: file.kind == "full" and file.on("use_llama_pro"),
    ),
    *map(_beside_other_than_lora, ("loraplus_lr_ratio", "use_rslora", "use_dora", "pissa_init")),
    _beside_other_than_sft("predict_with_generate"),
    _beside_other_than_sft("neat_packing", _0_8),
    _beside_other_than_sft("train_on_prompt", _0_9_1),
    _beside_other_than_sft("mask_history", _0_9_1),
    _Check(
        "mask_history",
        "does not go with train_on_prompt",
        lambda file: file.on("mask_history", "train_on_prompt"),
        since=_0_9_1,
    ),
    _Check(
        "load_best_model_at_end",
        "is not for stages rm and ppo",
        lambda file: file.stage in ("rm", "ppo") and file.on("load_best_model_at_end"),
    ),
    _Check(
        "dpo_label_smoothing",
        "is for pref_loss: sigmoid alone",
        lambda file: (
            file.stage == "dpo"
            and file.on("dpo_label_smoothing")
            and file.keys.get("pref_loss") not in (None, "sigmoid")
        ),
    ),
    _Check(
        "compute_accuracy",
        "does not go with predict_with_generate",
        lambda file: file.on("compute_accuracy", "predict_with_generate"),
        since=_0_8,
    ),
    _Check(
        "streaming",
        "needs max_steps",
        lambda file: file.on("streaming") and file.keys.get("max_steps") in (None, -1),
    ),
    _Check(
        "group_by_length",
        "is a key that Transformers 5 no longer has; train_sampling_strategy: group_by_length is",
        lambda file: file.on("group_by_length"),
        since=_0_9_5,
    ),
    _Check(
        "train_on_prompt",
        "does not go with this template",
        lambda file: file.on("train_on_prompt") and file.keys.get("template") in _ENDS_ONCE,
        since=_0_9_5,
    ),
    _Check(
        "val_size",
        "does not go with eval_dataset",
        lambda file: file.on("val_size", "eval_dataset"),
        since=_0_8,
    ),
    _Check("max_samples", "does not go with streaming", lambda file: file.on("streaming", "max_samples")),
    _Check(
        "infer_backend",
        "must be huggingface where the file trains",
        lambda file: str(file.keys.get("infer_backend")).lower() in ("vllm", "sglang"),
    ),
)
"""What the keys alone decide."""
_OF_ENGINES = (
    _Check(
        "deepspeed",
        "needs torchrun on one GPU, too: start it with FORCE_TORCHRUN=1",
        lambda file: file.reading.sharding.engine == "deepspeed" and file.has_no_ranks,
        since=_0_8,
    ),
    _beside_zero3("pissa_init", _0_8),
    _beside_zero3("pure_bf16", _0_8, ": say bf16"),
    _beside_zero3("predict_with_generate", _0_9_1),
    *map(_beside_deepspeed, ("use_galore", "use_apollo")),
    _Check(
        "quantization_bit",
        "must be 4 under DeepSpeed's ZeRO-3 and FSDP",
        lambda file: (
            file.reading.sharding.gathers_weights
            and str(file.keys.get("quantization_bit")) == "8"
            and file.reading.value("quantization") == "int8"
        ),
        since=_0_8,
    ),
    _Check(
        "model_name_or_path",
        "is stored quantised, which does not go with DeepSpeed's ZeRO-3 and FSDP",
        lambda file: file.reading.sharding.gathers_weights and file.is_packed_checkpoint,
        since=_0_8,
    ),
    _Check(
        "use_dora",
        "does not go with a checkpoint that is stored quantised",
        lambda file: (
            file.is_packed_checkpoint
            and file.on("use_dora")
            and file.reading.value("quantization") not in ("nf4", "fp4", "int8")
        ),
    ),
    _Check(
        "pissa_init",
        "does not go with a checkpoint that is stored quantised",
        lambda file: file.is_packed_checkpoint and file.on("pissa_init"),
        since=_0_8,
    ),
    _Check(
        "finetuning_type",
        "must be lora or oft for a checkpoint that is stored quantised",
        lambda file: file.is_packed_checkpoint and file.kind not in ("lora", "oft"),
    ),
    # data/collator.py: FlashAttention 3 is not asked about.
    _Check(
        "neat_packing",
        "under FlashAttention 2 takes one row: say per_device_train_batch_size: 1",
        lambda file: (
            file.on("neat_packing")
            and file.reading.value("attention") == "flash2"
            and file.keys.get("flash_attn") != "fa3"
            and file.reading.value("batch") != 1
        ),
        since=_0_9_5,
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
