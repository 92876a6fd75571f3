"""Trainings of Axolotl from preferences, from labels of steps, and on what the model generates."""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.configs.shared.rollouts import read_rollout, remark_divided
from planner.configs.tools.axolotl.axolotl_age import Age, is_fsdp2
from planner.domain.recipes.recipe import Task
from planner.errors import show

_LAYERS = 3
"""Those at a quarter, a half and three quarters of the depth (``feature_layers``)."""
# What is pooled of features, and the sums that rewards and the loss are.
_HARMLESS = (
    *("mode", "embed_method", "use_whitening", "alignment_coef", "diversity_coef", "ce_coef"),
    *("adaptive_max_tokens", "gt_length_multiplier"),
)
# Of the other mode alone.
_STRIDED = (
    *("stride", "context_length", "generate_max_len", "n_samples_per_prompt", "temperature", "top_p"),
    *("rl_coef", "advantage_estimator", "min_completion_prefix"),
)
# axolotl 0.19.0 utils/schemas/enums.py RLType.
_AXOLOTL_TASKS: dict[str, Task] = {
    "dpo": "dpo",
    "ipo": "dpo",
    "kto": "kto",
    "orpo": "orpo",
    "simpo": "simpo",
    # The same trainer, whose rewards are normalised one by one (core/builders/rl.py).
    "gdpo": "grpo",
    "grpo": "grpo",
    # The same trainer, whose rewards come from the model's own layers (core/trainers/ebft/trainer.py).
    "ebft": "grpo",
}
_AXOLOTL_UNMODELLED = texts_in("axolotl.toml", "unmodelled_of_preferences")

_OWN_ROLLOUTS = texts_in("axolotl.toml", "rollouts_of_its_own")
_OWN_ROLLOUTS_HARMLESS = names_in("axolotl.toml", "harmless_of_its_rollouts")
_ENGINE_HARMLESS = names_in("axolotl.toml", "harmless_of_engine")


def read_features(keys: Keys, reading: Reading) -> None:
    """``ebft``: how many of the model's own layers score completions beside right ones.

    Source: axolotl 0.19.0 utils/schemas/config.py EBFTConfig, utils/schemas/validation.py
    EBFTValidationMixin, core/trainers/ebft/{__init__,trainer,strided}.py.

    Raises:
        UsageError: what Axolotl's validation refuses.
        NotModelledError: short completions at many places of a document.
    """
    if str(keys.get("rl") or "").lower() != "ebft":
        return
    part = keys.part("ebft")
    if part is None:
        raise keys.stops("rl", "Axolotl asks for a section ebft beside rl: ebft")
    if part.text("mode") == "strided":
        if keys.flag("torch_compile") and keys.get("gradient_checkpointing"):
            raise keys.stops(
                "torch_compile",
                "Axolotl refuses it beside gradient_checkpointing in ebft's strided mode; leave it out",
            )
        raise part.not_modelled(
            "mode",
            "strided completions are not modelled; structured is read, and measure trace -- axolotl train "
            "runs them on one GPU (on several each process has a copy of the model on the next card)",
        )
    layers = part.get("feature_layers")
    n_layers = len(layers) if isinstance(layers, list) and layers else _LAYERS
    reading.switch("feature_layers", n_layers, part.where("feature_layers"))
    part.skip((*_HARMLESS, *_STRIDED))


def axolotl_task(keys: Keys) -> Task | None:
    """The task of an Axolotl file that trains from preferences or on labels of steps; ``None`` where it does
    neither.

    Raises:
        NotModelledError: reinforcement learning, or what no formula covers.
    """
    kind = str(keys.get("rl") or "").lower()
    if kind and kind not in _AXOLOTL_TASKS:
        raise keys.not_modelled("rl", f"preference training ({show(kind)}) is not modelled")
    rewards = keys.flag("reward_model")
    if not kind and not rewards:
        if keys.flag("process_reward_model"):
            _refuse_other_labels(keys)
            return "prm"
        return None
    keys.refuse_switched_on(_AXOLOTL_UNMODELLED)
    return _AXOLOTL_TASKS[kind] if kind else "reward"


def _refuse_other_labels(keys: Keys) -> None:
    """Two labels a token, right and wrong, are what is counted."""
    if keys.count("num_labels") not in (None, 2):
        raise keys.not_modelled("num_labels", "other than two labels of a step are not modelled")
    if keys.flag("sample_packing"):
        raise keys.not_modelled("sample_packing", "packed samples with labels of steps are not modelled")


def read_trl_adapters(reading: Reading) -> None:
    """Adapters of Axolotl's trainers that are those of TRL: bf16 over a quantised base, reentrant checkpoints
    under ZeRO-3.

    Source: axolotl 0.19.0 METADATA (trl 1.9.0), core/builders/rl.py, core/trainers/trl.py; trl 1.9.0
    trainer/{dpo,kto,reward,grpo}_trainer.py __init__; trl.experimental's ORPO, CPO and PRM leave them alone.
    """
    task = reading.said.get("task")
    if task is None or task.value not in ("dpo", "kto", "reward", "grpo"):
        return
    if reading.value("quantization") is not None:
        place = (
            "trl 1.9.0 trainer/dpo_trainer.py:700-703: trained parameters become bf16 over a quantised base"
        )
        reading.default("adapter_dtype", "bf16", place)
    reading.switch("zero3_reentrant_adapters", True, task.origin)


def refuse_preferences(keys: Keys, *, age: Age) -> None:
    """What Axolotl stops at in a file that trains from preferences.

    Source: axolotl 9f917245f (2024-08), 0.8.1 and 0.19.0 check_sample_packing_w_rl (2023-11 has none);
    0.8.1 and 0.19.0 check_kto_config (2024-08 has none); utils/schemas/validation.py in 0.19.0.
    All of them hand ``simpo_gamma`` on as it stands (0.19.0 core/builders/rl.py), and trl 0.9.6 and 1.9.0
    cpo_trainer.py divide it: a dry run of 0.19.0 ends with a TypeError.

    Raises:
        UsageError: a setting that Axolotl refuses, or one without which it stops.
    """
    kind = str(keys.get("rl") or "").lower()
    if not age.old:
        _refuse_packed_base(keys, kind)
    packs = "sample_packing" if keys.flag("sample_packing") else "eval_sample_packing"
    if kind and not age.of_2023 and keys.flag(packs) and (packs == "sample_packing" or kind == "kto"):
        raise keys.stops(packs, f"Axolotl packs no samples with rl: {kind}; leave it out")
    if kind == "kto" and not age.old and keys.flag("remove_unused_columns") is not False:
        raise keys.stops("rl", "Axolotl refuses kto without remove_unused_columns: false; say so")
    if kind == "simpo" and not keys.has("simpo_gamma"):
        raise keys.stops(
            "rl", "Axolotl has no default for simpo_gamma and stops at its first loss; say simpo_gamma"
        )


def _refuse_packed_base(keys: Keys, kind: str) -> None:
    """Source: axolotl 0.12.0 and 0.19.0 utils/schemas/validation.py check_fsdp2_base_model_quant_rl."""
    bits = next((name for name in ("load_in_8bit", "load_in_4bit") if keys.flag(name)), "")
    if bits and kind in ("dpo", "kto", "orpo", "ipo") and keys.get("fsdp_config") and is_fsdp2(keys):
        raise keys.stops(
            bits,
            f"Axolotl refuses it under FSDP2 with rl: {kind}; leave it out, take DeepSpeed, or say "
            "fsdp_version: 1",
        )


def _read_beta(section: Keys, keys: Keys, reading: Reading, *, age: Age) -> None:
    """Whether GRPO compares with the model as it was: by ``beta`` of its section, else by ``rl_beta``.

    Where neither is handed on, TRL's own counts; in old versions a zero is not handed on.
    Source: axolotl 0.15.0 and 0.18.0 core/builders/rl.py, 0.8.0 core/trainer_builder.py:1037; trl 0.15.0 and
    0.16.0 trainer/grpo_config.py, which axolotl 0.7.0 to 0.8.0 pins: beta is 0.04.
    """
    for part, name in ((section, "beta"), (keys, "rl_beta")):
        value = part.number(name)
        if value is not None and (value or not age.old):
            reading.say("compare_reference", value != 0, part.where(name))
            return
    if age.old:
        reading.default("compare_reference", True, "trl 0.15.0 and 0.16.0 trainer/grpo_config.py: beta")


def read_generated(keys: Keys, reading: Reading, *, age: Age) -> None:
    """What GRPO generates, where it is the task: the section ``trl``, and of ``vllm`` the share of the card.

    ``old``: the file is of 0.8 or before, which leaves what is not said to TRL 0.16 (axolotl 0.8.0
    core/trainers/grpo/__init__.py set_training_args_kwargs).

    Raises:
        NotModelledError: what :func:`read_rollout` refuses.
    """
    if reading.value("task") != "grpo":
        return
    reading.said.pop("padding", None)
    section = keys.section("trl")
    section.refuse_switched_on(_OWN_ROLLOUTS)
    section.skip(_OWN_ROLLOUTS_HARMLESS)
    _read_beta(section, keys, reading, age=age)
    # axolotl 0.19.0 utils/schemas/validation.py check_vllm_mode_set, since 2025-08; TRL's own before.
    read_rollout(section, reading, old=age.old, mode="server")
    if reading.value("reward_model") is not None:
        reading.default("reward_dtype", "checkpoint", "transformers 5.23 from_pretrained, without a dtype")
    engine = keys.part("vllm")
    if engine is None:
        return
    engine.skip(_ENGINE_HARMLESS)
    most = engine.count("max_model_len")
    if most is not None and reading.value("generator") == "vllm-server":
        # axolotl 0.19.0 cli/vllm_serve.py, which starts that server from the same file.
        reading.longest = most, engine.where("max_model_len")
    if reading.value("generator") == "vllm":
        remark_divided(engine, reading, "tensor_parallel_size")
        reading.take(engine, {"gpu_memory_utilization": "vllm_memory"})
    else:
        # On other cards.
        engine.skip(("tensor_parallel_size", "gpu_memory_utilization"))
