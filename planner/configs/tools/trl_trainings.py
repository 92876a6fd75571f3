"""Files for trainers of TRL that are not modelled, told by keys that only their configurations have."""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from planner.errors import REFUSED_BY_TOOL, UsageError

ONLINE = "reinforcement learning other than GRPO (RLOO, PPO) is not modelled"
_FILTERS = "this file filters a data set and does not train; training is what is predicted"
_POLICY = "training by a reward model's scores is not modelled"
_DISTILLS = "distillation from a teacher is not modelled"
_ASYNC = "GRPO whose generation runs beside the update is not modelled"
_VALUES = "A2PO is not modelled"
_STEPS = "reward models of single steps are not modelled"
_TPO = "TPO, which compares three completions, is not modelled"
_BCO = "BCO is not modelled"

# Whatever their values: trl 0.15.2 and 1.16.0 trainer/*_config.py, f2cd577 (2026-07-24)
# experimental/*/*_config.py.  In this order, because online ones also have ``beta``, those that filter have
# keys of online ones (open-r1 scripts/pass_rate_filtering), and so have those that distill.
_OTHER_TRAININGS = {
    "pass_rate_min": _FILTERS,
    "pass_rate_max": _FILTERS,
    "teacher_model_name_or_path": _DISTILLS,
    "teacher_model_revision": _DISTILLS,
    "teacher_model_init_kwargs": _DISTILLS,
    "teacher_model_kind": _DISTILLS,
    "teacher_model_server_url": _DISTILLS,
    "teacher_tokenizer_name_or_path": _DISTILLS,
    "teacher_prompt_template": _DISTILLS,
    "teacher_sync_steps": _DISTILLS,
    "teacher_update_rate": _DISTILLS,
    "use_teacher_server": _DISTILLS,
    "use_uld_loss": _DISTILLS,
    "lmbda": _DISTILLS,
    "seq_kd": _DISTILLS,
    "kd_temperature": _DISTILLS,
    "rkl_advantage": _DISTILLS,
    "single_step_decomposition": _DISTILLS,
    "distillation_alpha": _DISTILLS,
    "distillation_mode": _DISTILLS,
    "distillation_topk": _DISTILLS,
    "distillation_weight": _DISTILLS,
    "distillation_objective": _DISTILLS,
    "generate_from_teacher": _DISTILLS,
    "use_successful_as_teacher": _DISTILLS,
    "loss_top_k": _DISTILLS,
    "loss_add_tail": _DISTILLS,
    "filter_empty": _DISTILLS,
    "max_staleness": _ASYNC,
    "max_inflight_tasks": _ASYNC,
    "weight_sync_steps": _ASYNC,
    "fork_threshold_tokens": _ASYNC,
    "heartbeat_stale_after_s": _ASYNC,
    "queue_maxsize": _ASYNC,
    "replay_buffer_size": "GRPO with a buffer of older completions is not modelled",
    "num_value_samples": _VALUES,
    "filter_all_incorrect": _VALUES,
    "rloo_k": ONLINE,
    "normalize_advantages": ONLINE,
    "reward_clip_range": ONLINE,
    "num_ppo_epochs": ONLINE,
    "cliprange": ONLINE,
    "cliprange_value": ONLINE,
    "sft_model_path": ONLINE,
    "whiten_rewards": ONLINE,
    "kl_coef": ONLINE,
    "kl_estimator": ONLINE,
    "vf_coef": ONLINE,
    "total_episodes": ONLINE,
    "response_length": ONLINE,
    "num_sample_generations": ONLINE,
    "num_mini_batches": ONLINE,
    "missing_eos_penalty": _POLICY,
    "mixture_coef": _POLICY,
    "reward_model_path": _POLICY,
    "step_separator": _STEPS,
    "train_on_last_step_only": _STEPS,
    "tpo_alpha": _TPO,
    "tpo_l_gamma": _TPO,
    "min_density_ratio": _BCO,
    "max_density_ratio": _BCO,
    "prompt_sample_size": _BCO,
}


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
