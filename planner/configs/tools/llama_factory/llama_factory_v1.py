"""A training file of LLaMA-Factory's v1 (YAML): another code base in the same package,
with a loop of its own.

Keys and defaults: hiyouga/LLaMA-Factory at ff6d4d12e (2026-08-18) src/llamafactory/v1/config/*_args.py and
the parameters of its plugins (peft.py, distributed/interface.py, kernels/interface.py, initialization.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from planner.configs.launchers.accelerate import read_counts
from planner.configs.launchers.deepspeed_json import read_deepspeed
from planner.configs.launchers.fsdp_keys import DEEPSPEED_FILE, Beside, referred
from planner.configs.said_by_file import IMAGES_UNSAID, Reading
from planner.configs.shared.checkpoints import remark_on_own_code
from planner.configs.shared.frozen_layers import read_freeze
from planner.configs.shared.kernels import ATTENTIONS, join_samples
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.configs.shared.trainer_arguments import ends_by_steps
from planner.configs.yaml_or_json import read_document
from planner.domain.recipes.recipe import LINEAR_CLASSES, Task
from planner.errors import UsageError, show
from planner.words import words

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
_UNMODELLED = texts_in("llama-factory-v1.toml", "unmodelled")
_QWEN_3 = re.compile(r"qwen3-\d")

# What a file's data is made for decides between ``llamafactory-cli sft``, ``dpo`` and ``rm``: no key does.
_PAIRS = re.compile(r"(?:^|[/_.-])(dpo|orpo|simpo|prefs?|preference)(?=$|[/_.-])", re.IGNORECASE)
_OTHER_PREFERENCES = re.compile(r"(?:^|[/_.-])(kto|rm|reward)(?=$|[/_.-])", re.IGNORECASE)
_OF_IMAGES = re.compile(r"mllm|image|vision|visual|multimodal", re.IGNORECASE)
_PREFERENCE_KEYS = ("pref_loss", "pref_beta", "pref_ftx", "simpo_gamma", "dpo_label_smoothing", "ld_alpha")
_LOSSES: dict[str, Task] = {"sigmoid": "dpo", "orpo": "orpo", "simpo": "simpo"}
_HALVED = "chosen and rejected share a row of cutoff_len tokens: half of it each"


def read_llama_factory_v1(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what a file of LLaMA-Factory's v1 says."""
    read_task(keys, reading, _DEFAULTS["seq"])
    keys.refuse_above_one(_DEGREES)
    keys.refuse_switched_on(_UNMODELLED)
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
        raise part.trains_nothing("export_dir", "this file merges adapters and does not train")
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
    part.skip(words("lora_alpha use_rslora export_size export_hub_model_id infer_dtype export_legacy_format"))


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
            part.skip_rest()
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
