"""A configuration of torchtune's supervised recipes (YAML): lora and full finetune,
single_device and distributed.

Keys: torchtune 0.6.1 recipes/{lora,full}_finetune_{single_device,distributed}.py, which take no defaults for
most of them, and models/*/_model_builders.py; keys that recipes of 2025-03 to 2026-04 (bd2a0fc7c) added are
read as well.
Ignored: ``custom_sharded_layers`` that name the token table alone, or others.
"""

from __future__ import annotations

import re
from typing import Any

from planner.configs.launchers.accelerate import read_counts
from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.launchers.launch import LAUNCH_LINE
from planner.configs.launchers.tune_words import COMPONENT
from planner.configs.said_by_file import Alone, Reading, Stop
from planner.configs.shared.evaluation import say_evaluation
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.configs.tools.torchtune_age import LINEAR_LOSS, Age, read_age, read_length
from planner.configs.yaml_or_json import MAX_DOCUMENT_BYTES, Document, read_document
from planner.errors import show
from planner.files.reading import read_text

TOOL = "torchtune 0.6.1"
STACK = "torchtune"
COMPILED_STACK = "torchtune-compile"
# Keys that no other tool has; its files are told by the one above all the same.
MARKS = frozenset(
    {"enable_activation_offloading", "optimizer_in_bwd", "max_steps_per_epoch", "custom_sharded_layers"}
)
_MODELS = "torchtune.models."
_TARGETS = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "output_proj": "o_proj"}
_MLP = ("gate_proj", "up_proj", "down_proj")
_OPTIMIZERS = {
    "bitsandbytes.optim.PagedAdamW8bit": "paged_adamw_8bit",
    "bitsandbytes.optim.PagedAdamW": "paged_adamw_32bit",
    "bitsandbytes.optim.AdamW8bit": "adamw_8bit",
    "torch.optim.SGD": "sgd",
    "torchao.prototype.low_bit_optim.AdamW8bit": "adamw_torch_8bit",
    "torchao.optim.AdamW8bit": "adamw_torch_8bit",
}
_ADAMW = "torch.optim.AdamW"
_LOSS = "torchtune.modules.loss.CEWithChunkedOutputLoss"
_WHOLE_LOSS = "torch.nn.CrossEntropyLoss"
_QUANTIZER = "torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer"
_DPO = "torchtune.rlhf.loss.DPOLoss"
_DTYPES = ("bf16", "fp32")
_UNMODELLED = texts_in("torchtune.toml", "unmodelled")
_DEGREES = texts_in("torchtune.toml", "degrees")
_RUN = re.compile(
    r"^#.*\btune run\b.*?([a-z0-9_]+_(?:single_device|distributed|fsdp2)) --config", re.MULTILINE
)
# Keys of the distributed recipes alone.
_DISTRIBUTED = (
    "custom_sharded_layers",
    "fsdp_cpu_offload",
    "fsdp_reshard_after_forward",
    "data_parallel_shard_dim",
)
# Of 0.2.1: recipes/dev/lora_finetune_fsdp2.py.
_SECOND_RECIPE = "lora_finetune_fsdp2"
# Of 34162c9b2 (2024-08-14) recipes/full_finetune_distributed.py and dev/lora_finetune_fsdp2.py.
_SECOND_FSDP = ("custom_sharded_layers", "fsdp_reshard_after_forward", "fsdp")
_HARMLESS = names_in("torchtune.toml", "harmless")

BUILDERS = texts_in("torchtune.toml", "builders")
# Builders by their names -> positions in a table (max_seq_len), by the first that matches.
_POSITIONS = (
    (r"llama3_[123]_|qwen2_5_(1_5|7|14|32|72)b_base", 131_072),
    (r"qwen3_.*_base|qwen2_|mistral_", 32_768),
    (r"qwen3_", 40_960),
    (r"phi4_|code_llama2_", 16_384),
    (r"llama3_|gemma", 8_192),
    (r"", 4_096),
)


def is_torchtune(document: Document) -> bool:
    """Whether a file has a table that torchtune's config parser instantiates."""
    return any(isinstance(value, dict) and COMPONENT in value for value in document.table.values())


def read_torchtune(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what a configuration of torchtune says."""
    if not keys.holds("optimizer"):
        raise keys.trains_nothing("optimizer", "there is none, so this file does not train")
    keys.refuse_switched_on(_UNMODELLED)
    keys.refuse_above_one(_DEGREES)
    age = read_age(keys, reading, beside.stack)
    old = age.old
    if keys.flag("compile"):
        reading.said.pop("stack", None)
        reading.say("stack", COMPILED_STACK, keys.where("compile"))
    _read_model(keys, reading, age)
    _read_loss(keys, reading, old=old)
    reading.take(
        keys, {"batch_size": "batch", "gradient_accumulation_steps": "grad_accum", "epochs": "epochs"}
    )
    for name, what in (("batch_size", "batch"), ("gradient_accumulation_steps", "grad_accum")):
        if reading.value(what) is None:
            reading.needs[what] = (
                f"{keys.path}: {name} is not given, and no recipe of torchtune has a default for it"
            )
    _read_dtype(keys, reading)
    _read_quantizer(keys, reading)
    _read_data(keys, reading, old=old)
    _read_validation(keys, reading)
    if keys.flag("resize_token_embeddings"):
        reading.remark(keys.where("resize_token_embeddings"), "the vocabulary is counted as published")
    _read_optimizer(keys, reading)
    _read_checkpointing(keys, reading)
    _read_distribution(keys, reading, old=old)
    if beside.accelerate is not None and beside.accelerate.name.endswith(LAUNCH_LINE):
        line = Keys.of(read_document(beside.accelerate))
        read_counts(line, reading, line.text("distributed_type") or "")
    keys.skip(_HARMLESS)


def _component(part: Keys | None) -> str:
    return "" if part is None else part.text(COMPONENT) or ""


def _read_model(keys: Keys, reading: Reading, age: Age) -> None:
    """The builder's name says the model and the method."""
    part = keys.part("model")
    builder = _component(part)
    if part is None or not builder.startswith(_MODELS):
        raise keys.not_modelled(
            "model", "not a builder of torchtune.models, so the model is not known: say the job by flags"
        )
    name = builder.rpartition(".")[2]
    plain = name.removeprefix("q").removeprefix("lora_") if name.startswith(("lora_", "qlora_")) else name
    if plain not in BUILDERS:
        raise part.not_modelled(
            COMPONENT,
            f"{show(name)} is not modelled: Llama, Mistral, Phi, Gemma 1 and 2, and Qwen of 2 to 3 are",
        )
    where = part.where(COMPONENT)
    reading.say("model", BUILDERS[plain], where, f"torchtune's {name}")
    reading.switch(
        "rotary_tables", tables(plain, adapted=plain != name, copies=_copies_layers(plain, age)), where
    )
    reading.longest = positions(plain), where
    reading.switch("rotary_positions", positions(plain), where)
    if plain == name:
        reading.say("method", "full", where)
        return
    _read_adapters(part, reading, quantised=name.startswith("qlora_") or bool(part.flag("quantize_base")))


def _copies_layers(builder: str, age: Age) -> bool:
    """Whether a builder of this age copies one layer, with its tables.

    Source: torchtune 0.2.1 to 0.5.0 modules/transformer.py _get_clones, models/*/_component_builders.py: all
    but Llama's from 3.1 on since 0.3.1, and Gemma 2's; 23896c30d (2025-01) makes lists of layers.
    """
    lists = builder.startswith(("llama3_1", "llama3_2", "llama3_3", "gemma2"))
    return age.old or (age <= Age.TO_0_5 and not lists)


def _read_adapters(part: Keys, reading: Reading, *, quantised: bool) -> None:
    if part.flag("use_dora"):
        reading.say("dora", True, part.where("use_dora"))
    reading.say("method", "lora", part.where(COMPONENT))
    if part.holds("apply_lora_to_output") and "gemma" in _component(part):
        # torchtune 0.6.1 models/gemma/_model_builders.py, models/gemma2/_model_builders.py.
        raise part.stops(
            "apply_lora_to_output", "torchtune's builders of Gemma have no such argument: leave it out"
        )
    reading.take(part, {"lora_rank": "lora_rank", "lora_dropout": "lora_dropout"})
    named = part.names("lora_attn_modules")
    if unknown := [name for name in named if name not in _TARGETS]:
        raise part.wrong("lora_attn_modules", f"of {', '.join(_TARGETS)}", unknown[0])
    targets = tuple(_TARGETS[name] for name in named)
    targets += _MLP if part.flag("apply_lora_to_mlp") else ()
    targets += ("lm_head",) if part.flag("apply_lora_to_output") else ()
    if targets:
        reading.say("lora_targets", targets, part.where("lora_attn_modules"))
    part.skip(("lora_alpha", "quantize_base"))
    if quantised and "qwen" in _component(part) and not {*_TARGETS.values(), *_MLP} <= set(targets):
        # bd2a0fc7c models/qwen{2,3}/_component_builders.py: the others stay nn.Linear.
        text = "torchtune's Qwen packs adapted matrices alone: those without adapters are not modelled"
        raise part.not_modelled("quantize_base", text)
    if quantised:
        where = part.where("quantize_base" if part.has("quantize_base") else COMPONENT)
        reading.say("quantization", "nf4", where)
        # torchao's NF4Tensor has 8-bit scales, and FSDP2 divides it.
        reading.say("double_quant", True, where, "scales of NF4Tensor are quantised, too")
        reading.say("quant_storage", "bfloat16", where, "stands for: FSDP2 divides NF4Tensor")


def _read_loss(keys: Keys, reading: Reading, *, old: bool) -> None:
    """The loss in eight pieces, of which all logits live together;
    a newer one makes each piece's logits by itself.  torch's is of all logits at once.
    """
    part = keys.part("loss")
    kind = _component(part)
    if part is not None and kind == _WHOLE_LOSS:
        if not old:
            _read_whole_loss(keys, part, reading)
        part.skip(("ignore_index",))
        return
    if part is not None and kind == _DPO:
        if reading.value("method") == "full":
            # recipes/full_dpo_distributed.py sets the reference up from ref_checkpointer.
            raise part.stops(
                COMPONENT,
                "no recipe of torchtune runs it without adapters and without a ref_checkpointer: take a "
                "lora builder",
            )
        reading.say("task", "dpo", part.where(COMPONENT))
        part.skip(("beta", "label_smoothing"))
        return
    if kind.startswith("torchtune.rlhf."):
        raise keys.not_modelled(f"loss.{COMPONENT}", f"{show(kind)} is not modelled; DPOLoss is")
    if part is None or kind not in (_LOSS, LINEAR_LOSS):
        place = part or keys
        raise place.not_modelled(
            COMPONENT if part else "loss",
            f"the loss {show(kind)} is not modelled; {_LOSS.rpartition('.')[2]} is",
        )
    if part.get("num_output_chunks") not in (None, 8):
        raise part.not_modelled("num_output_chunks", "other than eight pieces are not modelled")
    if kind == LINEAR_LOSS:
        _read_linear_loss(keys, part, reading)
    part.skip(("ignore_index",))


def _read_linear_loss(keys: Keys, part: Keys, reading: Reading) -> None:
    """Head and loss of a piece after the other, of which the log-softmax alone stays.

    Ignored: that tokens without a label are left out.
    Source: torchtune bd2a0fc7c modules/loss/cross_entropy_loss.py, whose default is eight pieces.
    """
    where = part.where(COMPONENT)
    part.skip(("mask_ignored_tokens",))
    if keys.flag("compile") or keys.part("quantizer") is not None:
        reading.remark(where, f"counted as {_LOSS.rpartition('.')[2]}, which is more")
        return
    reading.say("loss", "chunked", where)
    reading.switch("loss_pieces", "kept_eighths", where)


def _read_whole_loss(keys: Keys, part: Keys, reading: Reading) -> None:
    """Raises: NotModelledError: compiled.

    Source: torchtune 0.4.0 modules/transformer.py:647 and 0.6.1 unembed: ``self.output(h).float()``;
    recipes/lora_finetune_single_device.py _loss_step: labels are shifted, and logits deleted.
    """
    if keys.flag("compile"):
        raise part.not_modelled(COMPONENT, "torch.compile of a loss over all logits is not modelled")
    where = part.where(COMPONENT)
    reading.switch("loss_forward", "float+log_softmax", where)
    reading.switch("loss_backward", "log_softmax+nll_grad+log_softmax_grad", where)


def _read_dtype(keys: Keys, reading: Reading) -> None:
    dtype = keys.text("dtype") or "fp32"
    if dtype not in _DTYPES:
        raise keys.wrong("dtype", " or ".join(_DTYPES), dtype)
    if keys.text("device") not in (None, "cuda"):
        raise keys.not_modelled(
            "device", "it trains without CUDA, on no card that --gpu names: say cuda there"
        )
    where = keys.where("dtype")
    reading.say("precision", dtype, where)
    if reading.value("quantization") is None or dtype != _DTYPES[0]:
        reading.say("load_dtype", dtype, where)
    if reading.value("method") == "lora":
        reading.say("adapter_dtype", dtype, where)


def _read_quantizer(keys: Keys, reading: Reading) -> None:
    """What weights and inputs are rounded to as if quantised.

    Source: torchtune 0.6.1 recipes/qat_distributed.py, qat_lora_finetune_distributed.py.
    """
    part = keys.part("quantizer")
    if part is None:
        return
    kind = _component(part)
    if kind.removesuffix("ModuleSwap") != _QUANTIZER:
        raise part.not_modelled(
            COMPONENT, f"{show(kind)} is not modelled; {_QUANTIZER.rpartition('.')[2]} is"
        )
    reading.say("qat", "int8-int4", part.where(COMPONENT))
    reading.take(part, {"groupsize": "qat_group"})
    # Steps before which nothing is rounded take less.
    keys.skip(("fake_quant_after_n_steps",))


def _read_data(keys: Keys, reading: Reading, *, old: bool) -> None:
    tokenizer, data = keys.part("tokenizer"), keys.part("dataset")
    if old and data is not None:
        read_length(data, reading)
    if tokenizer is not None:
        if not old:
            reading.take(tokenizer, {"max_seq_len": "seq"})
        tokenizer.skip_rest()
    if reading.value("seq") is None:
        reading.needs["seq"] = (
            f"{keys.path}: tokenizer.max_seq_len is null, so the longest sample decides: say --seq"
        )
    if data is None:
        return
    if data.flag("packed"):
        # torchtune 0.6.1 models/gemma2/_attention.py: NotImplementedError where flex attention is there.
        sentence = f"{data.where('packed')}: torchtune's Gemma 2 takes no packed samples: say packed: False"
        reading.stops.append(Stop(lambda model: model.architecture == "gemma2", sentence))
        if reading.value("seq") is None:
            # torchtune 0.6.1 datasets/*.py: ValueError.
            raise data.stops(
                "packed",
                "torchtune packs samples up to tokenizer.max_seq_len alone, which the file does not say: "
                "add it there",
            )
        reading.say("padding", "packed", data.where("packed"))
    data.skip_rest()


def _read_validation(keys: Keys, reading: Reading) -> None:
    """Batches of ``dataset_val``, as large as those of training where ``batch_size_val`` does not say.

    Source: torchtune bd2a0fc7c recipes/full_finetune_distributed.py setup and validate, and three more.
    """
    if not keys.get("run_val_every_n_steps") or keys.get("dataset_val") is None:
        return
    size = reading.value("batch")
    if keys.as_written("batch_size_val") not in (None, "${batch_size}"):
        size = keys.count("batch_size_val")
    if size is not None:
        say_evaluation(reading, size, keys.where("batch_size_val"))


def _read_optimizer(keys: Keys, reading: Reading) -> None:
    part = keys.part("optimizer")
    kind = _component(part)
    if part is None or (kind != _ADAMW and kind not in _OPTIMIZERS):
        names = ", ".join((_ADAMW, *_OPTIMIZERS))
        raise (part or keys).not_modelled(
            COMPONENT if part else "optimizer", f"optimizer {show(kind)} is not modelled; these are: {names}"
        )
    fused = part.flag("fused")
    ours = _OPTIMIZERS.get(kind) or ("adamw_torch_fused" if fused else "adamw_torch")
    reading.say("optimizer", ours, part.where(COMPONENT))
    if part.flag("foreach") is False and ours == "adamw_torch":
        reading.switch("foreach_step_copies", 0, part.where("foreach"))
    if keys.flag("optimizer_in_bwd"):
        if keys.get("clip_grad_norm") is not None:
            # torchtune 0.6.1 recipes/full_finetune_single_device.py and full_finetune_distributed.py:186.
            raise keys.stops(
                "clip_grad_norm",
                "torchtune clips no gradients beside optimizer_in_bwd: leave one of them out",
            )
        reading.say("optimizer_in_backward", True, keys.where("optimizer_in_bwd"))
    part.skip(("lr", "weight_decay", "betas", "eps", "fused", "momentum"))
    if any(part.get(name) for name in ("amsgrad", "momentum")):
        raise part.not_modelled(
            "amsgrad" if part.has("amsgrad") else "momentum", "a state more than usual is not modelled"
        )


def _read_checkpointing(keys: Keys, reading: Reading) -> None:
    again, offload = keys.flag("enable_activation_checkpointing"), keys.flag("enable_activation_offloading")
    where = keys.where("enable_activation_checkpointing")
    reading.say(
        "gradient_checkpointing", bool(again), where, "" if again is not None else "off where it is left out"
    )
    _read_selection(keys, reading)
    streams = keys.flag("activation_offloading_use_streams")
    if offload and streams is False:
        raise keys.not_modelled(
            "activation_offloading_use_streams", "offloading without a stream of its own is not modelled"
        )
    if offload:
        reading.say("offload", "activations", keys.where("enable_activation_offloading"))


def _read_selection(keys: Keys, reading: Reading) -> None:
    """``ac_mode``, which the recipes for several GPUs without adapters read.

    Source: torchtune 0.6.1 recipes/full_finetune_distributed.py:566-580, training/activations.py.
    """
    mode, option = keys.text("ac_mode"), keys.get("ac_option")
    if mode is None or reading.value("method") != "full" or _single_device_recipe(keys, reading):
        return
    if reading.value("gradient_checkpointing") or mode not in ("full", "selective"):
        raise keys.not_modelled("ac_mode", f"{show(mode)} is not modelled; full and selective are, alone")
    where = keys.where("ac_mode")
    reading.said.pop("gradient_checkpointing", None)
    reading.say("gradient_checkpointing", True, where)
    if mode == "selective":
        if not str(option).isdecimal() or int(option) < 1:
            raise keys.not_modelled("ac_option", f"{show(option)} is not modelled; every so many layers are")
        reading.say("checkpoint_every", int(option), keys.where("ac_option"))


def _read_distribution(keys: Keys, reading: Reading, *, old: bool) -> None:
    """FSDP2, or in ``old`` files FSDP1, where a key of the distributed recipes is there, or the job has
    several GPUs: torchtune has nothing else.
    """
    table = keys.part("fsdp")
    offload = keys.flag("fsdp_cpu_offload") or (table is not None and table.flag("cpu_offload"))
    if offload:
        reading.said.pop("offload", None)
        reading.say("offload", "optimizer+params", keys.where("fsdp_cpu_offload"), "FSDP offloads both")
    shard: Any = keys.get("fsdp_reshard_after_forward")
    kind = "fsdp-grad-op" if shard is False else "fsdp"
    if old:
        kind = _read_old_distribution(keys, reading, kind)
    found = next((name for name in _DISTRIBUTED if keys.has(name)), "fsdp" if table is not None else None)
    if found is not None:
        reading.say("sharding", kind, keys.where(found), "a key of the distributed recipes")
    elif reading.script.endswith("_distributed"):
        reading.say("sharding", kind, reading.script, "the recipe of the command")
    else:
        recipe = _single_device_recipe(keys, reading)
        reading.alone = Alone(recipe, sees=1) if recipe else None
        reading.several = (kind, f"{reading.tool} recipes/*_distributed.py: FSDP and no other")
    if {"tok_embeddings", "output"} <= set(keys.names("custom_sharded_layers")):
        reading.switch("fsdp2_units", "ends_returned", keys.where("custom_sharded_layers"))
    keys.skip(_DISTRIBUTED)


def _read_old_distribution(keys: Keys, reading: Reading, kind: str) -> str:
    """FSDP1, or ``kind`` where a key of FSDP2's recipes of 2024-08 is there."""
    second = next((name for name in _SECOND_FSDP if keys.has(name)), None)
    recipes = set(_recipes(keys, reading))
    if second is not None or recipes in ({"lora_finetune_distributed"}, {_SECOND_RECIPE}):
        # These recipes delete the logits before backward.
        place = keys.where(second) if second else reading.script or f"{keys.path}: a comment"
        reading.switch("keeps_outputs", False, place)
    return kind if second is not None or recipes == {_SECOND_RECIPE} else "fsdp1"


def _single_device_recipe(keys: Keys, reading: Reading) -> str:
    """The recipe that a command or comments of a file run it with, where none runs on several GPUs.

    ``tune run`` refuses several processes of such a recipe (torchtune 0.6.1 _cli/run.py).
    """
    recipes = _recipes(keys, reading)
    return next(iter(recipes), "") if all(name.endswith("single_device") for name in recipes) else ""


def _recipes(keys: Keys, reading: Reading) -> tuple[str, ...]:
    """The recipe of the command, else those that comments of a file run it with."""
    if reading.script:
        return (reading.script,)
    return tuple(dict.fromkeys(_RUN.findall(read_text(keys.path, MAX_DOCUMENT_BYTES))))


def positions(builder: str) -> int:
    """Positions in a table of cosines and sines, beyond which a model of torchtune ends."""
    return next(rows for pattern, rows in _POSITIONS if re.match(pattern, builder))


def tables(builder: str, *, adapted: bool, copies: bool) -> str:
    """How these tables are laid out (switch ``rotary_tables``).

    Source: torchtune 0.6.1 models/*/_component_builders.py; bd2a0fc7c of 2026-04 for Qwen 3.
    Builders with adapters make one in each attention, but for Llama from 3.1 on.  ``copies``: of one layer,
    which older builders make.
    """
    kind = "halves" if builder.startswith(("qwen", "phi")) else "pairs"
    shared = not copies and (not adapted or re.match("llama3_[123]_", builder))
    return kind if shared else f"{kind}_of_layers"
