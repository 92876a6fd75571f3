"""Which trainer of TRL a file is for, by keys that only some of them have or by its path."""

from __future__ import annotations

import re

from planner.configs.said_by_file import Reading
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.domain.recipes.recipe import Task
from planner.errors import REFUSED_BY_TOOL, NotModelledError, UsageError
from planner.words import words

ONLINE = "reinforcement learning other than GRPO (RLOO, PPO) is not modelled"

_OTHER_TRAININGS = texts_in("trl.toml", "other_trainings")


STUDENT = ("teacher_model_name_or_path", "lmbda", "seq_kd")
"""Keys that ``GKDTrainer`` has, too."""
WRITES = (
    "completions that the student (lmbda, 0.5 where nothing is said) or its teacher writes are not modelled; "
    "say lmbda 0 where the data have them"
)
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
_LOSSES: dict[str, Task] = {
    "simpo": "simpo",
    **dict.fromkeys(words("kto_pair bco_pair nca_pair aot_pair exo_pair sppo_hard robust discopop"), "dpo"),
}
"""Values of ``loss_type`` that one trainer has alone: trl 0.8.6, 0.15.2 and 1.16.0 trainer/dpo_config.py and
dpo_trainer.py, cpo_config.py and kto_config.py.
"""
_TRL_SHARED = words(
    """
    beta max_prompt_length generate_during_eval label_smoothing reference_free disable_dropout
    """
)
_WORD = re.compile(r"(?<![a-z])(online[-_]?dpo|sft|dpo|kto|orpo|simpo|grpo|reward)(?![a-z])")
TRL_HARMLESS = (*_TRL_KEYS, *_TRL_SHARED, *names_in("trl.toml", "harmless_of_preferences"))


_OF_PREFERENCES = ("dpo", "kto", "orpo", "simpo")


def refuse_other_trainings(keys: Keys, *, but: tuple[str, ...] = ()) -> None:
    """Refuse a file for another trainer, ``but`` for keys of the one that it is for.

    Raises:
        NotModelledError: names the key that tells it.
    """
    for name, why in _OTHER_TRAININGS.items():
        if keys.has(name) and name not in but:
            raise keys.not_modelled(name, why)
    # A key of scripts of one's own, which no version of TRL has.
    keys.refuse_switched_on({"use_unsloth": "Unsloth is not modelled here; --stack unsloth describes it"})


def read_student(keys: Keys, reading: Reading, named: str) -> bool:
    """Whether the script's name, which says the task ``named``, is that of TRL's GKD; then its teacher is
    entered, and the loss.

    Source: trl 1.16.0 examples/scripts/gkd.py, experimental/gkd/gkd_config.py.

    Raises:
        UsageError: no teacher.
        NotModelledError: completions that are generated while a student learns.
    """
    if named != "gkd":
        return False
    reading.say("task", "gkd", str(keys.path), "the script's name")
    if keys.text("teacher_model_name_or_path") is None:
        raise UsageError(
            f"{keys.path}: teacher_model_name_or_path is not given, which GKD needs [{REFUSED_BY_TOOL}]"
        )
    reading.take(keys, {"teacher_model_name_or_path": "teacher_model"})
    refuse_written(keys)
    if keys.flag("seq_kd"):
        raise keys.not_modelled("seq_kd", WRITES)
    read_divergence(keys, reading)
    keys.skip(("temperature", "max_new_tokens"))
    return True


def refuse_written(keys: Keys) -> None:
    """The share of steps that train on what the student writes: half of them where nothing is said.

    Raises:
        NotModelledError: any.
    """
    if keys.has("lmbda") and keys.number("lmbda") == 0:
        return
    raise keys.not_modelled("lmbda", WRITES)


def read_divergence(keys: Keys, reading: Reading, pieces: str = "") -> None:
    """``beta``: 0 and 1 need no mixture of both; ``pieces``: end of the switch's values."""
    beta = keys.number("beta")
    if beta in (0, 1):
        value = "reverse" if beta else "forward"
        reading.switch("distillation", f"{value}{pieces}", keys.where("beta"))


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
    """
    told = next((name for name in _TRL_KEYS if keys.has(name)), None)
    by_loss = _LOSSES.get(str(keys.get("loss_type")))
    shared = next((name for name in _TRL_SHARED if keys.has(name)), None)
    words = said_by_path(keys)
    if (
        told is None
        and by_loss is None
        and shared is None
        and not script
        and words[:1] in ([], ["sft"], ["grpo"])
    ):
        return False
    keys.refuse_switched_on(_TRL_UNMODELLED)
    if script:
        reading.say("task", script, str(keys.path), "the script's name")
        return True
    if by_loss is not None:
        reading.say("task", by_loss, keys.where("loss_type"), "a loss of this trainer alone")
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
        reading.say("task", _TRL_KEYS[told], keys.where(told), "of this trainer alone")
    else:
        why = "several trainers of preferences have this key"
        tasks = "dpo, kto, orpo, simpo or grpo" if has_prompts_alone(keys) else "dpo, kto, orpo or simpo"
        reading.needs["task"] = f"{keys.where(shared or '')}: {why}: say --task {tasks}"
        # A loss may be that of a trainer of one's own.
        if keys.as_written("loss_type") is None and not has_prompts_alone(keys):
            reading.either["task"] = (reading.needs["task"], _OF_PREFERENCES)
    return True
