"""``stage: ppo`` of LLaMA-Factory: its own loop around the trainer of TRL 0.9.6.

Source: llamafactory 0.9.2 train/ppo, hparams/finetuning_args.py, generating_args.py, parser.py; the same keys
in 0.7.1.
"""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from planner.configs.shared.preference_tasks import OTHER_REFERENCES
from planner.errors import REFUSED_BY_TOOL, UsageError, show

_GENERATING = "llamafactory 0.9.2 hparams/generating_args.py"
_FINETUNING = "llamafactory 0.9.2 hparams/finetuning_args.py"


def read_ppo(keys: Keys, reading: Reading, *, old: bool) -> None:
    """Enter what is generated and how often it is trained on; after ``cutoff_len``, which cuts prompts.

    Since 0.9.2 the collator refers to the model, and a huggingface_hub that writes arguments of trainers down
    copies both (0.30.2 hub_mixin.py _encode_arg; 0.29.3, of the time of 0.9.2, does not).

    Raises:
        UsageError: a job that LLaMA-Factory does not start.
        NotModelledError: software of today, or a reward model that is no adapter.
    """
    if not old:
        raise keys.not_modelled(
            "stage", "PPO is modelled of LLaMA-Factory 0.7 to 0.9.2, of which this file has no key"
        )
    keys.refuse_switched_on(OTHER_REFERENCES)
    scorer = keys.text("reward_model_type") or "lora"
    if scorer != "lora":
        raise keys.not_modelled(
            "reward_model_type", f"a reward model of type {show(scorer)} is not modelled; lora is"
        )
    if not keys.has("reward_model"):
        raise UsageError(
            f"{keys.path}: reward_model is not given, which LLaMA-Factory needs for PPO [{REFUSED_BY_TOOL}]"
        )
    if reading.value("method") != "lora":
        raise keys.stops(
            "finetuning_type",
            "LLaMA-Factory scores with an adapter in LoRA training alone: say lora, or reward_model_type: "
            "full",
        )
    reading.remark(
        keys.where("reward_model"),
        "the reward model's adapter is counted as large as the one that is trained",
    )
    reading.take(keys, {"ppo_epochs": "iterations"})
    reading.default("iterations", 4, f"{_FINETUNING}: ppo_epochs")
    _read_lengths(keys, reading)


def _read_lengths(keys: Keys, reading: Reading) -> None:
    """A prompt is cut to ``cutoff_len``; completions come on top (data/processor/processor_utils.py)."""
    new = keys.get("max_new_tokens")
    if isinstance(new, int) and not isinstance(new, bool) and new < 1:
        raise keys.not_modelled(
            "max_new_tokens", "without it prompt and completion share max_length, which is not modelled"
        )
    new = keys.count("max_new_tokens") or 1024
    if keys.has("max_new_tokens"):
        reading.say("completion_length", new, keys.where("max_new_tokens"))
    else:
        reading.default("completion_length", new, f"{_GENERATING}: max_new_tokens")
    prompt = keys.count("cutoff_len")
    if prompt is not None:
        del reading.said["seq"]
        note = f"{prompt} of the prompt and {new} of the completion"
        reading.say("seq", prompt + new, keys.where("cutoff_len"), note)
