"""A training of ms-swift by Megatron-Core: arguments of ``megatron sft`` and ``pt``.

Keys and defaults: ms-swift 4.6.0 swift/megatron/arguments/megatron_args.py, swift/arguments/base_args; keys
that other versions have read the same.  Fields of Megatron itself in ``megatron_extra_kwargs`` were not read.
"""

from __future__ import annotations

from planner.catalog.models import model_entry
from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.said_by_file import Reading, Stop
from planner.configs.shared.checkpoints import read_checkpoint
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.configs.shared.megatron_keys import (
    EXPERT_TENSOR,
    OTHER_DISPATCHER,
    OTHER_OPTIMIZER,
    OTHER_PRECISION,
    ROUTER_IN_16_BITS,
    UNMODELLED,
    read_degrees,
    read_fp8,
    recomputed,
    refuse_parts,
    say_whole_layers,
)
from planner.configs.tools.ms_swift import is_ms_swift
from planner.configs.tools.ms_swift_launch import PARTS_BY_NAME, read_megatron_processes
from planner.configs.yaml_or_json import Document
from planner.errors import UnknownNameError, show

TOOL = "ms-swift 4.6.0 with Megatron"
STACK = "megatron"
_PLACE = "ms-swift 4.6.0 swift/megatron/arguments/megatron_args.py"
_UNMODELLED = {**PARTS_BY_NAME, **UNMODELLED, **texts_in("megatron.toml", "unmodelled_of_ms_swift")}
_SWITCHED_OFF = texts_in("megatron.toml", "switched_off_of_ms_swift")
_ONLY: dict[str, tuple[tuple[str, ...], str]] = {
    "task_type": (("causal_lm",), "labels, rankers and embeddings are not modelled under Megatron"),
    "tuner_type": (("full", "lora"), "this kind of tuner is not modelled; lora and full are"),
    "train_type": (("full", "lora"), "this kind of tuner is not modelled; lora and full are"),
    "optimizer": (("adam",), OTHER_OPTIMIZER),
    "attention_backend": (
        ("flash", "flash_2", "auto"),
        "this attention is not modelled under Megatron; flash is",
    ),
    "cross_entropy_fusion_impl": (("native",), "this loss is not modelled; native is"),
    "main_params_dtype": (("fp32",), "masters in 16 bits are not modelled"),
    "moe_token_dispatcher_type": (("alltoall",), OTHER_DISPATCHER),
    "bridge_backend": (("mcore-bridge",), "the models of Megatron-Bridge are not modelled; mcore-bridge is"),
    "lora_bias": (("none",), "trained biases are not modelled"),
    "torch_dtype": (("bfloat16",), OTHER_PRECISION),
}
_SIZES = ("micro_batch_size", "global_batch_size")
_CONVERTED = "-mcore"
_IN_FP8 = "-FP8"


def is_ms_swift_megatron(document: Document) -> bool:
    """Whether a file names its model and its tuner as ms-swift does, and sizes of batches as Megatron."""
    return is_ms_swift(document) and any(name in document.table for name in _SIZES)


def read_ms_swift_megatron(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what arguments of ``megatron`` say."""
    _refuse(keys)
    _read_method(keys, reading)
    if not _read_released_in_fp8(keys, reading) and keys.has("model"):
        trusts = f"{reading.tool}, which trusts a checkpoint's own code"
        read_checkpoint(keys, "model", reading, trusts=trusts)
    elif not keys.has("model"):
        _read_converted(keys, reading)
    # mcore-bridge 1.6.5 model/gpts/llm.py has no such model.
    why = f"{keys.path}: ms-swift has no Mixtral under Megatron"
    reading.stops.append(Stop(lambda spec: spec.architecture == "mixtral", why))
    _read_lengths(keys, reading)
    read_megatron_processes(keys, reading, beside)
    _read_groups(keys, reading)
    _read_sizes(keys, reading)
    _read_recomputation(keys, reading)
    _read_update(keys, reading)
    keys.skip((*names_in("megatron.toml", "harmless"), *names_in("ms-swift.toml", "harmless")))


def _refuse(keys: Keys) -> None:
    """Raises: NotModelledError at what no formula covers."""
    if (task := keys.text("rlhf_type")) is not None:
        raise keys.not_modelled("rlhf_type", f"{show(task)} by Megatron is not modelled; sft and pt are")
    keys.refuse_switched_on(_UNMODELLED)
    for name, why in _SWITCHED_OFF.items():
        if keys.flag(name) is False:
            raise keys.not_modelled(name, why)
    for name, (known, why) in _ONLY.items():
        value = keys.text(name)
        if value is not None and value not in known:
            raise keys.not_modelled(name, f"'{show(value)}': {why}")


def _read_method(keys: Keys, reading: Reading) -> None:
    name = "tuner_type" if keys.has("tuner_type") else "train_type"
    kind = keys.text(name)
    if kind is None:
        reading.default("method", "full", f"{_PLACE}: tuner_type")
    else:
        reading.say("method", kind, keys.where(name))
    if kind != "lora":
        keys.skip(
            ("lora_rank", "lora_dropout", "lora_dtype", "target_modules", "target_regex", "modules_to_save")
        )
        return
    reading.take(keys, {"lora_rank": "lora_rank", "lora_dropout": "lora_dropout"})
    targets = keys.names("target_modules")
    if keys.text("target_regex") or targets not in ((), ("all-linear",)):
        named = "target_regex" if keys.text("target_regex") else "target_modules"
        raise keys.not_modelled(
            named, "adapters on some matrices are not modelled under Megatron; all-linear is"
        )
    if keys.names("modules_to_save"):
        raise keys.not_modelled(
            "modules_to_save", "trained copies of modules are not modelled under Megatron"
        )
    if keys.text("lora_dtype") not in (None, "bfloat16"):
        reading.remark(keys.where("lora_dtype"), "Megatron casts adapters to bf16 with the model")


def _read_released_in_fp8(keys: Keys, reading: Reading) -> bool:
    """What is in 8 bits, and whether the checkpoint is in FP8, with scales of blocks, which the bridge
    unpacks or takes over.

    Source: mcore-bridge f020e479 bridge/gpt_bridge.py:176 _set_weight.
    """
    model = keys.text("model") or ""
    released = model.endswith(_IN_FP8)
    if released:
        note = f"{show(model)} has its shape, and matrices in FP8"
        reading.say("model", model.removesuffix(_IN_FP8), keys.where("model"), note)
    read_fp8(keys, reading, ("fp8_format", "fp8_recipe", "fp8_param_gather"), released=released)
    return released


def _read_converted(keys: Keys, reading: Reading) -> None:
    """Weights that ``swift export --to_mcore`` wrote, which ms-swift 3.4 to 3.9 began with; the folder has
    the name of the model in all of its examples.

    Source: ms-swift v3.8.0 swift/megatron/argument/megatron_args.py: load, and other defaults than those of
    4.6.0.
    """
    folder = keys.text("load")
    if folder is None:
        return
    where = keys.where("load")
    name = folder.rstrip("/").rpartition("/")[2].removesuffix(_CONVERTED)
    try:
        known = model_entry(name).hub_id
    except UnknownNameError:
        known = ""
    if known:
        reading.say("model", known, where, f"the folder {show(folder)} has its name")
        reading.remark(where, f"{known} is counted, whose name the folder has")
    else:
        reading.needs["model"] = f"{where}: which model was converted is not known: say --model"
    if not keys.flag("cross_entropy_loss_fusion"):
        reading.switch("loss_backward", "compute+float", f"{_PLACE}: cross_entropy_loss_fusion")
    if not keys.flag("moe_grouped_gemm"):
        why = f"{where}: {_SWITCHED_OFF['moe_grouped_gemm']}; moe_grouped_gemm true is"
        reading.stops.append(Stop(lambda spec: spec.is_moe, why, by_tool=False))
    keys.skip(("use_flash_attn",))


def _read_lengths(keys: Keys, reading: Reading) -> None:
    """Length of a pack, or of the longest sample: a micro-batch without packing is counted as samples of that
    length, end to end.
    """
    packs = keys.flag("packing")
    name = "packing_length" if packs and keys.has("packing_length") else "max_length"
    length = keys.count(name)
    if length is not None:
        reading.say("seq", length, keys.where(name))
    else:
        reading.needs["seq"] = (
            f"{keys.path}: max_length is not given, so the longest sample decides: say --seq"
        )
    if not packs:
        reading.cut_samples = "packed"
        reading.remark(keys.where(name), "every sample is counted as so long; shorter ones need less")
    keys.skip(("max_length", "packing_length"))


def _read_groups(keys: Keys, reading: Reading) -> None:
    read_degrees(keys, reading, divides_tokens=keys.flag("sequence_parallel"))
    reading.take(keys, EXPERT_TENSOR)
    narrow = keys.text("moe_router_dtype") not in (None, "fp32")
    if narrow and (reading.value("expert_tensor_parallel") or 1) > 1:
        raise keys.not_modelled("moe_router_dtype", f"{ROUTER_IN_16_BITS}; fp32 is")
    ends = {
        "decoder_first_pipeline_num_layers": "pipeline_first_layers",
        "decoder_last_pipeline_num_layers": "pipeline_last_layers",
    }
    if reading.value("pipeline_parallel") is None:
        keys.skip(tuple(ends))
    else:
        reading.take(keys, ends)


def _read_sizes(keys: Keys, reading: Reading) -> None:
    """Samples of a micro-batch, and micro-batches by the samples of a step, which ms-swift wants whole."""
    if keys.has("micro_batch_size"):
        reading.take(keys, {"micro_batch_size": "batch"})
    else:
        reading.default("batch", 1, f"{_PLACE}: micro_batch_size")
    total = keys.count("global_batch_size") or 16
    place = (
        keys.where("global_batch_size") if keys.has("global_batch_size") else f"{_PLACE}: global_batch_size"
    )
    reading.total_batch = (total, place)


def _read_recomputation(keys: Keys, reading: Reading) -> None:
    """Whole layers that run again, all of them, or (``selective``) attention's kernel alone."""
    kind = recomputed(keys) or "selective"
    keys.skip(("recompute_modules",))
    if kind == "full":
        how, count = keys.text("recompute_method"), keys.count("recompute_num_layers")
        if how is None or count is None:
            raise keys.stops(
                "recompute_granularity", "Megatron stops without recompute_method and recompute_num_layers"
            )
        say_whole_layers(keys, reading, how, count)
        return
    if kind == "selective":
        refuse_parts(keys)
    else:
        reading.switch("recomputes_attention", False, keys.where("recompute_granularity"))
    keys.skip(("recompute_method", "recompute_num_layers"))
    reading.default(
        "gradient_checkpointing", False, f"{_PLACE}: recompute_granularity selective of core_attn"
    )


def _read_update(keys: Keys, reading: Reading) -> None:
    """The loss; dtypes of gradients, masters and moments; whether host RAM has what the optimizer keeps."""
    if keys.flag("cross_entropy_loss_fusion") is False:
        reading.switch("loss_backward", "compute+float", keys.where("cross_entropy_loss_fusion"))
    gradients = keys.text("main_grads_dtype") or "fp32"
    if gradients == "bf16" and not keys.flag("accumulate_allreduce_grads_in_fp32"):
        reading.switch("main_gradients", "bf16", keys.where("main_grads_dtype"))
    moments = {keys.text(name) or "fp32" for name in ("exp_avg_dtype", "exp_avg_sq_dtype")}
    if len(moments) > 1 or not moments <= {"fp32", "bf16"}:
        raise keys.not_modelled(
            "exp_avg_dtype", "moments in other dtypes than fp32 or bf16, both, are not modelled"
        )
    if keys.flag("use_precision_aware_optimizer"):
        kind = "precise_bf16" if moments == {"bf16"} else "precise"
        reading.switch("adam_states", kind, keys.where("use_precision_aware_optimizer"))
    elif moments != {"fp32"}:
        raise keys.stops("exp_avg_dtype", "Megatron stops without use_precision_aware_optimizer")
    if keys.flag("optimizer_cpu_offload"):
        share = keys.number("optimizer_offload_fraction")
        if share not in (None, 1.0):
            why = "an optimizer that is in part in host RAM is not modelled; 1 is"
            raise keys.not_modelled("optimizer_offload_fraction", why)
        reading.say("offload", "optimizer", keys.where("optimizer_cpu_offload"))
    keys.skip(("optimizer_offload_fraction",))
