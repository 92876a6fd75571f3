"""Stages of LLaMA-Factory that train from preferences or rewards."""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.key_tables import texts_in
from planner.configs.shared.keys import Keys
from planner.domain.recipes.recipe import Task
from planner.errors import REFUSED_BY_TOOL, UsageError, show

_GENERATING = "llamafactory 0.9.2 hparams/generating_args.py"
_FINETUNING = "llamafactory 0.9.2 hparams/finetuning_args.py"

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
OTHER_REFERENCES = texts_in("llama-factory.toml", "other_references")
# A smaller weight of a likelihood leaves it out.
_LEAST_WEIGHT = 1e-6


def read_ppo(keys: Keys, reading: Reading, *, old: bool) -> None:
    """Enter what is generated and how often it is trained on; after ``cutoff_len``, which cuts prompts.

    Its own loop is around the trainer of TRL 0.9.6.
    Source: llamafactory 0.9.2 train/ppo, hparams/finetuning_args.py, generating_args.py, parser.py; the same
    keys in 0.7.1.
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
