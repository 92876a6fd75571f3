"""A training file of LLaMA-Factory's v1 (YAML): another code base in the same package,
with a loop of its own.

Keys and defaults: hiyouga/LLaMA-Factory at ff6d4d12e (2026-08-18) src/llamafactory/v1/config/*_args.py and
the parameters of its plugins (peft.py, distributed/interface.py, kernels/interface.py, initialization.py).
"""

from __future__ import annotations

import re

from planner.configs.launchers.accelerate import read_counts
from planner.configs.launchers.deepspeed_json import read_deepspeed
from planner.configs.launchers.fsdp_keys import DEEPSPEED_FILE, Beside, referred
from planner.configs.said_by_file import Reading
from planner.configs.shared.checkpoints import remark_on_own_code
from planner.configs.shared.frozen_layers import read_freeze
from planner.configs.shared.joined_samples import join_samples
from planner.configs.shared.key_tables import names_in
from planner.configs.shared.keys import Keys
from planner.configs.shared.model_args import ATTENTIONS
from planner.configs.shared.trainer_arguments import ends_by_steps
from planner.configs.tools.llama_factory.llama_factory_v1_task import read_quantization, read_task
from planner.configs.yaml_or_json import read_document
from planner.domain.recipes.recipe import LINEAR_CLASSES
from planner.errors import UsageError, show

TOOL = "LLaMA-Factory v1 ff6d4d1"
STACK = "llama-factory-v1"
MARKS = frozenset(names_in("llama-factory-v1.toml", "marks"))
_PLACE = "hiyouga/LLaMA-Factory ff6d4d12e src/llamafactory/v1/config/training_args.py"
_TABLE = {"model": "model", "micro_batch_size": "batch", "cutoff_len": "seq", "num_train_epochs": "epochs"}
_DEFAULTS = {"batch": 1, "seq": 2048, "epochs": 3}
_DEGREES = {
    "mp_replicate_size": "replicas of FSDP's shards, a degree",
}
_HARMLESS = names_in("llama-factory-v1.toml", "harmless")
_QWEN_3 = re.compile(r"qwen3-\d")


def read_llama_factory_v1(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what a file of LLaMA-Factory's v1 says."""
    read_task(keys, reading, _DEFAULTS["seq"])
    keys.refuse_above_one(_DEGREES)
    if keys.text("model_class") not in (None, "llm"):
        raise keys.not_modelled("model_class", "models other than language models are not modelled")
    reading.take(keys, {name: field for name, field in _TABLE.items() if reading.value(field) is None})
    remark_on_own_code(keys, str(keys.get("model") or ""), reading)
    for name, value in _DEFAULTS.items():
        reading.default(name, value, _PLACE)
    ends_by_steps(keys, reading)
    total = keys.count("global_batch_size")
    if total is not None:
        reading.total_batch = (total, keys.where("global_batch_size"))
    else:
        reading.default("grad_accum", 1, f"{_PLACE}: global_batch_size")
    again = keys.flag("enable_activation_checkpointing")
    if again is not None:
        reading.say("gradient_checkpointing", again, keys.where("enable_activation_checkpointing"))
    _read_attention(keys, reading)
    _read_context(keys, reading)
    _read_method(keys, reading)
    read_quantization(keys, reading)
    _read_optimizer(keys, reading)
    _read_batches(keys, reading)
    _read_kernels(keys, reading)
    _read_init(keys, reading)
    _read_distribution(keys, reading, beside)
    keys.skip(_HARMLESS)


def _read_attention(keys: Keys, reading: Reading) -> None:
    said = keys.text("flash_attn")
    if said is None:
        return
    if said not in ("eager", "sdpa", "flash_attention_2"):
        raise keys.wrong("flash_attn", "eager, sdpa or flash_attention_2", said)
    reading.say("attention", ATTENTIONS[said], keys.where("flash_attn"))


def _read_context(keys: Keys, reading: Reading) -> None:
    """``cp_size``: GPUs that divide each sequence; their loss reads the logits as they lie.

    Source: core/base_trainer.py; plugins/model_plugins/parallelization/sequence_parallel.py
    sequence_parallel_loss.
    """
    degree, mode = keys.count("cp_size") or 1, keys.text("cp_mode") or "ulysses"
    if degree == 1:
        return
    if mode != "ulysses":
        raise keys.wrong("cp_mode", "ulysses", mode)
    dist, where = keys.get("dist_config"), keys.where("cp_size")
    if reading.value("attention") != "flash2" or not isinstance(dist, dict) or dist.get("name") != "fsdp2":
        raise UsageError(f"{where}: v1 divides sequences with flash_attn flash_attention_2 under fsdp2 alone")
    reading.say("context_parallel", degree, where)
    reading.switch("loss_forward", "compute+model_loss+float+log_softmax", where)


def _read_method(keys: Keys, reading: Reading) -> None:
    part = keys.part("peft_config")
    if part is None:
        reading.default(
            "method",
            "full",
            "hiyouga/LLaMA-Factory ff6d4d12e src/llamafactory/v1/core/model_engine.py: peft_config",
        )
        return
    if part.text("name") == "freeze":
        _read_freeze(keys, reading, part)
        return
    if (part.text("name") or "") != "lora":
        raise part.not_modelled(
            "name", f"'{show(part.get('name'))}' is not modelled; lora, freeze and full are"
        )
    part.refuse_switched_on({"use_dora": "DoRA is not modelled"})
    if part.has("export_dir"):
        raise part.not_modelled(
            "export_dir", "this file merges adapters and does not train; training is what is predicted"
        )
    _read_lora(reading, part)


def _read_lora(reading: Reading, part: Keys) -> None:
    reading.say("method", "lora", part.where("name"))
    reading.take(part, {"r": "lora_rank", "lora_dropout": "lora_dropout"})
    targets, extra = part.names("target_modules"), part.names("modules_to_save")
    if targets:
        named = (LINEAR_CLASSES,) if targets == ("all",) else targets
        reading.say("lora_targets", named, part.where("target_modules"))
    if extra:
        reading.say("modules_to_save", extra, part.where("modules_to_save"))
    if part.get("adapter_name_or_path") is not None:
        text = "an adapter is trained as r and target_modules say, whatever it was made with"
        reading.remark(part.where("adapter_name_or_path"), text)
    part.skip(
        (
            "lora_alpha",
            "use_rslora",
            "export_size",
            "export_hub_model_id",
            "infer_dtype",
            "export_legacy_format",
        )
    )


def _read_freeze(keys: Keys, reading: Reading, part: Keys) -> None:
    """Some layers, cast to fp32 (plugins/model_plugins/peft.py get_freeze_model,
    as ``freeze`` of 0.9.5 chooses them).

    Inputs of frozen layers require gradients under FSDP2 alone (distributed/fsdp2.py prepare_model).
    """
    reading.say("method", "full", part.where("name"))
    read_freeze(part, reading, "name")
    dist, widens = keys.get("dist_config"), part.flag("cast_trainable_params_to_fp32")
    if not isinstance(dist, dict):
        raise UsageError(
            f"{part.where('name')}: without dist_config layers in fp32 meet 16 bits, which torch refuses"
        )
    if widens is False:
        reading.switch("trainable_fp32", False, part.where("cast_trainable_params_to_fp32"))
    kind = "differentiated" if dist.get("name") == "fsdp2" else "skipped"
    reading.switch("frozen_layers", kind, part.where("name"))


def _read_optimizer(keys: Keys, reading: Reading) -> None:
    """``optim_config``: Muon, for matrices; AdamW of separate operators for the rest.

    Source: plugins/trainer_plugins/optimizers/optimizer.py create_muon_optimizer.
    """
    part = keys.part("optim_config")
    if part is None:
        return
    if part.text("name") != "muon":
        raise part.wrong("name", "muon", part.text("name"))
    if part.flag("nesterov") is False:
        raise part.not_modelled("nesterov", "Muon without Nesterov's momentum is not modelled")
    if part.count("ns_steps") not in (None, 5):
        raise part.not_modelled("ns_steps", "Muon is modelled with 5 iterations, its default")
    reading.say("optimizer", "muon", part.where("name"))
    part.skip(("lr", "wd", "momentum", "adamw_betas", "adamw_eps"))


def _read_batches(keys: Keys, reading: Reading) -> None:
    """``batching_strategy``: a dynamic one fills each micro-batch to cutoff_len times micro_batch_size
    tokens.

    Source: src/llamafactory/v1/plugins/trainer_plugins/batching.py.
    """
    kind = keys.text("batching_strategy") or "normal"
    where = keys.where("batching_strategy")
    if kind == "padding_free":
        join_samples(reading, where, reading.value("attention"))
    elif kind == "dynamic_padding_free":
        reading.say(
            "padding", "packed", where, "micro-batches are filled to cutoff_len x micro_batch_size tokens"
        )
    elif kind == "dynamic_batching":
        reading.say(
            "padding", "max_length", where, "micro-batches are filled to cutoff_len x micro_batch_size tokens"
        )
    elif kind != "normal":
        raise keys.wrong(
            "batching_strategy", "normal, padding_free, dynamic_batching or dynamic_padding_free", kind
        )


def _read_kernels(keys: Keys, reading: Reading) -> None:
    """``auto`` is for Ascend's cards alone (kernels/interface.py ``_AUTO_KERNELS``)."""
    part = keys.part("kernel_config")
    if part is None:
        return
    for name in (each.strip() for each in (part.text("name") or "").split(",")):
        if name == "liger_kernel":
            _read_liger(keys, reading, part)
        elif name not in ("", "auto"):
            raise part.not_modelled(
                "name", f"kernels '{show(name)}' of LLaMA-Factory v1 are not modelled; auto is"
            )


def _read_liger(keys: Keys, reading: Reading, part: Keys) -> None:
    """Liger's norms and activation, and its cross entropy in the place of torch's,
    for the model's loss and the trainer's.

    Source: kernels/liger_kernel_ops.py, whose table has Qwen3 and its successors alone; liger-kernel 0.8.5
    transformers/monkey_patch.py apply_liger_kernel_to_qwen3 (``nn.functional.cross_entropy`` of all).
    """
    where, model = part.where("name"), str(keys.get("model") or "").lower()
    if "qwen3" not in model:
        reading.remark(where, "liger_kernel has no effect: LLaMA-Factory v1 knows it for Qwen3 models alone")
        return
    if part.flag("require_logits") is False:
        raise part.not_modelled(
            "require_logits", "Liger's fused head leaves no logits, which the trainer asks for"
        )
    if not _QWEN_3.search(model):
        raise part.not_modelled("name", "'liger_kernel' is modelled for Qwen3 itself, not for its successors")
    for name in ("fused_norm", "fused_mlp"):
        reading.switch(name, True, where)
    reading.switch("loss_forward", "compute+model_loss+float+shifted", where)
    reading.switch("loss_backward", "compute+compute_grad", where)


def _read_init(keys: Keys, reading: Reading) -> None:
    """``init_config``: where the weights are before FSDP divides them."""
    part = keys.part("init_config")
    kind = "init_on_default" if part is None else part.text("name")
    if part is None or kind == "init_on_default":
        return
    if kind not in ("init_on_rank0", "init_on_meta"):
        raise part.wrong("name", "init_on_default, init_on_rank0 or init_on_meta", kind)
    if kind == "init_on_meta" and reading.value("method") == "lora":
        raise UsageError(
            f"{part.where('name')}: LLaMA-Factory v1 does not load a base of adapters by init_on_meta"
        )
    reading.switch("fsdp_loads", "one_by_one", part.where("name"))


def _read_distribution(keys: Keys, reading: Reading, beside: Beside) -> None:
    """``dist_config`` with ``bf16``: FSDP2, DeepSpeed, or none,
    where nothing casts (core/base_trainer.py ``_shard_model``).
    """
    if beside.accelerate is not None:
        # The engine is that of the config, however many processes are launched.
        launch = Keys.of(read_document(beside.accelerate))
        read_counts(launch, reading, str(launch.get("distributed_type") or "NO").upper())
    part, bf16 = keys.part("dist_config"), keys.flag("bf16")
    if beside.deepspeed is not None:
        _read_deepspeed(Keys.of(read_document(beside.deepspeed)), reading)
        if part is not None:
            part.skip(part.left_over_here())
        return
    kind = None if part is None else part.text("name")
    if part is None:
        _read_alone(keys, reading)
    elif kind == "fsdp2":
        _read_fsdp(part, reading)
        if bf16 is False:
            reading.say("precision", "fp32", keys.where("bf16"))
        reading.default("precision", "bf16-mixed", f"{_PLACE}: bf16")
    elif kind == "deepspeed":
        _read_deepspeed(Keys.of(referred(part, "config_file", DEEPSPEED_FILE, reading)), reading)
    else:
        raise part.not_modelled("name", f"'{show(kind)}' is not modelled; fsdp2 and deepspeed are")


def _read_alone(keys: Keys, reading: Reading) -> None:
    """One GPU or DDP: a full fine-tune computes in fp32, and adapters in the dtype of the checkpoint."""
    if reading.value("method") == "full":
        reading.default(
            "precision", "fp32", "src/llamafactory/v1/core/base_trainer.py: without dist_config nothing casts"
        )
        return
    text = (
        "there is no dist_config, so nothing casts and the dtype of the checkpoint decides: say it, "
        "such as --precision bf16"
    )
    reading.needs["precision"] = f"{keys.path}: {text}"


# plugins/trainer_plugins/distributed/interface.py FSDPTurboParams.
_TURBO = ("ep_size", "ep_dispatcher", "fsdp_ignored_modules", "hook_modules", "fsdp_implementation")


def _read_fsdp(part: Keys, reading: Reading) -> None:
    reshard, offload = part.flag("reshard_after_forward"), part.flag("offload_params")
    kind = "fsdp-grad-op" if reshard is False else "fsdp"
    reading.say("sharding", kind, part.where("reshard_after_forward" if reshard is False else "name"))
    if offload:
        reading.say("offload", "optimizer+params", part.where("offload_params"), "FSDP offloads both")
    # One process is divided only where torchrun started it (accelerator/interface.py: no mesh otherwise).
    reading.remark(
        part.where("name"), "one GPU is counted as started with FORCE_TORCHRUN=1: without, FSDP is left out"
    )
    if offload and part.flag("pin_memory") is False:
        raise part.not_modelled("pin_memory", "offload of FSDP to RAM that is not pinned is not modelled")
    part.refuse_switched_on(dict.fromkeys(_TURBO, "a key of fsdpturbo, which is not modelled"))
    part.skip(("pin_memory", "dcp_path"))


def _read_deepspeed(keys: Keys, reading: Reading) -> None:
    """A DeepSpeed file, in which ``auto`` or nothing about bf16 means bf16
    (model_plugins/deepspeed_utils.py).
    """
    bf16, fp16 = (
        table.get("enabled") if isinstance(table := keys.get(name), dict) else None
        for name in ("bf16", "fp16")
    )
    if fp16 is True:
        raise UsageError(f"{keys.where('fp16')}: LLaMA-Factory v1 refuses fp16 under DeepSpeed")
    if bf16 is False or (bf16 is not True and fp16 is False):
        raise keys.not_modelled("bf16", "DeepSpeed without mixed precision is not modelled")
    reading.default("precision", "bf16-mixed", "src/llamafactory/v1/plugins/model_plugins/deepspeed_utils.py")
    read_deepspeed(keys, reading)
    reading.finish(keys)
