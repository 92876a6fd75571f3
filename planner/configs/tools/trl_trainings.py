"""Files for trainers of TRL that are not modelled, told by keys that only their configurations have."""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.key_tables import texts_in
from planner.configs.shared.keys import Keys
from planner.errors import REFUSED_BY_TOOL, UsageError

ONLINE = "reinforcement learning other than GRPO (RLOO, PPO) is not modelled"

_OTHER_TRAININGS = texts_in("trl.toml", "other_trainings")


STUDENT = ("teacher_model_name_or_path", "lmbda", "seq_kd")
"""Keys that ``GKDTrainer`` has, too."""
WRITES = (
    "completions that the student (lmbda, 0.5 where nothing is said) or its teacher writes are not modelled; "
    "say lmbda 0 where the data have them"
)


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
