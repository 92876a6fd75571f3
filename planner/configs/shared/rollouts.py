"""Keys of GRPO, in files of TRL and in the ``trl`` section of Axolotl's: what is generated,
who generates it, and who scores it.

Keys and defaults: trl 0.15.2 to 0.17.0, 0.24.0 and 1.16.0 trainer/grpo_config.py, 1.16.0 scripts/grpo.py;
axolotl 0.19.0 utils/schemas/trl.py and core/trainers/grpo/__init__.py.
"""

from __future__ import annotations

import re

from planner.configs.said_by_file import Reading, Stop
from planner.configs.shared.age import first_held
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.domain.model import ModelSpec

_CONFIG = "trl 1.16.0 trainer/grpo_config.py"
UP_TO_0_17 = "vllm_device"
"""A key of GRPO from TRL 0.14 to 0.17; read as 0.15 and later, where a batch holds completions."""
_FIRST_CARD = "cuda:0"
_SINCE_0_26 = (
    *("num_generations_eval", "vllm_max_model_length", "vllm_importance_sampling_mode", "log_unique_prompts"),
    *("use_bias_correction_kl", "multi_objective_aggregation", "off_policy_mask_threshold"),
    "max_tool_calling_iterations",
)
"""Keys that no configuration of GRPO has before TRL 0.26 (trl 0.25.0 and 0.26.0 trainer/grpo_config.py)."""
_PROMPTS = "prompts are not cut, so the longest one decides: say --seq, which holds prompt and completion"
_UNMODELLED = texts_in("trl.toml", "unmodelled_of_rollouts")
_SHARED = {
    "num_generations": "generations",
    "num_iterations": "iterations",
    "steps_per_generation": "generation_steps",
}
HARMLESS = names_in("trl.toml", "harmless_of_rollouts")


def read_rollout(
    keys: Keys, reading: Reading, *, old: bool, prompt: str = "max_prompt_length", mode: str = ""
) -> None:
    """Enter what a file or a section says about generation; ``old``: it has a key that TRL 0.27 or a later
    one dropped; ``prompt``: the key to whose tokens prompts are cut; ``mode``: of vLLM, where the tool has
    one of its own.

    Raises:
        NotModelledError: a way to generate, or a loss, that is not modelled.
    """
    keys.refuse_switched_on(_UNMODELLED)
    _read_arguments(keys)
    _read_dropout(keys, reading)
    reading.take(keys, _SHARED)
    _read_sequences(keys, reading)
    _read_reference(keys, reading, old=old)
    _read_completion(keys, reading, prompt, old=old)
    _read_generator(keys, reading, mode, old=old)
    _read_rewards(keys, reading)
    keys.skip(HARMLESS)


def _read_arguments(keys: Keys) -> None:
    """``generation_kwargs``, of which tokens that end a completion move nothing: all are counted whole."""
    name = "generation_kwargs"
    part = keys.part(name) if keys.has(name) else None
    if part is None:
        return
    part.skip(("stop_token_ids",))
    if part.left_over_here():
        raise keys.not_modelled(name, "arguments of generation are not read from a file")


def _read_dropout(keys: Keys, reading: Reading) -> None:
    """``disable_dropout``: modules of dropout, those of adapters among them, hand on what they are given; of
    a model that has some of its own that is not modelled.

    Source: trl 0.17.0, 0.24.0 and 1.16.0 trainer/grpo_trainer.py, behind ``get_peft_model``;
    trainer/utils.py disable_dropout_in_model sets their probability to zero.
    """
    name = "disable_dropout"
    if not keys.flag(name):
        return
    where = keys.where(name)
    if reading.value("method") == "lora":
        reading.said.pop("lora_dropout", None)
        reading.say("lora_dropout", 0.0, where, "switched off in the adapters, too")
    sentence = f"{where}: GRPO without the dropout that this model has is not modelled: leave it out"
    reading.stops.append(Stop(_drops_itself, sentence, by_tool=False))


def _drops_itself(model: ModelSpec) -> bool:
    """Whether a model has modules of dropout, be they over the residual width or in attention."""
    blocks = [group.block for group in model.groups]
    own = any(block.dropouts or block.attention.dropout for block in blocks)
    return (own or model.embedding_dropout) and model.drops_by_module


def _read_sequences(keys: Keys, reading: Reading) -> None:
    """``generation_batch_size``: how many micro-batches it makes depends on the GPUs.

    Source: trl 0.24.0 and 1.16.0 trainer/grpo_config.py ``__post_init__``.
    """
    name = "generation_batch_size"
    if (sequences := keys.count(name)) is None:
        return
    if keys.has("steps_per_generation"):
        raise keys.stops(name, "not beside steps_per_generation")
    reading.generated = (sequences, keys.where(name))


def _read_reference(keys: Keys, reading: Reading, *, old: bool) -> None:
    """``beta``, unless the tool has settled it already."""
    beta = keys.number("beta")
    if reading.value("compare_reference") is not None:
        return
    if beta is not None:
        reading.say("compare_reference", beta != 0, keys.where("beta"))
    elif keys.has(UP_TO_0_17):
        # Its last version has it beside a beta of 0.04.
        reading.default("compare_reference", True, f"trl 0.17.0 trainer/grpo_config.py: beta, {UP_TO_0_17}")
    elif old and first_held(keys, _SINCE_0_26) is None:
        ages = "beta is 0.04 up to TRL 0.18 and 0 since"
        reading.needs["compare_reference"] = (
            f"{keys.path}: {ages}: say --compare-reference or --no-compare-reference"
        )
    else:
        reading.default("compare_reference", False, f"{_CONFIG}: beta")


def _read_completion(keys: Keys, reading: Reading, cut: str, *, old: bool) -> None:
    """Lengths; up to TRL 0.25 prompts are cut to ``max_prompt_length``, which is 512 where nothing is said.
    TRL 0.26 and 0.27 have the key, and cut nothing (grpo_trainer.py of 0.25.0 and of 0.26.0).
    """
    cuts = old and first_held(keys, _SINCE_0_26) is None
    completion, prompt = keys.count("max_completion_length"), keys.count(cut)
    if completion is not None:
        reading.say("completion_length", completion, keys.where("max_completion_length"))
    elif old:
        completion = 256
        reading.default(
            "completion_length", completion, "trl 0.24.0 trainer/grpo_config.py: max_completion_length"
        )
    else:
        completion = 512
        reading.default("completion_length", completion, f"{_CONFIG}: max_completion_length")
    reading.said.pop("seq", None)
    if prompt is None and (not cuts or keys.holds(cut)):
        reading.needs["seq"] = f"{keys.path}: {_PROMPTS}"
    elif prompt is None:
        reading.default("seq", completion + 512, "trl 0.24.0 trainer/grpo_config.py: max_prompt_length")
    else:
        where = keys.where(cut)
        reading.say(
            "seq", completion + prompt, where, f"{prompt} of the prompt and {completion} of the completion"
        )
        if old and not cuts:
            reading.remark(where, "TRL 0.26 and 0.27 cut no prompt, so longer ones need more than is counted")


def _read_generator(keys: Keys, reading: Reading, unsaid: str, *, old: bool) -> None:
    mode, share = keys.text("vllm_mode") or unsaid or None, keys.get("vllm_gpu_memory_utilization")
    device = re.fullmatch(r"cuda:([1-9]\d?)", str(keys.get(UP_TO_0_17)))
    if keys.get(UP_TO_0_17) == _FIRST_CARD:
        # trl 0.15.2 trainer/grpo_trainer.py warns that this one trains, too, and goes on.
        mode, share = "colocate", 0.9 if share is None else share
    if not keys.flag("use_vllm"):
        reading.default("generator", "transformers", f"{_CONFIG}: use_vllm")
        return
    if mode not in (None, "server", "colocate"):
        raise keys.wrong("vllm_mode", "server or colocate", mode)
    if mode is None:
        mode = "server" if old else "colocate"
        ages = "the server up to TRL 0.29, colocate since 1.0"
        reading.remark(
            keys.where("use_vllm"),
            f"vllm_mode is left out, taken as {mode}: {ages}; --generator says another",
        )
    reading.say("generator", "vllm" if mode == "colocate" else "vllm-server", keys.where("use_vllm"))
    if mode == "server":
        # trl 0.15.2 trainer/grpo_trainer.py: the device behind those of the processes, or an error.
        origin = keys.where(UP_TO_0_17 if device else "use_vllm")
        reading.served = (origin, int(device[1]) if device else 0)
        reading.remark(
            keys.where("use_vllm"), "generation on other cards: neither its memory nor its time is counted"
        )
        return
    if share is not None:
        reading.say("vllm_memory", share, keys.where("vllm_gpu_memory_utilization"))
    if keys.flag("vllm_enable_sleep_mode"):
        reading.say("vllm_sleep", True, keys.where("vllm_enable_sleep_mode"))
    remark_divided(keys, reading, "vllm_tensor_parallel_size")


def remark_divided(keys: Keys, reading: Reading, key: str) -> None:
    """Say how a vLLM that several GPUs share is counted; ``key``: of their number."""
    if (gpus := keys.count(key) or 1) > 1:
        reading.say("vllm_tensor_parallel", gpus, keys.where(key))
        text = "counted as if each GPU generated for itself: vLLM's share of each is the same"
        reading.remark(keys.where(key), text)


def _read_rewards(keys: Keys, reading: Reading) -> None:
    """A model that scores, by its key or among functions; a function is a name, or a path with dots.

    Axolotl takes what it cannot import for a model.
    """
    own = keys.text("reward_model_name_or_path")
    found = [("reward_model_name_or_path", own)] if own else []
    found += [("reward_funcs", each) for each in keys.names("reward_funcs") if "/" in each]
    if len(found) > 1:
        raise keys.not_modelled(found[1][0], "several reward models are not modelled; one is")
    for name, model in found:
        reading.say("reward_model", model, keys.where(name))
