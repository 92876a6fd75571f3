"""A training file of Axolotl (YAML).

Keys and defaults: axolotl 0.19.0 utils/schemas/config.py, peft.py, training.py, loaders/model.py and
utils/config/__init__.py.
"""

from __future__ import annotations

from planner.configs.launchers.fsdp_keys import Beside, FsdpKeys, read_fsdp
from planner.configs.said_by_file import IMAGES_UNSAID, Reading
from planner.configs.shared.checkpoints import read_checkpoint, read_gptq
from planner.configs.shared.frozen_layers import read_lisa, read_unfrozen
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.configs.shared.preference_tasks import read_chosen_likelihood, read_precomputed
from planner.configs.shared.projecting import remark_on_targets
from planner.configs.shared.trainer_arguments import (
    ends_by_steps,
    read_batches,
    read_distribution,
    read_files,
    remark_on_tf32,
)
from planner.configs.tools.axolotl.axolotl_adapters import read_adapter_kernels, read_method
from planner.configs.tools.axolotl.axolotl_age import Age, read_age, read_optimizer
from planner.configs.tools.axolotl.axolotl_attention import names_attention, read_attention_keys
from planner.configs.tools.axolotl.axolotl_numerics import (
    is_llama,
    knows_ends,
    read_kbit_tables,
    read_loss,
    read_numerics,
    read_qat,
    read_stored_weights,
    refuse_8bit_in_ram,
    refuse_tiles,
    remark_on_short_convolutions,
)
from planner.configs.tools.axolotl.axolotl_parallel import divide_fp32, read_parallel
from planner.configs.tools.axolotl.axolotl_plugins import TERNARY, read_diffusion, read_plugins
from planner.configs.tools.axolotl.axolotl_tasks import (
    axolotl_task,
    read_features,
    read_generated,
    read_trl_adapters,
    refuse_preferences,
)
from planner.errors import show

TOOL = "Axolotl 0.19.0"
STACK = "axolotl"
MARKS = frozenset(names_in("axolotl.toml", "marks"))
_FSDP_VERSION = 1
_TABLE = {
    "sequence_len": "seq",
    "micro_batch_size": "batch",
    "gradient_accumulation_steps": "grad_accum",
    "eval_batch_size": "eval_batch",
    "num_epochs": "epochs",
}
_UNMODELLED = texts_in("axolotl.toml", "unmodelled")
# Classes that Axolotl or a package brings along, in place of those of Transformers (2023-11
# utils/models.py:294, 0.8.0:928).
_MAMBA = "MambaLMHeadModel"
_OWN_CLASSES = ("MixFormerSequentialForCausalLM", _MAMBA)
# axolotl 0.19.0 utils/schemas/training.py: micro_batch_size.
_MICRO_BATCH = 1
_REMARKS = texts_in("axolotl.toml", "remarks")


_DROPPED = names_in("axolotl.toml", "dropped")
_MODEL_CONFIG_HARMLESS = frozenset(names_in("axolotl.toml", "harmless_of_model_config"))


def read_axolotl(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what a file of Axolotl says."""
    age = read_age(keys, reading, beside.stack)
    _read_task(keys, reading, age=age)
    refuse_preferences(keys, age=age)
    refuse_tiles(keys, age=age)
    keys.refuse_switched_on(_UNMODELLED)
    _read_images(keys, reading)
    read_parallel(keys, reading)
    reading.take(keys, _TABLE)
    reading.default("seq", 512, "axolotl 0.19.0 utils/schemas/config.py: sequence_len")
    reading.default("batch", _MICRO_BATCH, "axolotl 0.19.0 utils/schemas/training.py: micro_batch_size")
    ends_by_steps(keys, reading)
    _read_total(keys, reading, age=age)
    read_method(keys, reading, age=age)
    read_unfrozen(keys, reading, old=not age.today)
    read_lisa(keys, reading)
    read_checkpoint(keys, "base_model", reading, whole=keys.flag(TERNARY) is True)
    read_gptq(keys, reading)
    if reading.value("method") == "lora" and age.today:
        read_trl_adapters(reading)
    _read_padding(keys, reading, age=age)
    read_batches(keys, reading)
    _read_checkpointing(keys, reading, age=age)
    read_optimizer(keys, reading, age=age)
    read_numerics(keys, reading, age=age)
    read_attention_keys(keys, reading, age=age)
    read_plugins(keys, reading, age=age)
    read_qat(keys, reading)
    read_stored_weights(keys, reading)
    _read_sharding(keys, reading, beside, age=age)
    read_loss(keys, reading, age=age)
    read_diffusion(keys, reading, age=age)
    read_adapter_kernels(keys, reading, age=age, asked=bool(beside.stack))
    read_kbit_tables(keys, reading, age=age)
    _read_fp32_ends(keys, reading, age=age)
    _remark(keys, reading)
    _read_model_config(keys, reading)
    remark_on_tf32(keys, reading)
    _read_evaluation(keys, reading, age=age)
    read_generated(keys, reading, age=age)
    keys.skip((*names_in("axolotl.toml", "harmless"), *names_in("transformers.toml", "harmless")))


def _remark(keys: Keys, reading: Reading) -> None:
    """What is counted otherwise than it is written, and what changes nothing."""
    for name, text in _REMARKS.items():
        if keys.get(name) not in (None, False, 0, 0.0, []):
            reading.remark(keys.where(name), text)
    for name in filter(keys.holds, _DROPPED):
        reading.remark(keys.where(name), "has no effect: it is no key of Axolotl")
    keys.skip(_DROPPED)
    remark_on_targets(keys, reading)
    remark_on_short_convolutions(keys, reading)


def _read_task(keys: Keys, reading: Reading, *, age: Age) -> None:
    """What is trained for; model code of its own and files that merge are refused.

    Axolotl's Mamba asks for mamba-ssm 1.2.0.post1 (pyproject.toml), whose utils/generation.py imports what
    Transformers 5 no longer has (GreedySearchDecoderOnlyOutput).
    """
    task = axolotl_task(keys)
    if task is not None:
        names = ("rl", "reward_model", "process_reward_model")
        reading.say("task", task, keys.where(next(name for name in names if keys.get(name))))
        read_precomputed(keys, reading, single=keys.has("adapter"))
        read_chosen_likelihood(keys, reading)
        read_features(keys, reading)
    if keys.get("model_type") == _MAMBA and age.today:
        raise keys.stops(
            "model_type", "mamba-ssm 1.2.0, which Axolotl asks for, does not import beside Transformers 5"
        )
    if keys.get("model_type") in _OWN_CLASSES:
        raise keys.not_modelled(
            "model_type", f"{show(keys.get('model_type'))}, model code of its own, is not modelled"
        )
    if keys.flag("merge_lora"):
        raise keys.trains_nothing("merge_lora", "this file does not train")


def _read_fp32_ends(keys: Keys, reading: Reading, *, age: Age) -> None:
    """Enter that a full fine-tune keeps embeddings, head and norms in fp32 beside 16-bit weights,
    where it does.

    They become fp32 when the model is loaded, and 16 bits again for FlashAttention, adapters, cut cross
    entropy and FSDP only (axolotl 0.19.0 loaders/model.py:435-492, 0.8.0 utils/models.py:1256-1290).
    DeepSpeed's engine casts them as well.  Until 2024-01 FlashAttention cast those of Llama models only
    (utils/models.py:424-436 at 332984d of 2023-11), and up to 0.8 xFormers cast none: it does as a value of
    attn_implementation (0.19.0 utils/schemas/enums.py:168).
    """
    flash = reading.value("attention") in ("flash2", "flex") and not (
        age.old and keys.flag("xformers_attention")
    )
    cast = (
        reading.value("method") != "full"
        or not knows_ends(keys, age=age)
        or reading.sharding.divides_optimizer
        or (flash and (not age.of_2023 or is_llama(keys)))
    )
    if cast or reading.value("precision") == "fp32" or reading.value("loss") == "liger":
        return
    others = ("flash_attention", "flex_attention", "xformers_attention", "sdp_attention", "eager_attention")
    name = next((name for name in others if keys.flag(name)), "attn_implementation")
    reading.switch("widens_ends", True, keys.where(name))


def _read_model_config(keys: Keys, reading: Reading) -> None:
    """Values put in the place of those of config.json,
    by either name (utils/schemas/deprecated.py RemappedParameters).
    """
    for name in ("model_config", "overrides_of_model_config"):
        part = keys.part(name)
        if part is None:
            continue
        part.skip(_MODEL_CONFIG_HARMLESS)
        if changed := part.left_over_here():
            raise part.not_modelled(
                show(changed[0]),
                "a model that differs from its published config.json is not read from a file",
            )
        reading.remark(keys.where(name), "the model is counted as published")


def _read_total(keys: Keys, reading: Reading, *, age: Age) -> None:
    """``batch_size``, the micro-batches of one GPU, says the accumulation in files of 2023.

    Since 2024-02 the schema enters one micro-step before utils/config/__init__.py normalize_config divides
    (cc3cebfa7 utils/config/models/input/v0_4_1, 0.19.0 utils/schemas/training.py).
    """
    total, micro = keys.count("batch_size"), keys.count("micro_batch_size") or _MICRO_BATCH
    where = keys.where("batch_size")
    if total is not None and reading.value("grad_accum") is None:
        if age.of_2023:
            note = f"batch_size {total} / micro_batch_size {micro}"
            reading.say("grad_accum", max(total // micro, 1), where, note)
        elif total != micro:
            reading.remark(where, "has no effect since 2024-02: say gradient_accumulation_steps")
    reading.default("grad_accum", 1, "axolotl 0.19.0 utils/schemas/training.py: gradient_accumulation_steps")


def _read_old_packing(keys: Keys, reading: Reading) -> bool:
    """Whether ``max_packed_sequence_len`` packed, to the smaller of it and ``sequence_len``.
    Packs are of one length, whatever is said of padding.

    Source: axolotl 575a082aa (2023-11) utils/data.py:405-410.
    """
    packed, length = keys.count("max_packed_sequence_len"), keys.count("sequence_len")
    if packed is None:
        return False
    where = keys.where("max_packed_sequence_len")
    if length is None or packed < length:
        raise keys.not_modelled(
            "max_packed_sequence_len", "packing to another length than sequence_len is not modelled"
        )
    reading.say("padding", "packed", where)
    keys.skip(("pad_to_sequence_len",))
    return True


def _read_padding(keys: Keys, reading: Reading, *, age: Age) -> None:
    packs, of_one_length = keys.flag("sample_packing"), _read_old_packing(keys, reading)
    pads = False if of_one_length else keys.flag("pad_to_sequence_len")
    if packs:
        reading.say("padding", "packed", keys.where("sample_packing"))
        if age.old and keys.get("pretraining_dataset"):
            # Streams of pre-training have another collator.
            reading.switch("packed_mask", "none", keys.where("sample_packing"))
        elif age.today and not names_attention(keys):
            # axolotl 0.19.0 core/builders/causal.py and loaders/patch_manager.py _apply_sdpa_varlen_patch:
            # both ask for the name.  Without it the batch has a mask, which hides the padding behind a pack.
            reading.switch("packed_mask", "rows", keys.where("sample_packing"))
        elif age.today and keys.flag("sdpa_varlen") is False:
            reading.switch("packed_mask", "rows", keys.where("sdpa_varlen"))
    elif keys.flag("pretraining_sample_concatenation") and keys.get("pretraining_dataset"):
        # axolotl 0.19.0 utils/data/streaming.py:224.
        reading.say("padding", "packed", keys.where("pretraining_sample_concatenation"))
    elif pads and reading.value("task") in (None, "prm", "reward"):
        reading.say("padding", "max_length", keys.where("pad_to_sequence_len"))
    elif pads is None and reading.value("task") == "reward":
        reading.default(
            "padding", "max_length", "axolotl 0.19.0 utils/schemas/validation.py hint_reward_model_pad"
        )
    elif pads:
        reading.remark(
            keys.where("pad_to_sequence_len"),
            "has no effect here: trainers of preferences pad to the longest of the batch",
        )
    keys.skip(("sdpa_varlen",))
    if keys.text("excess_length_strategy") == "truncate":
        reading.switch("drops_long_samples", False, keys.where("excess_length_strategy"))


def _read_checkpointing(keys: Keys, reading: Reading, *, age: Age) -> None:
    value = keys.get("gradient_checkpointing")
    moves = value == "offload" or (age.old and value == "unsloth")
    if isinstance(value, str) and not moves and value.lower() not in ("true", "false"):
        raise keys.not_modelled(
            "gradient_checkpointing", f"'{show(value)}' keeps checkpoints off the GPU, which is not modelled"
        )
    on = moves or keys.flag("gradient_checkpointing")
    if on is not None:
        reading.say("gradient_checkpointing", on, keys.where("gradient_checkpointing"))
    details = keys.part("gradient_checkpointing_kwargs")
    if details is not None:
        reentrant = details.flag("use_reentrant")
        if reentrant is not None:
            reading.say("checkpoint_reentrant", reentrant, details.where("use_reentrant"))
    if "gemma-4" in str(keys.get("base_model")).lower():
        reading.said.pop("checkpoint_reentrant", None)
        place = "axolotl 0.19.0 utils/config/__init__.py:390-400: off for Gemma 4, whatever the file says"
        reading.default("checkpoint_reentrant", False, place)
        if keys.get("activation_offloading") is not True:
            # The same place, where nothing is said of unused parameters.
            reading.switch("ddp_finds_unused", "always", keys.where("base_model"))
    # For FSDP's own checkpointing, which is told later, this is taken back.
    elif on and details is None:
        reentrant, place = _unsaid_manner(keys, age=age)
        reading.default("checkpoint_reentrant", reentrant, place)
    offloading = keys.get("activation_offloading")
    if isinstance(offloading, str):
        raise keys.not_modelled("activation_offloading", f"'{show(offloading)}' is not modelled; true is")
    if moves or keys.flag("activation_offloading"):
        name = "gradient_checkpointing" if moves else "activation_offloading"
        _read_offloading(keys, reading, name, age=age)


def _read_offloading(keys: Keys, reading: Reading, name: str, *, age: Age) -> None:
    """Activations in host RAM; ``gradient_checkpointing: offload`` is an older way to say it.

    Up to 0.8 inputs of layers lie there alone, by a function that runs as reentrant checkpointing does.
    Source: axolotl 0.19.0 utils/schemas/validation.py check_gradient_checkpointing_w_offload,
    core/builders/base.py _configure_gradient_checkpointing, loaders/model.py _apply_activation_checkpointing:
    a full fine-tune gets checkpoints of torch's own, which are not reentrant; adapters get none.  0.8.0
    utils/models.py:560, utils/gradient_checkpointing/unsloth.py.
    """
    where = keys.where(name)
    reading.say("offload", "activations", where)
    if age.old:
        reading.said.pop("checkpoint_reentrant", None)
        reading.say("checkpoint_reentrant", True, where, "it runs as reentrant checkpointing does")
    elif not keys.has("adapter"):
        reading.said.pop("checkpoint_reentrant", None)
        place = "axolotl 0.19.0 loaders/model.py _apply_activation_checkpointing: checkpoint_wrapper of torch"
        reading.default("checkpoint_reentrant", False, place)


def _unsaid_manner(keys: Keys, *, age: Age) -> tuple[bool, str]:
    """Whether checkpointing is reentrant where a file says nothing of it, with the place that says so.

    Without one a job gets that of the trainer's builder, which in old versions only those of rl have.
    """
    if keys.get("rl") or (keys.names("unfrozen_parameters") and not age.old):
        place = "core/builders/base.py _configure_gradient_checkpointing: use_reentrant False"
        return False, f"axolotl 0.10.1 to 0.19.0 {place}; with rl so since 2024-08 (core/trainer_builder.py)"
    return True, "axolotl 0.19.0 utils/config/__init__.py:377-383, the same since 2024-07"


def _read_sharding(keys: Keys, reading: Reading, beside: Beside, *, age: Age) -> None:
    """FSDP by its own keys (version 1 unless given), DeepSpeed and Accelerate as for every Trainer.

    Empty ones say nothing, and up to 0.11 neither does ``fsdp_config`` alone.
    Source: axolotl 0.4.0 to 0.8.0 core/trainer_builder.py ``if self.cfg.fsdp``; 0.12.0 to 0.19.0
    core/builders/base.py ``if self.cfg.fsdp_config or self.cfg.fsdp``.
    """
    version = keys.count("fsdp_version")
    if not keys.get("fsdp") and (age.old or not keys.get("fsdp_config")):
        read_distribution(keys, reading, beside)
        divide_fp32(reading, age)
        return
    settings = keys.part("fsdp_config")
    where = keys.where("fsdp_config" if settings else "fsdp")
    found = FsdpKeys(version or _FSDP_VERSION, where=where)
    for option in keys.names("fsdp"):
        if option == "offload":
            reading.say("offload", "optimizer+params", keys.where("fsdp"), "FSDP offloads both")
        elif option != "auto_wrap":
            found.strategy = option
    if version is not None and settings is not None:
        settings.skip(("fsdp_version", "version"))
    read_fsdp(settings or Keys(keys.path, {}), reading, found)
    refuse_8bit_in_ram(keys, reading)
    _remark_on_accumulation(reading, where, age)
    if found.checkpoints:
        _say_fsdp_checkpointing(reading)
        if reading.sharding.dtensors:
            # axolotl 0.19.0 monkeypatch/accelerate/fsdp2.py fsdp2_prepare_model, behind fsdp2_apply_ac.
            reading.switch("checkpoints_twice", True, where)
    read_files(keys, reading, beside)


def _remark_on_accumulation(reading: Reading, where: str, age: Age) -> None:
    """Since 0.13 Accelerate asks FSDP2 not to reduce gradients between micro-batches; its stack is 0.12's.

    Source: accelerate ec92b1af (2025-09, 1.11.0) accelerator.py no_sync; axolotl 0.9 to 0.12 pins 1.6 to
    1.10, 0.13 pins 1.11 (requirements.txt).
    """
    # What is no number is refused by its key later.
    accumulates = reading.sharding.dtensors and reading.value("grad_accum") not in (None, 1)
    if accumulates and not age.today:
        text = (
            "gradients are counted as reduced in each micro-batch, as up to Axolotl 0.12; in 0.13 whole ones "
            "wait: --switches fsdp_no_sync=both"
        )
        reading.remark(where, text)


def _say_fsdp_checkpointing(reading: Reading) -> None:
    """FSDP's own checkpointing is never reentrant (accelerate 1.15.0 accelerator.py:1973-1983,
    utils/fsdp_utils.py:713-722).
    """
    reading.said.pop("checkpoint_reentrant", None)
    reading.default("checkpoint_reentrant", False, "accelerate 1.15.0 accelerator.py:1983: NO_REENTRANT")


def _read_evaluation(keys: Keys, reading: Reading, *, age: Age) -> None:
    """As many samples at once as it trains on, unless the file says otherwise;
    none where none are held back.

    Packs are filled by the sampler of training, as large as its own, since 0.8.0; ``old``: the file is of 0.8
    or before, which up to 0.7.1 counted ``eval_batch_size``.
    Source: axolotl 0.19.0 core/trainers/base.py _create_multipack_sampler, _get_eval_sampler,
    utils/schemas/validation.py check_eval_packing, utils/data/sft.py; 0.7.1 core/trainers/base.py:405-411.

    Raises:
        NotModelledError: longer samples than those of training.
        UsageError: the best checkpoint, of which nothing says by what (axolotl 0.19.0
            utils/schemas/config.py check_save_strategy_best_requires_metric, since 2026-04).
    """
    if age.today and keys.get("save_strategy") == "best" and not keys.get("metric_for_best_model"):
        raise keys.stops(
            "save_strategy",
            "Axolotl refuses best without metric_for_best_model; say metric_for_best_model: eval_loss",
        )
    if not any(keys.get(name) for name in ("val_set_size", "test_datasets")):
        reading.said.pop("eval_batch", None)
        return
    longest = keys.count("eval_sequence_len")
    if longest is not None and longest > reading.value("seq") and keys.get("test_datasets"):
        what = "evaluation of longer samples than those of training is not modelled"
        raise keys.not_modelled("eval_sequence_len", what)
    packs = keys.flag("sample_packing") and keys.flag("eval_sample_packing") is not False and not age.old
    if packs and reading.value("eval_batch") not in (None, reading.value("batch")):
        reading.said.pop("eval_batch")
        text = "has no effect: packs of evaluation are as large as those of training"
        reading.remark(keys.where("eval_batch_size"), text)
    place = (
        "axolotl 0.19.0 utils/config/__init__.py: eval_batch_size is micro_batch_size, the same in 2023-11"
    )
    reading.default("eval_batch", reading.value("batch"), place)


def _read_images(keys: Keys, reading: Reading) -> None:
    """One image in each sample where the file loads a processor; its size where the file says one.

    Keys: axolotl 0.19.0 utils/schemas/multimodal.py, loaders/processor.py.

    Raises:
        InputFileError: a size that is neither a number nor two.
    """
    if keys.flag("freeze_mm_modules"):
        # axolotl 067b021c8 (2026-07-24) utils/freeze.py freeze_mm_modules: what sees, hears and projects.
        where = keys.where("freeze_mm_modules")
        reading.say("freeze", ("vision_tower", "projector"), where, "what sees is frozen")
    if keys.get("processor_type") is None:
        keys.skip(("image_size",))
        return
    reading.say("images_per_sample", 1, keys.where("processor_type"), IMAGES_UNSAID)
    size = keys.get("image_size")
    if size is None:
        return
    sides = size if isinstance(size, list) and len(size) == 2 else [size, size]
    if not all(isinstance(side, int) and not isinstance(side, bool) and 0 < side < 100_000 for side in sides):
        raise keys.wrong("image_size", "a number of pixels, or width and height", size)
    reading.say("image_size", f"{sides[0]}x{sides[1]}", keys.where("image_size"))
