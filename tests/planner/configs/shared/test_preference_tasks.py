"""Files that train from preferences: the task that each tool's keys ask for, and what follows from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.api.checks import CheckJob, check_job
from planner.api.files import CheckOptions
from planner.domain.scenario import Scenario
from planner.errors import InputFileError, NotModelledError, UsageError
from planner.intake.given.request import from_flags
from tests.files import filled, read
from tests.jobs import resolved

LLAMA_FACTORY = "model_name_or_path: Qwen/Qwen2.5-0.5B\nfinetuning_type: lora\nbf16: true\ncutoff_len: 1024\n"
PLAIN = "lora_mlp_kernel: false\n"
AXOLOTL = "base_model: Qwen/Qwen2.5-0.5B\nsequence_len: 512\nadapter: lora\nmicro_batch_size: 2\nbf16: true\n"
TRL = "model_name_or_path: Qwen/Qwen2.5-0.5B\nuse_peft: true\nmax_length: 512\n"


def scenario_of(folder: Path, text: str, **flags: Any) -> Scenario:
    """The job of a file on one card."""
    return filled(read(folder, text), {"gpu": "a100-80-sxm", **flags})


@pytest.mark.parametrize(
    ("text", "task"),
    [
        (LLAMA_FACTORY + "stage: dpo\n", "dpo"),
        (LLAMA_FACTORY + "stage: dpo\npref_loss: ipo\n", "dpo"),
        (LLAMA_FACTORY + "stage: dpo\npref_loss: robust\n", "dpo"),
        (LLAMA_FACTORY + "stage: dpo\npref_loss: orpo\n", "orpo"),
        (LLAMA_FACTORY + "stage: rm\n", "reward"),
        (LLAMA_FACTORY + "stage: dpo\npref_loss: simpo\n", "simpo"),
        (LLAMA_FACTORY + "stage: dpo\ndpo_loss: kto_pair\n", "dpo"),
        (LLAMA_FACTORY + "stage: orpo\n", "orpo"),
        (LLAMA_FACTORY + "stage: kto\n", "kto"),
        (LLAMA_FACTORY + "stage: pt\n", "pretrain"),
        (LLAMA_FACTORY, "sft"),
        (AXOLOTL + "rl: dpo\n", "dpo"),
        (AXOLOTL + "rl: ipo\n", "dpo"),
        (AXOLOTL + "rl: orpo\n", "orpo"),
        (AXOLOTL + "rl: simpo\nsimpo_gamma: 1.0\n", "simpo"),
        (AXOLOTL + PLAIN + "reward_model: true\n", "reward"),
        (AXOLOTL + PLAIN + "process_reward_model: true\nnum_labels: 2\n", "prm"),
        (AXOLOTL, "sft"),
        (TRL + "precompute_ref_log_probs: false\n", "dpo"),
        (TRL + "desirable_weight: 1.0\n", "kto"),
        (TRL + "center_rewards_coefficient: 0.01\n", "reward"),
        (TRL, "sft"),
    ],
)
def test_the_task_of_a_file(tmp_path: Path, text: str, task: str) -> None:
    """A sample is a pair, except where the task says otherwise; nothing is packed, and dropout is off."""
    recipe = scenario_of(tmp_path, text).recipe
    assert recipe.task == task
    assert recipe.batch.is_paired == (task in ("dpo", "orpo", "simpo", "reward"))
    if task not in ("sft", "pretrain"):
        assert recipe.adapter is not None
        assert (recipe.batch.padding != "packed", recipe.adapter.dropout) == (True, 0.0)


def test_a_trl_file_that_names_no_trainer_is_asked(tmp_path: Path) -> None:
    """Several trainers have these keys; a flag or the path of a recipe says which."""
    with pytest.raises(UsageError, match="say --task dpo, kto, orpo or simpo"):
        scenario_of(tmp_path, TRL + "beta: 0.1\n")
    assert scenario_of(tmp_path, TRL + "beta: 0.1\n", task="orpo").recipe.task == "orpo"
    config = read(tmp_path, TRL + "beta: 0.1\n", "recipes/dpo/config.yaml")
    assert config.request.get("task") == "dpo"
    assert any("as its path says" in remark.text for remark in config.remarks)


def test_a_trl_file_of_any_trainer_is_answered_where_all_end_alike(tmp_path: Path) -> None:
    """And asked for where it names a loss, which may be that of a trainer of somebody's own."""
    job = CheckJob(str(tmp_path / "config.yaml"), CheckOptions())

    def needed(**flags: Any) -> float:
        subject = check_job(job, from_flags({"gpu": "a100-80-sxm", **flags})).subject
        assert subject is not None
        return float(subject.prediction.memory.must_have_bytes)

    Path(job.config).write_text(TRL + "beta: 0.1\n", encoding="utf-8")
    assert needed() == max(needed(task=task) for task in ("dpo", "kto", "orpo", "simpo"))
    Path(job.config).write_text(TRL + "beta: 0.1\nloss_type: rpo\n", encoding="utf-8")
    assert "say --task" in check_job(job, from_flags({"gpu": "a100-80-sxm"})).failure


def test_a_path_tells_a_trainer_that_generates_by_its_nearest_word(tmp_path: Path) -> None:
    """Of a file with lengths of prompts and completions alone; without such a word it is asked."""
    # TRL as above has a max_length, which GRPO's trainer does not.
    plain = TRL.replace("max_length: 512\n", "") + "max_prompt_length: 512\nmax_completion_length: 64\n"
    assert "max_length" not in plain
    config = read(tmp_path, plain, "recipes/grpo/config.yaml")
    assert (config.request.get("task"), config.request.get("completion_length")) == ("grpo", 64)
    assert any("as its path says" in remark.text for remark in config.remarks)
    assert read(tmp_path, plain, "grpo/dpo/config.yaml").request.get("task") == "dpo"
    assert read(tmp_path, TRL, "recipes/grpo/config.yaml").request.get("task") is None
    job = CheckJob(str(tmp_path / "config.yaml"), CheckOptions())
    Path(job.config).write_text(plain, encoding="utf-8")
    assert "simpo or grpo" in check_job(job, from_flags({"gpu": "a100-80-sxm"})).failure


@pytest.mark.parametrize(
    ("name", "key"),
    [("online_dpo.yaml", ""), ("recipes/online-dpo/config.yaml", ""), ("dpo.yaml", "max_new_tokens: 64\n")],
)
def test_pairs_that_are_generated_are_no_dpo(tmp_path: Path, name: str, key: str) -> None:
    """TRL's trainer of online DPO generates them in each step, and has a reward model beside."""
    with pytest.raises(NotModelledError, match="generated in training"):
        read(tmp_path, TRL + "beta: 0.1\n" + key, name)
    assert read(tmp_path, TRL + "beta: 0.1\n", "online/dpo.yaml").request.get("task") == "dpo"


PRECOMPUTED = TRL.replace("use_peft: true\n", "") + "precompute_ref_log_probs: true\n"


def test_a_reference_of_a_full_fine_tune_that_is_asked_before_training(tmp_path: Path) -> None:
    """TRL 1.16 loads no second model for it; scripts of older ones hand one over, which stays."""
    recipe = scenario_of(tmp_path, PRECOMPUTED, method="full").recipe
    assert recipe.caches_reference
    assert not recipe.has_reference
    with pytest.raises(NotModelledError, match=r"up to TRL 0\.26 with adapters only"):
        read(tmp_path, PRECOMPUTED + "torch_dtype: bfloat16\n")


def test_dropout_beside_preferences_is_refused(tmp_path: Path) -> None:
    """It is off unless a file says so; without any there is nothing to keep."""
    text = TRL + "beta: 0.1\ndisable_dropout: false\n"
    with pytest.raises(NotModelledError, match="disable_dropout"):
        read(tmp_path, text, "dpo.yaml")
    assert read(tmp_path, text + "lora_dropout: 0\n", "dpo.yaml").request.get("task") == "dpo"


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("dpo.yaml", "dpo"),
        ("reward/config.yaml", "reward"),
        ("recipes/dpo/sft.yaml", None),
        ("sft/train.yaml", None),
    ],
)
def test_a_file_is_told_by_its_name_alone(tmp_path: Path, name: str, task: str | None) -> None:
    """No key is needed: the word nearest to the file's name counts."""
    assert read(tmp_path, TRL, name).request.get("task") == task


def test_recipes_with_a_mixer_take_all_logits(tmp_path: Path) -> None:
    """They are for TRL up to 0.12, where those of DPO go with the function that made them."""
    for task, switch in (("dpo", "pair_logps=whole_let_go"), ("orpo", "pair_logps=whole")):
        config = read(tmp_path, TRL + "beta: 0.1\ndataset_mixer: {a: 1.0}\n", f"{task}/config.yaml")
        assert switch in config.request.get("switches")


def test_dropout_is_off_however_log_probabilities_are_taken(tmp_path: Path) -> None:
    """Trainers of TRL set it to zero; the loop of open-instruct that has the same kernel does not."""
    text = TRL + "lora_dropout: 0.05\nbf16: true\nbeta: 0.1\ndataset_mixer: {a: 1.0}\n"
    config = read(tmp_path, text, "dpo/config.yaml")
    recipe = filled(config, {"gpu": "a100-80-sxm"}).recipe
    own_loop = resolved(
        {"model": "qwen2.5-0.5b", "method": "lora", "task": "dpo", "stack": "open-instruct@2024"}
        | {"seq": 512, "gpu": "a100-80-sxm"}
    ).recipe
    assert recipe.adapter is not None
    assert own_loop.adapter is not None
    assert (recipe.adapter.dropout, own_loop.adapter.dropout > 0) == (0.0, True)


@pytest.mark.parametrize(
    ("text", "twice"),
    [
        ("stage: dpo\ndpo_ftx: 1.0\n", True),
        ("stage: kto\nkto_ftx: 0.1\n", True),
        ("stage: dpo\ndpo_ftx: 0.0\n", False),
        ("stage: dpo\nkto_ftx: 1.0\n", False),
        ("stage: dpo\npref_ftx: 1.0\n", False),
    ],
)
def test_a_likelihood_beside_the_loss(tmp_path: Path, text: str, twice: bool) -> None:
    """Old LLaMA-Factory takes it anew from logits; since 0.8 it is a mean of what is there."""
    scenario = scenario_of(tmp_path, LLAMA_FACTORY + text)
    assert (scenario.stack.pair_logps == "whole_twice") is twice
    assert (scenario.stack.id == "llama-factory") is ("pref_ftx" in text)


@pytest.mark.parametrize(
    ("text", "task", "taken"),
    [
        (TRL + "simpo_gamma: 0.5\ncpo_alpha: 0.0\n", "simpo", False),
        (TRL + "simpo_gamma: 0.5\ncpo_alpha: 0.5\n", "simpo", True),
        (TRL + "cpo_alpha: 1.0\n", "simpo", True),
        (TRL + "cpo_alpha: 0.0\n", "simpo", False),
        (TRL + "simpo_gamma: 0.5\n", "simpo", True),
        (TRL + "loss_type: simpo\n", "simpo", True),
        (TRL + "loss_type: simpo\ncpo_alpha: 0.0\n", "simpo", False),
        (AXOLOTL + "rl: simpo\nsimpo_gamma: 1.0\ncpo_alpha: 0\n", "simpo", False),
        (AXOLOTL + "rl: simpo\nsimpo_gamma: 1.0\n", "simpo", True),
        (AXOLOTL + "rl: orpo\ncpo_alpha: 0\n", "orpo", True),
        (LLAMA_FACTORY + "stage: dpo\npref_loss: simpo\n", "simpo", False),
    ],
)
def test_the_likelihood_of_chosen_sequences(tmp_path: Path, text: str, task: str, taken: bool) -> None:
    """SimPO of TRL takes it by default, and not where its weight is 0; LLaMA-Factory never does."""
    scenario = scenario_of(tmp_path, text)
    assert (scenario.recipe.task, scenario.stack.chosen_likelihood) == (task, taken)


def test_a_weight_that_is_no_number(tmp_path: Path) -> None:
    """Its parser refuses it, too."""
    with pytest.raises(InputFileError, match="dpo_ftx' must be a number"):
        read(tmp_path, LLAMA_FACTORY + "stage: dpo\ndpo_ftx: much\n")


def test_axolotl_turns_its_adapter_kernels_on_for_language_modelling_only(tmp_path: Path) -> None:
    """The task decides between fused kernels and those of PEFT."""
    assert scenario_of(tmp_path, AXOLOTL).stack.adapter_kernels == "fused_dropped"
    assert scenario_of(tmp_path, AXOLOTL + "rl: orpo\n").stack.adapter_kernels == "eager"


def test_liger_leaves_the_loss_of_preferences_alone(tmp_path: Path) -> None:
    """LLaMA-Factory asks Liger for logits, so only its norms and activations are fused."""
    scenario = scenario_of(tmp_path, LLAMA_FACTORY + "stage: dpo\nenable_liger_kernel: true\n")
    assert scenario.recipe.loss == "hf"
    assert scenario.stack.fused_norm


def test_liger_leaves_the_loss_of_old_preferences_alone(tmp_path: Path) -> None:
    """Up to TRL 0.24 their trainers hand no labels to the model; those of 0.25 and 0.26 are told apart by no
    key, which is said.
    """
    text = TRL + "torch_dtype: bfloat16\nbf16: true\n"
    job = scenario_of(tmp_path, text + "precompute_ref_log_probs: false\nuse_liger_kernel: true\n")
    assert (job.recipe.task, job.recipe.loss, job.stack.fused_norm) == ("dpo", "hf", True)


def test_padding_to_the_cap_has_no_effect(tmp_path: Path) -> None:
    """Trainers of preferences have collators of their own."""
    config = read(tmp_path, AXOLOTL + "rl: dpo\npad_to_sequence_len: true\n")
    assert config.request.get("padding") is None
    assert any("longest of the batch" in remark.text for remark in config.remarks)


def test_a_reference_that_is_asked_before_training(tmp_path: Path) -> None:
    """No step asks it again, and no second model is there; KTO still compares other completions."""
    scenario = scenario_of(tmp_path, TRL + "precompute_ref_log_probs: true\n")
    assert scenario.recipe.caches_reference
    assert not scenario.recipe.has_reference
    in_batches = TRL + "precompute_ref_log_probs: true\nprecompute_ref_batch_size: {}\n"
    assert not scenario_of(tmp_path, in_batches.format(8)).recipe.has_reference
    with pytest.raises(NotModelledError, match="a reference that is asked in larger batches"):
        read(tmp_path, in_batches.format(9))
    axolotl = scenario_of(tmp_path, AXOLOTL + "rl: dpo\nprecompute_ref_log_probs: true\n")
    assert not axolotl.recipe.has_reference
    kto = scenario_of(tmp_path, TRL + "beta: 0.1\n", task="kto", switches="caches_reference=true")
    assert kto.recipe.has_reference


@pytest.mark.parametrize(
    ("task", "quantised", "sharded", "dtype", "reentrant"),
    [
        ("rl: dpo\n", True, False, "bf16", False),
        ("rl: orpo\n", True, False, "fp32", False),
        ("rl: dpo\n", False, False, "fp32", False),
        (PLAIN + "reward_model: true\n", False, True, "fp32", True),
        ("rl: dpo\nlocal_rank:\n", True, False, "fp32", False),
    ],
)
def test_adapters_are_what_the_trainer_of_trl_makes_of_them(
    tmp_path: Path, task: str, quantised: bool, sharded: bool, dtype: str, reentrant: bool
) -> None:
    """Trainers of TRL 1.9 change them; those of ORPO, and of the TRL of older files, do not."""
    text = AXOLOTL + task + "gradient_checkpointing: true\n"
    text += "deepspeed: deepspeed_configs/zero3_bf16.json\n" if sharded else ""
    quantised_text = text.replace("adapter: lora", "adapter: qlora") + "load_in_4bit: true\n"
    config = read(tmp_path, quantised_text if quantised else text)
    gpus = "a100-80-sxm:2" if sharded else "a100-80-sxm"
    recipe = filled(config, {"gpu": gpus}).recipe
    assert recipe.adapter is not None
    assert (recipe.adapter.dtype, recipe.checkpoint_reentrant) == (dtype, reentrant)


def test_a_handbook_recipe_of_pairs_without_a_length_has_that_of_its_trl(tmp_path: Path) -> None:
    """TRL up to 0.11 cuts at 512; another old file of pairs is asked, because later versions differ."""
    text = "model_name_or_path: Qwen/Qwen2.5-0.5B\nbeta: 0.1\n"
    recipe = read(tmp_path, text + "dataset_mixer: {some/pairs: 1.0}\n", "dpo/config.yaml")
    assert recipe.request.get("seq") == 512
    assert any("max_length" in note for note in recipe.notes)
    assert "seq" in read(tmp_path, text + "use_flash_attention_2: true\nlora_r: 16\n", "dpo/other.yaml").needs


def test_keys_of_a_loss_tell_the_age(tmp_path: Path) -> None:
    """LLaMA-Factory has called them otherwise since 0.8; TRL has dropped its switches of logits."""
    found = read(tmp_path, LLAMA_FACTORY + "stage: dpo\ndpo_beta: 0.1\ndpo_loss: sigmoid\n")
    assert found.request.get("stack") == "llama-factory@0.8"
    assert not found.ignored
    found = read(
        tmp_path, TRL + "bf16: true\nrpo_alpha: null\nbeta: 0.1\nuse_logits_to_keep: true\n", "dpo.yaml"
    )
    assert any(each.origin.endswith("use_logits_to_keep") for each in found.remarks)


def test_a_switch_that_counted_in_older_scripts_is_asked_about(tmp_path: Path) -> None:
    """No key says which TRL runs the file; false is what it does without the key."""
    text = TRL + "bf16: true\ngradient_checkpointing_use_reentrant: "
    assert "--checkpoint-reentrant" in read(tmp_path, text + "true\n").needs["checkpoint_reentrant"]
    assert "checkpoint_reentrant" not in read(tmp_path, text + "false\n").needs
