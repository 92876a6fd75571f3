"""Files that train from preferences: which task each tool's keys ask for, and what of it is not modelled."""

from __future__ import annotations

import re

from planner.configs.said_by_file import Reading
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.domain.recipes.recipe import Task
from planner.errors import NotModelledError, show
from planner.words import words

# LLaMA-Factory 0.9.5 hparams/finetuning_args.py pref_loss;
# losses that compare with a reference are DPO's in memory and time.
_LLAMA_FACTORY_LOSSES: dict[str, Task] = {
    "sigmoid": "dpo",
    "hinge": "dpo",
    "ipo": "dpo",
    "kto_pair": "dpo",
    "orpo": "orpo",
    "simpo": "simpo",
    # Nobody checks values of a file (transformers 5.23.0 hf_argparser.py parse_dict), and what compares with
    # a reference goes to TRL (train/dpo/trainer.py compute_preference_loss): its losses of four
    # log-probabilities that ask for nothing else (trl 0.9.6 to 0.18.2 trainer/dpo_trainer.py dpo_loss), in
    # whose place 0.24 takes sigmoid's.
    **dict.fromkeys(("robust", "exo_pair", "sppo_hard", "nca_pair", "aot", "aot_pair"), "dpo"),
}
OTHER_REFERENCE = "a reference that is another model is not modelled"
OTHER_REFERENCES = texts_in("llama-factory.toml", "other_references")
# A smaller weight of a likelihood leaves it out.
_LEAST_WEIGHT = 1e-6
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
_PRECOMPUTE = "precompute_ref_log_probs"
_PRECOMPUTED = (
    "log-probabilities of the reference that are computed before training are modelled for DPO, and up to "
    "TRL 0.26 with adapters only"
)
ASKED_BEFORE = (
    "before training, one forward pass over the data computes the reference's log-probabilities: "
    "not in the time"
)
"""Remark about a reference that is not part of a step."""
UNPADDED = "preferences and generated completions that are padding-free are not modelled"
LIGER = "Liger's losses of preferences are not modelled"
_AXOLOTL_UNMODELLED = texts_in("axolotl.toml", "unmodelled_of_preferences")
_GENERATED = "preferences between completions that are generated in training are not modelled"
_TRL_UNMODELLED = texts_in("trl.toml", "unmodelled_of_preferences")
_TRL_KEYS: dict[str, Task] = {
    "center_rewards_coefficient": "reward",
    "desirable_weight": "kto",
    "undesirable_weight": "kto",
    "simpo_gamma": "simpo",
    "cpo_alpha": "simpo",
    "rpo_alpha": "dpo",
    "precompute_ref_log_probs": "dpo",
    "ref_model_init_kwargs": "dpo",
    "sync_ref_model": "dpo",
}
"""Keys that one trainer of TRL has alone: trl 0.15.2 and 1.16.0 trainer/*_config.py;
KTO has those of a reference, too.  CPO is SimPO's trainer, which differs in what it makes of the same
log-probabilities (cpo_trainer.py cpo_loss).
"""
_TRL_SHARED = words(
    """
    beta max_prompt_length generate_during_eval label_smoothing reference_free disable_dropout
    """
)
_WORD = re.compile(r"(?<![a-z])(online[-_]?dpo|sft|dpo|kto|orpo|simpo|grpo|reward)(?![a-z])")
TRL_HARMLESS = (*_TRL_KEYS, *_TRL_SHARED, *names_in("trl.toml", "harmless_of_preferences"))


def llama_factory_task(keys: Keys, stage: str) -> Task | None:
    """The task of a ``stage`` of LLaMA-Factory that trains from preferences or rewards; ``None`` for another.

    Raises:
        NotModelledError: a loss or a reference that no formula covers.
    """
    if stage in ("rm", "ppo"):
        return "reward" if stage == "rm" else "ppo"
    if stage not in ("dpo", "kto", "orpo"):
        return None
    keys.refuse_switched_on(OTHER_REFERENCES)
    if stage != "dpo":
        return "kto" if stage == "kto" else "orpo"
    # Up to 0.7 the key was dpo_loss.
    name = "pref_loss" if keys.has("pref_loss") else "dpo_loss"
    loss = (keys.text(name) if keys.has(name) else None) or "sigmoid"
    if loss not in _LLAMA_FACTORY_LOSSES:
        raise keys.not_modelled(
            name, f"the loss '{show(loss)}' is not modelled; {', '.join(_LLAMA_FACTORY_LOSSES)} are"
        )
    return _LLAMA_FACTORY_LOSSES[loss]


def read_likelihood(keys: Keys, reading: Reading, stage: str) -> None:
    """``dpo_ftx`` and ``kto_ftx``: the likelihood of chosen sequences or good samples,
    taken anew from their logits.

    Since 0.8 (``pref_ftx``) it is a mean of what is there already.
    Source: hiyouga/LLaMA-Factory 0.7.1 (and b0d996666~1 of 2024-05) train/dpo/trainer.py and
    train/kto/trainer.py ``ftx_gamma``.

    Raises:
        InputFileError: a weight that is no number.
    """
    for name in ("dpo_ftx", "kto_ftx"):
        weight = keys.number(name)
        if name.startswith(stage) and weight is not None and weight > _LEAST_WEIGHT:
            reading.switch("pair_logps", "whole_twice", keys.where(name))


def read_chosen_likelihood(keys: Keys, reading: Reading) -> None:
    """``cpo_alpha``: SimPO's weight of the chosen sequences' cross-entropy, which is not taken where it is 0.

    Source: trl 0.9.6, 0.12.2 and 1.16.0 cpo_trainer.py concatenated_forward; axolotl 0.5.2
    core/trainer_builder.py and 0.19.0 core/builders/rl.py hand it on for SimPO alone.

    Raises:
        InputFileError: a weight that is no number.
    """
    if keys.number("cpo_alpha") == 0 and reading.value("task") in (None, "simpo"):
        reading.switch("chosen_likelihood", False, keys.where("cpo_alpha"))


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


def read_precomputed(keys: Keys, reading: Reading, *, single: bool) -> None:
    """``precompute_ref_log_probs``: no second model is loaded, and no step asks the model as it was.

    ``single``: the tool loads no second model for it.  Scripts of TRL up to 0.24 hand one over in a full
    fine-tune, which then stays.
    Source: trl 0.9.6, 0.15.2 and 0.24.0 trainer/dpo_trainer.py (``ref_model`` is None with adapters), 1.16.0
    (None whatever is trained, or let go before the first step); 0.24.0 scripts/dpo.py.

    Raises:
        NotModelledError: another task, or a second model that stays.
    """
    if not keys.flag(_PRECOMPUTE):
        return
    if not single or reading.value("task") not in (None, "dpo"):
        raise keys.not_modelled(_PRECOMPUTE, _PRECOMPUTED)
    reading.switch("caches_reference", True, keys.where(_PRECOMPUTE))
    reading.remark(keys.where(_PRECOMPUTE), ASKED_BEFORE)


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


_OF_PREFERENCES = ("dpo", "kto", "orpo", "simpo")


def said_by_path(keys: Keys) -> list[str]:
    """Words of a file's name and of the two folders that it is in that name a trainer, the nearest first."""
    parts = reversed(keys.path.absolute().parts[-3:])
    return [match[1] for part in parts if (match := _WORD.search(part.lower()))]


def has_prompts_alone(keys: Keys) -> bool:
    """Whether lengths of prompt and completion stand without one of both, as in GRPO's files.

    Source: trl 0.15.2 trainer/grpo_config.py, which has no max_length; those of preferences have it.
    """
    return any(map(keys.has, ("max_prompt_length", "max_completion_length"))) and not keys.has("max_length")


def trl_task(keys: Keys, reading: Reading, script: str = "") -> bool:
    """Enter the task of a file of TRL that trains from preferences; whether it is one.

    Such a file does not name its trainer: a key that one of them has alone tells it, or the name of the file
    or its folder, as recipes are laid out; of a command the task that its ``script`` names.

    Raises:
        NotModelledError: what no formula covers.
    """
    told = next((name for name in _TRL_KEYS if keys.has(name)), None)
    if told is None and keys.get("loss_type") == "simpo":  # of CPO's trainer alone
        told = "loss_type"
    shared = next((name for name in _TRL_SHARED if keys.has(name)), None)
    words = said_by_path(keys)
    if told is None and shared is None and not script and words[:1] in ([], ["sft"], ["grpo"]):
        return False
    keys.refuse_switched_on(_TRL_UNMODELLED)
    if script:
        reading.say("task", script, str(keys.path), "the script's name")
        return True
    named = next((word for word in words if word not in ("sft", "grpo")), None)
    if named is not None and named.startswith("online"):
        raise NotModelledError(f"{keys.path}: the path says {named}: {_GENERATED}")
    if named is not None:
        key = told or shared
        origin = keys.where(key) if key else str(keys.path)
        reading.say("task", named, origin, f"the path says {named}")
        reading.remark(origin, f"read as a file for {named}, as its path says; --task says another")
    elif told is not None:
        reading.say("task", _TRL_KEYS.get(told, "simpo"), keys.where(told), "of this trainer alone")
    else:
        why = "several trainers of preferences have this key"
        tasks = "dpo, kto, orpo, simpo or grpo" if has_prompts_alone(keys) else "dpo, kto, orpo or simpo"
        reading.needs["task"] = f"{keys.where(shared or '')}: {why}: say --task {tasks}"
        # A loss may be that of a trainer of one's own.
        if keys.as_written("loss_type") is None and not has_prompts_alone(keys):
            reading.either["task"] = (reading.needs["task"], _OF_PREFERENCES)
    return True
