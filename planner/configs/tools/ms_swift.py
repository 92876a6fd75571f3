"""A training of ms-swift: arguments of ``swift sft``, ``pt`` and ``rlhf``, on a command line or in a file.

Keys and defaults: ms-swift 4.6.0 swift/arguments/{sft_args,tuner_args}.py, base_args/*.py and
trainers/arguments.py; those of 3.12.6 (swift/llm/argument) are the same but for ``train_type``.  A file's
``ENV`` holds variables of the environment (swift/cli/main.py parse_yaml_args); a command's are put there too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.said_by_file import Reading, Stop
from planner.configs.shared.checkpoints import read_checkpoint
from planner.configs.shared.kernels import DTYPES, read_attention
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.configs.shared.projecting import contains_one_of, need_all_matrices
from planner.configs.shared.trainer_arguments import read_precision, read_trainer
from planner.configs.tools.ms_swift_2 import is_before_3, read_ms_swift_2
from planner.configs.tools.ms_swift_launch import PARTS_BY_NAME, read_engine, read_processes
from planner.configs.tools.ms_swift_rlhf import read_rlhf, read_swift_rollout, refuse_flat_weights
from planner.configs.yaml_or_json import Document
from planner.domain.model import ModelSpec
from planner.domain.recipes.optimizers import Optimizer
from planner.domain.recipes.recipe import ADAPTABLE_MODULES, TARGET_PATTERN
from planner.errors import REFUSED_BY_TOOL, UsageError, show

TOOL = "ms-swift 4.6.0"
STACK = "swift"
_OLD_TOOL, _OLD_STACK = "ms-swift 3.12.6", "swift@3"
MARKS = frozenset(names_in("ms-swift.toml", "marks"))
_ADAPTERS = "this kind of tuner is not modelled; lora and full are"
_UNMODELLED = {**PARTS_BY_NAME, **texts_in("ms-swift.toml", "unmodelled")}
_PLUGINS = {"loss_type": "a loss of a plugin is not modelled"}
# loss_scale/mapping.py and base.py: these weigh each token by 0 or 1, which the labels say.
_BINARY = frozenset({"default", "last_round", "all", "ignore_empty_think", "ignore_think_prefix"})
_GALORE: Mapping[str, Optimizer] = {
    **dict.fromkeys(("adamw_hf", "adamw_torch", "adamw_torch_fused"), "galore_adamw"),
    **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit"), "galore_adamw_8bit"),
    "adafactor": "galore_adafactor",
}
_GALORE_UNMODELLED = {
    "galore_quantization": "Q-GaLore is not modelled",
    "galore_with_embedding": "projecting the gradient of the token table is not modelled",
}
# Plugins of optimizers that only sort parameters into groups (swift/optimizers).
_GROUPS = ("default", "lorap", "multimodal")
_SHORT_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_FREEZES = (("freeze_vit", "vision_tower"), ("freeze_aligner", "projector"), ("freeze_llm", "language_model"))
_PLACE = "ms-swift 4.6.0 swift/arguments/tuner_args.py"


def is_ms_swift(document: Document) -> bool:
    """Whether a file names its model and its tuner as ms-swift does, be it before 3.0."""
    table = document.table
    if "sft_type" in table:
        return True
    return isinstance(table.get("model"), str) and any(name in table for name in ("tuner_type", "train_type"))


def read_ms_swift(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what arguments of ms-swift say."""
    if is_before_3(keys):
        read_ms_swift_2(keys, reading, beside)
        return
    _read_age(keys, reading)
    compares = read_rlhf(keys, reading)
    keys.refuse_switched_on(_UNMODELLED if compares else _UNMODELLED | _PLUGINS)
    keys.refuse_above_one({"sequence_parallel_size": "a sequence-parallel degree"})
    _read_kind(keys, reading, compares=compares)
    _refuse_other_kinds(keys)
    _read_weights_of_tokens(keys, reading, compares=compares)
    _read_galore(keys, reading)
    _read_method(keys, reading)
    read_checkpoint(keys, "model", reading, trusts=f"{reading.tool}, which trusts a checkpoint's own code")
    _read_dtypes(keys, reading)
    _refuse_stretched_context(keys)
    _read_lengths(keys, reading)
    if reading.value("task") == "grpo":
        read_swift_rollout(keys, reading)
    _read_images(keys, reading)
    ranks = read_processes(keys, reading, beside)
    _refuse_device_maps(keys, reading, ranks=ranks)
    _read_sizes(keys, reading)
    read_trainer(keys, reading, own_loss="loss_weights" in reading.switches)
    if reading.least_batch is not None:
        reading.said.pop("grad_accum", None)
    _read_evaluation(keys, reading)
    read_engine(keys, reading, beside, ranks=ranks)
    refuse_flat_weights(keys, reading)
    _remark(keys, reading)
    # Of data they say whether anything is evaluated; the engine's table counts beside ``fsdp`` alone.
    keys.skip(("val_dataset", "cached_val_dataset", "bnb_4bit_compute_dtype", "fsdp_config"))
    keys.skip(("tuner_type", *names_in("ms-swift.toml", "harmless")))


def _refuse_device_maps(keys: Keys, reading: Reading, *, ranks: bool) -> None:
    """``auto`` is what one process has without the key, too (swift/model/utils.py get_default_device_map)."""
    value = keys.text("device_map")
    if value not in (None, "auto"):
        raise keys.not_modelled("device_map", f"the map '{show(value)}' is not modelled; auto is")
    if value is not None and ranks and reading.value("gpus") != 1:
        raise keys.not_modelled("device_map", "it is not modelled beside several processes: leave it out")


def _read_age(keys: Keys, reading: Reading) -> None:
    """``train_type`` is what 3.x calls ``tuner_type``."""
    if keys.has("train_type"):
        text = "an argument that ms-swift no longer has since 4.0"
        reading.take_stack(_OLD_STACK, _OLD_TOOL, keys.where("train_type"), text)


def _read_kind(keys: Keys, reading: Reading, *, compares: bool) -> None:
    """A model that labels samples, where ``num_labels`` or ``task_type`` says so.

    Source: ms-swift 4.6.0 swift/model/model_meta.py get_model_info_and_template_meta, register.py get_model.
    """
    kind = keys.text("task_type") or ("seq_cls" if keys.has("num_labels") else "causal_lm")
    if kind not in ("causal_lm", "seq_cls"):
        text = "rankers and embeddings are not modelled: the data say how many rows a sample has"
        raise keys.not_modelled("task_type", text)
    if compares or kind == "causal_lm":
        keys.skip(("num_labels", "problem_type"))
        return
    if keys.count("num_labels") is None:
        raise keys.stops("task_type", "ms-swift stops without num_labels")
    reading.say("task", "classify", keys.where("num_labels"))
    reading.take(keys, {"num_labels": "num_labels"})
    keys.skip(("problem_type",))


def _refuse_other_kinds(keys: Keys) -> None:
    """Trainings of another kind than the likelihood of the next token."""
    if keys.text("tuner_backend") not in (None, "peft"):
        raise keys.not_modelled("tuner_backend", "Unsloth inside ms-swift is not modelled; peft is")
    optimizer = keys.text("optimizer")
    if optimizer not in (None, *_GROUPS):
        raise keys.not_modelled("optimizer", f"the optimizer '{show(optimizer)}' of a plugin is not modelled")
    if found := {"activation_cpu_offload", "lisa"}.intersection(keys.names("callbacks")):
        raise keys.not_modelled("callbacks", f"{min(found)} is not modelled")
    if keys.text("init_weights") == "lora-ga":
        raise keys.not_modelled("init_weights", "gradients that set adapters up are not modelled")


def _read_weights_of_tokens(keys: Keys, reading: Reading, *, compares: bool) -> None:
    """Losses that weigh each token, be it by its probability or as ``loss_scale`` says; the trainer takes
    them from all logits, whatever Liger has.

    Source: ms-swift 4.6.0 swift/trainers/seq2seq_trainer.py compute_loss, trainers/utils.py
    per_token_loss_func.
    """
    binary = keys.flag("is_binary_loss_scale") is not False
    weighs = not (binary and _BINARY.issuperset(str(keys.get("loss_scale") or "default").split("+")))
    name = "enable_dft_loss" if keys.flag("enable_dft_loss") else "loss_scale" if weighs else None
    if name is not None and compares:
        raise keys.not_modelled(name, "preferences that weigh each token are not modelled")
    if name is not None:
        reading.switch("loss_weights", "probability", keys.where(name))


def _read_galore(keys: Keys, reading: Reading) -> None:
    """GaLore by a copy of galore-torch's code, over all linear layers but the head.

    Source: ms-swift 4.6.0 swift/arguments/sft_args.py __post_init__, pipelines/train/tuner.py prepare_model,
    optimizers/galore/utils.py get_optimizer and _create_optimizer_and_scheduler: one optimizer for each
    parameter (``galore_optim_per_parameter``) steps behind the backward pass, too.
    """
    if not keys.flag("use_galore") or keys.has("optimizer") or keys.is_on("lorap_lr_ratio"):
        return
    keys.refuse_switched_on(_GALORE_UNMODELLED)
    if keys.text("galore_proj_type") not in (None, "std"):
        raise keys.not_modelled("galore_proj_type", "another projection than std is not modelled")
    if keys.has("galore_target_modules"):
        names = keys.names("galore_target_modules")
        if need_all_matrices(keys, "galore_target_modules", contains_one_of(names)):
            reading.switch("projects_head", True, keys.where("galore_target_modules"))
    base = keys.text("optim") or "adamw_torch_fused"
    if "paged" in base:
        raise keys.not_modelled("optim", "GaLore over paged states is not modelled; adamw_bnb_8bit is")
    if base not in _GALORE:
        raise keys.stops("optim", f"ms-swift stops at '{show(base)}' beside use_galore; adamw_torch goes")
    reading.say("optimizer", _GALORE[base], keys.where("use_galore"))
    reading.take(keys, {"galore_rank": "optimizer_rank"})
    reading.default("optimizer_rank", 128, "ms-swift 4.6.0 swift/trainers/arguments.py: galore_rank")


def _read_method(keys: Keys, reading: Reading) -> None:
    name = "tuner_type" if keys.has("tuner_type") else "train_type"
    kind = keys.text(name)
    if kind not in (None, "lora", "full"):
        raise keys.not_modelled(name, f"'{show(kind)}': {_ADAPTERS}")
    if kind is None:
        reading.default("method", "lora", "ms-swift 4.6.0 swift/arguments/base_args/base_args.py: tuner_type")
    else:
        reading.say("method", kind, keys.where(name))
    adapters = ("lora_rank", "lora_dropout", "lora_dtype", "use_dora", "target_modules", "target_regex")
    if kind == "full":
        keys.skip((*adapters, "target_parameters", "modules_to_save", "lora_bias", "init_weights"))
    else:
        _read_adapters(keys, reading)
    _read_quantisation(keys, reading)
    _read_frozen(keys, reading)


def _read_adapters(keys: Keys, reading: Reading) -> None:
    reading.take(keys, {"lora_rank": "lora_rank", "lora_dropout": "lora_dropout"})
    if keys.flag("use_dora"):
        reading.say("dora", True, keys.where("use_dora"))
    if keys.text("lora_bias") not in (None, "none"):
        raise keys.not_modelled("lora_bias", "trained biases are not modelled")
    dtype = keys.text("lora_dtype")
    if dtype is not None:
        if dtype not in _SHORT_DTYPES:
            raise keys.wrong("lora_dtype", ", ".join(_SHORT_DTYPES), dtype)
        reading.say("adapter_dtype", _SHORT_DTYPES[dtype], keys.where("lora_dtype"))
    for name in ("target_modules", "modules_to_save"):
        if every := next((each for each in keys.names(name) if each in ("all-embedding", "all-norm")), None):
            raise keys.not_modelled(name, f"'{every}' is not modelled: name the modules")
    pattern, parameters = keys.text("target_regex"), keys.parameter_targets("target_parameters")
    named = "target_regex" if pattern else "target_modules"
    targets = (TARGET_PATTERN + pattern,) if pattern else keys.names("target_modules")
    if targets or parameters:
        found = tuple(ADAPTABLE_MODULES if each == "all-linear" else each for each in targets)
        found = found or (ADAPTABLE_MODULES,)
        reading.say("lora_targets", (*found, *parameters), keys.where(named))
    if extra := keys.names("modules_to_save"):
        if keys.is_on("external_plugins") and not {*extra} <= {"embed_tokens", "lm_head"}:
            why = "modules that a plugin may add to the model are not modelled"
            raise keys.not_modelled("external_plugins", why)
        reading.say("modules_to_save", extra, keys.where("modules_to_save"))


def _read_quantisation(keys: Keys, reading: Reading) -> None:
    """Bits count beside a method alone (base_args/quant_args.py get_quantization_config)."""
    method, bits = keys.text("quant_method"), keys.get("quant_bits")
    kind, double = keys.text("bnb_4bit_quant_type") or "nf4", keys.flag("bnb_4bit_use_double_quant")
    storage = keys.text("bnb_4bit_quant_storage")
    if method in (None, "awq", "gptq", "gptq_v2"):
        if bits is not None and method is None:
            reading.remark(keys.where("quant_bits"), "has no effect without quant_method")
        return
    if method != "bnb":
        raise keys.not_modelled("quant_method", f"quantisation by {show(method)} is not modelled; bnb is")
    if str(bits) not in ("4", "8"):
        raise keys.wrong("quant_bits", "4 or 8 beside quant_method bnb", bits)
    if reading.value("method") == "full":
        raise UsageError(f"{keys.where('quant_method')}: a quantised base is trained through adapters only")
    if str(bits) == "8":
        reading.say("quantization", "int8", keys.where("quant_bits"))
        return
    reading.say("quantization", kind, keys.where("quant_bits"))
    place = "ms-swift 4.6.0 swift/arguments/base_args/quant_args.py: bnb_4bit_use_double_quant"
    if double is None:
        reading.default("double_quant", True, place)
    else:
        reading.say("double_quant", double, keys.where("bnb_4bit_use_double_quant"))
    computes = keys.text("bnb_4bit_compute_dtype")
    if computes not in (None, "bfloat16"):
        why = "4-bit matrices that compute in another dtype than bfloat16 are not modelled"
        raise keys.not_modelled("bnb_4bit_compute_dtype", why)
    if storage not in (None, "uint8"):
        reading.say("quant_storage", storage, keys.where("bnb_4bit_quant_storage"))


def _read_frozen(keys: Keys, reading: Reading) -> None:
    """Tower and projector get neither adapters nor gradients unless a key says so; of text models nothing
    counts.
    """
    frozen, said = [], []
    for name, part in _FREEZES:
        value = keys.flag(name)
        said += [] if value is None else [keys.where(name)]
        if name != "freeze_llm" if value is None else value:
            frozen.append(part)
    if "projector" not in frozen and reading.value("method") == "lora":
        raise keys.not_modelled("freeze_aligner", "adapters on a projector are not modelled; true is")
    if frozen:
        reading.default("freeze", tuple(frozen), said[0] if said else f"{_PLACE}: freeze_vit, freeze_aligner")


def _read_dtypes(keys: Keys, reading: Reading) -> None:
    """The dtype of the weights, and autocast in it, or in fp16 over fp32 weights, where nothing is said.

    Source: ms-swift 4.6.0 base_args/model_args.py _init_mixed_precision.
    """
    dtype = keys.text("torch_dtype")
    if dtype is not None:
        if dtype not in DTYPES:
            raise keys.wrong("torch_dtype", ", ".join(DTYPES), dtype)
        reading.say("load_dtype", dtype, keys.where("torch_dtype"))
    read_precision(keys, reading)
    _refuse_two_halves(keys, reading, dtype)
    if reading.value("precision") is not None:
        return
    off = [name for name in ("bf16", "fp16") if keys.flag(name) is False]
    if dtype is None and off:
        reading.needs["precision"] = (
            f"{keys.where(off[0])} is false: say which precision follows, such as --precision bf16"
        )
    elif dtype is not None:
        half = "bf16" if dtype == "bfloat16" else "fp16"
        note = "ms-swift 4.6.0 swift/arguments/base_args/model_args.py _init_mixed_precision"
        precision = _SHORT_DTYPES[dtype] if half in off else f"{half}-mixed"
        reading.say("precision", precision, keys.where("torch_dtype"), note)


def _refuse_two_halves(keys: Keys, reading: Reading, dtype: str | None) -> None:
    """The dtype of the weights, be it the checkpoint's, turns on the autocast that no key speaks of;
    Transformers stops at two.
    """
    for own, other in (("bf16", "fp16"), ("fp16", "bf16")):
        if not keys.flag(other) or keys.flag(own) is not None:
            continue
        weights = f"torch_dtype {dtype}" if dtype else "the dtype of this checkpoint"
        why = f"ms-swift turns {own} on beside {weights}, and both stop it: say {own}: false"
        sentence = f"{keys.where(other)}: {why}"
        if dtype is None:
            reading.stops.append(Stop(partial(_turns_on, own), sentence))
        elif (dtype == "bfloat16") == (own == "bf16"):
            raise UsageError(f"{sentence} [{REFUSED_BY_TOOL}]")


def _turns_on(half: str, model: ModelSpec) -> bool:
    """Whether autocast in ``half`` follows from the dtype of the checkpoint."""
    return (model.checkpoint_dtype == "bf16") == (half == "bf16")


def _refuse_stretched_context(keys: Keys) -> None:
    """A scaling that a word names has its factor from ``max_model_len``.

    Source: ms-swift 4.6.0 swift/arguments/base_args/model_args.py _init_rope_scaling.
    """
    if keys.get("rope_scaling") in ("linear", "dynamic", "yarn") and not keys.has("max_model_len"):
        why = "ms-swift stops without max_model_len, or a factor in a JSON object"
        raise keys.stops("rope_scaling", f"{why}")


def _read_lengths(keys: Keys, reading: Reading) -> None:
    """Length of a sample or of a pack; the whole context of the model where nothing is said."""
    flash = str(keys.get("attn_impl") or "").startswith("flash")
    if keys.text("attn_impl") == "flash_attn":
        reading.say("attention", "flash2", keys.where("attn_impl"))
    else:
        read_attention(keys, "attn_impl", reading)
    packs, joins = keys.flag("packing"), keys.flag("padding_free")
    if (packs or joins) and not flash:
        name = "packing" if packs else "padding_free"
        raise keys.stops(name, "ms-swift refuses it without attn_impl flash_attn")
    name = "packing_length" if packs and keys.has("packing_length") else "max_length"
    length = keys.count(name)
    if length is not None and reading.value("seq") is None:
        reading.say("seq", length, keys.where(name))
    elif length is None:
        reading.needs["seq"] = (
            f"{keys.path}: max_length is not given, so the longest sample decides, up to the context of "
            "the model: say --seq"
        )
    keys.skip(("max_length", "packing_length"))
    if packs:
        reading.say("padding", "packed", keys.where("packing"))
    elif joins and reading.value("padding") is None:
        reading.remark(keys.where("padding_free"), "counted as padded to the longest sample, which is more")
    if keys.text("truncation_strategy") not in (None, "delete"):
        reading.switch("drops_long_samples", False, keys.where("truncation_strategy"))


def _read_images(keys: Keys, reading: Reading) -> None:
    """One image in each sample of a model that sees: the data decide."""
    reading.default("images_per_sample", 1, "the data say how many images a sample has: one is assumed")
    if (pixels := keys.count("max_pixels")) is not None:
        reading.limit_images(pixels, keys.where("max_pixels"))
    if keys.flag("vit_gradient_checkpointing") is False:
        reading.remark(
            keys.where("vit_gradient_checkpointing"), "the tower is counted as checkpointed, which is less"
        )


def _read_sizes(keys: Keys, reading: Reading) -> None:
    """Micro-batch 1, and so many micro-steps that a step has 16 samples at least.

    Source: ms-swift 4.6.0 swift/trainers/arguments.py __post_init__.
    """
    place = "ms-swift 4.6.0 swift/trainers/arguments.py"
    if not keys.has("per_device_train_batch_size"):
        reading.default("batch", 1, f"{place}: per_device_train_batch_size")
    if not keys.has("gradient_accumulation_steps") and reading.value("grad_accum") is None:
        reading.least_batch = (16, f"{place}: gradient_accumulation_steps")
    epochs = keys.get("max_epochs")
    if epochs is not None and not keys.has("num_train_epochs"):
        reading.say("epochs", epochs, keys.where("max_epochs"))


def _read_evaluation(keys: Keys, reading: Reading) -> None:
    """Evaluation follows the saving of checkpoints, where there are data for it; one sample at a time.

    Source: ms-swift 4.6.0 swift/arguments/sft_args.py _init_eval_strategy.
    """
    when = str(keys.get("eval_strategy") or keys.get("save_strategy") or "steps").lower()
    data = next((name for name in ("val_dataset", "cached_val_dataset") if keys.get(name)), None)
    if data is None and keys.is_on("split_dataset_ratio"):
        data = "split_dataset_ratio"
    if data is None and keys.has("train_type") and not keys.has("split_dataset_ratio"):
        # v3.5.3 swift/llm/argument/base_args/data_args.py: split_dataset_ratio is 0.01.
        text = "until 3.5 a hundredth of the data was evaluated: say --eval-batch 1 there"
        reading.remark(keys.where("train_type"), text)
    reading.said.pop("eval_batch", None)
    if data is not None and when not in ("no", "false"):
        size = keys.count("per_device_eval_batch_size") or 1
        reading.say("eval_batch", size, keys.where(data), "evaluated where checkpoints are saved")
        if keys.flag("predict_with_generate"):
            raise keys.not_modelled(
                "predict_with_generate", "an evaluation that generates text is not modelled"
            )


def _remark(keys: Keys, reading: Reading) -> None:
    # trainers/mixin.py get_use_logits_to_keep: on where the model's forward takes it.
    cuts = reading.value("loss") != "liger" and reading.value("task") in (None, "dpo", "kto", "gkd")
    if keys.flag("use_logits_to_keep") is not False and cuts:
        text = (
            "logits of all tokens are counted: those before the answers may be left out (use_logits_to_keep)"
        )
        reading.remark(str(keys.path), text)
    for name, text in (
        ("external_plugins", "what code of one's own changes is not counted"),
        ("new_special_tokens", "the vocabulary is counted as published"),
        ("adapters", "an adapter is trained as lora_rank and target_modules say, whatever it was made with"),
        ("router_aux_loss_coef", "the routers' loss is not counted"),
    ):
        if keys.is_on(name):
            reading.remark(keys.where(name), text)
    _read_experts(keys, reading)


def _read_experts(keys: Keys, reading: Reading) -> None:
    """Transformers stops where grouped products are asked of a model that has no experts.

    Source: transformers 5.19 modeling_utils.py _grouped_mm_can_dispatch.
    """
    if keys.text("experts_impl") == "grouped_mm":
        why = "ms-swift stops at it where the model has no experts: leave it out"
        reading.stops.append(Stop(lambda spec: not spec.is_moe, f"{keys.where('experts_impl')}: {why}"))
    elif keys.text("experts_impl") is not None:
        raise keys.not_modelled("experts_impl", "this way to compute experts is not modelled; grouped_mm is")
