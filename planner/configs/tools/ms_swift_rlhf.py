"""Arguments of ``swift rlhf``: which task they ask for, and what of it is not modelled.

Keys and defaults: ms-swift 4.6.0 swift/arguments/rlhf_args.py and rlhf_trainers, which stand on TRL 0.29.1;
those of 3.12.6 (swift/llm/argument and trainers/rlhf_trainer, TRL 0.24.0) are the same but for entropies.
"""

from __future__ import annotations

from dataclasses import replace

from planner.configs.said_by_file import Reading
from planner.configs.shared.age import first_held
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.configs.shared.preference_tasks import LIGER, OTHER_REFERENCE, UNPADDED, read_chosen_likelihood
from planner.configs.shared.rollouts import read_rollout
from planner.configs.tools.trl_tasks import read_divergence, refuse_written
from planner.domain.recipes.recipe import Task
from planner.errors import show

# rlhf_type -> task.  CPO is SimPO's trainer with another loss of the same log-probabilities.
_TASKS: dict[str, Task] = {
    "dpo": "dpo",
    "kto": "kto",
    "orpo": "orpo",
    "simpo": "simpo",
    "cpo": "simpo",
    "rm": "reward",
    "grpo": "grpo",
    "gkd": "gkd",
}
_OTHERS = {
    "ppo": "PPO of ms-swift, whose value model is another whole model, is not modelled",
}
# Losses of the log-probabilities that are there, which move nothing (dpo_trainer.py dpo_loss;
# trl 0.29.1 experimental/cpo/cpo_trainer.py cpo_loss, kto/kto_trainer.py kto_loss).
_DPO_LOSSES = (
    *("sigmoid", "robust", "exo_pair", "hinge", "ipo", "bco_pair", "sppo_hard", "nca_pair", "aot_unpaired"),
    *("aot", "apo_zero", "apo_down", "discopop", "sft"),
)
_CPO_LOSSES = ("sigmoid", "hinge", "ipo", "simpo")
_LOSSES = {"dpo": _DPO_LOSSES, "kto": ("kto",), "cpo": _CPO_LOSSES, "simpo": _CPO_LOSSES}
# Keys that ``swift rlhf`` alone takes; the others end at an argument that they do not know.
_OTHER_VERBS = ("sft", "pt")
_MARKS = names_in("ms-swift.toml", "marks_of_rlhf")
_HARMLESS = names_in("ms-swift.toml", "harmless_of_rlhf")
_UNMODELLED = texts_in("ms-swift.toml", "unmodelled_of_rlhf")
_STUDENT_UNMODELLED = texts_in("ms-swift.toml", "unmodelled_of_students")
_GRPO_HARMLESS = names_in("ms-swift.toml", "harmless_of_grpo")
_WHILE_GENERATING = ("offload_model", "offload_optimizer", "sleep_level")
_RLHF_ARGS = "ms-swift 4.6.0 swift/arguments/rlhf_args.py"
_PAIRS = ("dpo", "kto", "orpo", "simpo", "cpo")
_REFERS = ("dpo", "kto", "grpo")
"""Trainers that have a reference; the same take samples end to end (rlhf_args.py _check_padding_free)."""


def read_rlhf(keys: Keys, reading: Reading) -> bool:
    """Enter the task where the arguments are those of ``swift rlhf``; whether they are.

    Raises:
        UsageError: a job that ms-swift does not start.
        NotModelledError: a trainer, a loss or a reference that no formula covers.
    """
    mark = first_held(keys, _MARKS)
    if mark is None:
        return False
    if reading.script in _OTHER_VERBS:
        raise keys.stops(
            mark, f"swift {reading.script} stops at an argument that swift rlhf alone takes: say swift rlhf"
        )
    kind = "dpo" if (said := keys.text("rlhf_type")) is None else said
    if kind in _OTHERS:
        raise keys.not_modelled("rlhf_type", _OTHERS[kind])
    if kind not in _TASKS:
        raise keys.wrong("rlhf_type", ", ".join((*_TASKS, *_OTHERS)), kind or "empty")
    note = f"{kind} of swift rlhf" if keys.has("rlhf_type") else "of swift rlhf alone, whose rlhf_type is dpo"
    reading.say("task", _TASKS[kind], keys.where("rlhf_type" if keys.has("rlhf_type") else mark), note)
    if kind == "gkd":
        _read_student(keys, reading)
    _read_losses(keys, kind)
    _refuse_other_references(keys, kind)
    _read_joined(keys, reading, kind)
    if keys.flag("use_liger_kernel"):
        raise keys.not_modelled("use_liger_kernel", LIGER)
    read_chosen_likelihood(keys, reading)
    keys.skip(_HARMLESS)
    if kind not in ("grpo", "gkd"):
        # grpo_trainer.py and gkd_trainer.py alone ask for them (offload_context).
        keys.skip(_WHILE_GENERATING)
    if keys.has("train_type") and kind in _PAIRS:
        # Until c60ceecfe of 2025-05 (rlhf_trainer/dpo_trainer.py get_batch_logps).
        reading.remark(
            keys.where("train_type"), "before 3.5 it kept log-probabilities of all words: more memory"
        )
    return True


def read_swift_rollout(keys: Keys, reading: Reading) -> None:
    """What GRPO of ms-swift generates: prompts of up to ``max_length`` tokens, and completions behind them.

    Source: ms-swift 4.6.0 swift/arguments/rlhf_args.py _init_grpo, _init_rollout, _set_default;
    rlhf_trainers/args_mixin.py and grpo_trainer.py.
    rollout_mixin.py _template_context: ``max_length`` holds for generation alone.
    Ignored: old log-probabilities are asked for where they follow from the loss, too.

    Raises:
        UsageError: a job that ms-swift does not start.
        NotModelledError: a way to generate, or a loss, that is not modelled.
    """
    keys.refuse_switched_on(_UNMODELLED)
    if (groups := keys.count("move_model_batches")) is not None:
        reading.switch("vllm_groups", groups, keys.where("move_model_batches"))
    entropies = "log_entropy" if keys.is_on("log_entropy") else "top_entropy_quantile"
    asked = keys.is_on("log_entropy") or (keys.number("top_entropy_quantile") or 1.0) < 1
    if asked and not keys.has("train_type"):
        reading.switch("completion_logps", "in_place", keys.where(entropies))
    if not keys.has("beta"):
        reading.default("compare_reference", True, f"{_RLHF_ARGS}: beta is 0.04")
    if keys.flag("use_vllm") and not keys.has("vllm_mode"):
        raise keys.stops("use_vllm", "ms-swift stops at it without vllm_mode")
    if not keys.has("gradient_accumulation_steps"):
        reading.default("grad_accum", 1, f"{_RLHF_ARGS}: gradient_accumulation_steps of GRPO")
    reading.needs.pop("seq", None)
    read_rollout(keys, reading, old=False, prompt="max_length")
    _read_longest_rollout(keys, reading)
    if keys.has("max_length") and keys.text("truncation_strategy") != "delete":
        text = "a longer prompt is cut where completions are generated, and trained on whole: none is counted"
        reading.remark(keys.where("max_length"), text)
    if reading.value("generator") == "vllm":
        reading.default(
            "vllm_memory", 0.9, "ms-swift 4.6.0 rlhf_trainers/args_mixin.py: vllm_gpu_memory_utilization"
        )
        if keys.is_on("sleep_level"):
            reading.say("vllm_sleep", True, keys.where("sleep_level"))
        _read_offloads(keys, reading)
    keys.skip((*_GRPO_HARMLESS, *_WHILE_GENERATING))


def _read_offloads(keys: Keys, reading: Reading) -> None:
    """What is in host RAM while vLLM generates: counted as on the card, which is more; without vLLM beside it
    less is counted than is needed.

    Source: ms-swift 4.6.0 rlhf_trainers/grpo_trainer.py offload_context, around rollout_mixin.py _fast_infer.
    """
    for name in ("offload_model", "offload_optimizer"):
        if keys.is_on(name):
            where = keys.where(name)
            text = (
                "counted as on the card while vLLM generates, which is more; host RAM for it is not counted"
            )
            reading.remark(where, text)
            reading.less["generator"] = (where, "vllm-server")


def refuse_flat_weights(keys: Keys, reading: Reading) -> None:
    """Raises: NotModelledError where weights leave parameters that ZeRO keeps in one buffer.

    The buffer stays, and the copies that come back lie beside it until the step ends.
    Source: deepspeed 0.19.8 runtime/zero/stage_1_and_2.py _update_model_bit16_weights.
    """
    flat = reading.value("sharding") in ("zero1", "zero2") and reading.value("generator") == "vllm"
    if flat and keys.is_on("offload_model"):
        text = "beside ZeRO-1 and 2 it keeps a second copy of the weights, which is not modelled; zero3 is"
        raise keys.not_modelled("offload_model", text)


def _read_longest_rollout(keys: Keys, reading: Reading) -> None:
    """A vLLM in the same process takes no prompt of ``vllm_max_model_len`` tokens, and ends completions
    there.  Rows are padded whole, so none is longer.

    Source: ms-swift 4.6.0 swift/infer_engine/infer_engine.py set_default_max_tokens.
    """
    key = "vllm_max_model_len"
    longest, said = keys.count(key), reading.said.get("seq")
    if longest is None or reading.value("generator") != "vllm":
        return
    if longest <= int(reading.value("completion_length") or 0):
        return
    note = "prompt and completion together, as vLLM generates them"
    if said is not None and said.value > longest:
        reading.said["seq"] = replace(said, value=longest, origin=keys.where(key), note=note)
    elif said is None and "seq" in reading.needs:
        del reading.needs["seq"]
        reading.say("seq", longest, keys.where(key), note)


def _read_student(keys: Keys, reading: Reading) -> None:
    """A student and its teacher, another model that is loaded as the student is.

    Source: ms-swift 4.6.0 swift/arguments/rlhf_args.py _check_teacher; rlhf_trainers/gkd_trainer.py.
    """
    if keys.flag("seq_kd"):
        raise keys.stops("seq_kd", "ms-swift stops at it: leave it out")
    keys.refuse_switched_on(_STUDENT_UNMODELLED)
    if keys.text("teacher_model") in (None, keys.get("model")):
        raise keys.not_modelled(
            "teacher_model", "a student that teaches itself is not modelled: name another"
        )
    reading.take(keys, {"teacher_model": "teacher_model"})
    refuse_written(keys)
    read_divergence(keys, reading, "_in_pieces")
    if keys.text("truncation_strategy") in ("left", "right"):
        text = "no sample of a student is cut: counted with as many tokens as max_length"
        reading.remark(keys.where("truncation_strategy"), text)
    keys.skip(("temperature", "teacher_model_type", "teacher_model_revision"))


def _read_losses(keys: Keys, kind: str) -> None:
    for loss in keys.names("loss_type"):
        if kind in _LOSSES and loss not in _LOSSES[kind]:
            text = f"the loss '{show(loss)}' of {kind} is not modelled; {', '.join(_LOSSES[kind])} are"
            raise keys.not_modelled("loss_type", text)


def _refuse_other_references(keys: Keys, kind: str) -> None:
    """The reference of a full fine-tune is the model itself unless ``ref_model`` says another.

    Source: swift/arguments/rlhf_args.py __post_init__, pipelines/train/rlhf.py prepare_model.
    """
    if keys.has("ref_adapters"):
        raise keys.not_modelled("ref_adapters", OTHER_REFERENCE)
    named = keys.text("ref_model")
    if named is None:
        return
    if kind not in _REFERS or keys.text("tuner_type" if keys.has("tuner_type") else "train_type") != "full":
        raise keys.stops(
            "ref_model", f"ms-swift stops at it in {kind} with adapters or without a reference: leave it out"
        )
    if named != keys.get("model"):
        raise keys.not_modelled("ref_model", OTHER_REFERENCE)


def _read_joined(keys: Keys, reading: Reading, kind: str) -> None:
    """Samples that are laid end to end; a pack holds whole pairs.

    Source: swift/dataset/packing.py create_packed_idx (both lengths of a pair together).
    """
    name = next((each for each in ("packing", "padding_free") if keys.flag(each)), None)
    if name is None:
        return
    if name == "padding_free":
        reading.cut_samples = "packed"
    if kind == "gkd":
        reading.say("padding", "packed", keys.where(name), "sequences lie end to end")
        return
    if kind not in _REFERS:
        raise keys.stops(name, f"ms-swift refuses it for {kind}")
    if kind != "dpo":
        raise keys.not_modelled(name, UNPADDED)
    reading.say("padding", "packed", keys.where(name), "sequences lie end to end")
    length = keys.count("packing_length") or keys.count("max_length")
    if name == "packing" and length is not None:
        reading.say(
            "seq", max(length // 2, 1), keys.where(name), f"a pack of {length} tokens holds whole pairs"
        )
        reading.remark(keys.where(name), "counted as one pair in each pack, of half its length each")
