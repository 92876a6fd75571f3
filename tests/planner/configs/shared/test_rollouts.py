"""Files that train on what the model generates: lengths, who generates,
and what follows from the age of a file.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.domain.recipes.rollout import Rollout
from planner.domain.scenario import Scenario
from planner.errors import NotModelledError, PlannerError, UsageError
from planner.intake.given.config_file import read_config_file
from tests.files import filled, read

TRL = (
    "model_name_or_path: Qwen/Qwen2.5-0.5B\nuse_peft: true\nnum_generations: "
    "4\nper_device_train_batch_size: 4\n"
)
AXOLOTL = (
    "base_model: Qwen/Qwen2.5-0.5B\nadapter: lora\nlora_target_linear: true\nmicro_batch_size: "
    "4\nbf16: true\nrl: grpo\n"
)
OLD = (
    "model_name_or_path: Qwen/Qwen2.5-0.5B\ntorch_dtype: bfloat16\nper_device_train_batch_size: "
    "16\nnum_generations: 16\n"
)
LIGERS_LOSS = "use_liger_kernel: true\nliger_kernel_config: {fused_linear_cross_entropy: true}\n"


def scenario_of(folder: Path, text: str, **flags: Any) -> Scenario:
    """The job of a file on one card."""
    return filled(read(folder, text), {"gpu": "a100-80-sxm", **flags})


def rollout_of(folder: Path, text: str, **flags: Any) -> Rollout:
    """What the job of a file generates."""
    found = scenario_of(folder, text, **flags).recipe.rollout
    assert found is not None
    return found


def test_todays_defaults(tmp_path: Path) -> None:
    """Prompts are not cut, so the length is asked for; there is no reference; completions have 512 tokens."""
    found = rollout_of(tmp_path, TRL, seq=1024)
    assert found == Rollout(completion_tokens=512, generations=4)
    with pytest.raises(UsageError, match="prompts are not cut"):
        scenario_of(tmp_path, TRL)


def test_what_is_said(tmp_path: Path) -> None:
    """Every key that moves bytes or time."""
    said = "max_completion_length: 300\nsteps_per_generation: 2\nnum_iterations: 3\nbeta: 0.01\n"
    found = rollout_of(
        tmp_path,
        TRL + said + "use_vllm: true\nvllm_mode: colocate\nvllm_gpu_memory_utilization: 0.4\n",
        seq=1024,
    )
    assert found == Rollout(
        300, 4, micro_steps=2, iterations=3, has_reference=True, generator="vllm", vllm_share=0.4
    )


def test_a_file_of_an_older_trl(tmp_path: Path) -> None:
    """Prompts are cut; a server of vLLM is the default; the age of the reference is asked for."""
    said = OLD + "max_prompt_length: 500\nuse_vllm: true\n"
    scenario = scenario_of(tmp_path, said + "beta: 0.0\n")
    assert scenario.recipe.batch.seq_len == 500 + 256
    assert scenario.recipe.rollout == Rollout(256, 16, generator="vllm-server")
    assert scenario.stack.completion_logps == "divided"
    with pytest.raises(UsageError, match="compare-reference"):
        scenario_of(tmp_path, said)
    # Up to TRL 0.17, where beta is 0.04, no layer is checkpointed, and AdamW is not fused.
    recipe = scenario_of(tmp_path, said + "bf16: true\nvllm_device: auto\n").recipe
    assert recipe.rollout is not None
    assert recipe.rollout.has_reference
    assert scenario.recipe.gradient_checkpointing
    assert not recipe.gradient_checkpointing
    assert (recipe.optimizer, scenario.recipe.optimizer) == ("adamw_torch", "adamw_torch_fused")


def test_a_file_of_axolotl(tmp_path: Path) -> None:
    """Its section for TRL, and the share of the card in that for vLLM."""
    said = (
        "trl:\n  beta: 0.001\n  use_vllm: true\n  vllm_mode: colocate\n  num_generations: 4\n  "
        "max_completion_length: 256\n"
    )
    found = rollout_of(tmp_path, AXOLOTL + said + "vllm:\n  gpu_memory_utilization: 0.5\n", seq=512)
    assert found == Rollout(256, 4, has_reference=True, generator="vllm", vllm_share=0.5)


@pytest.mark.parametrize(
    ("text", "compares"),
    [
        ("trl: {num_generations: 4}\n", False),
        ("trl: {num_generations: 4}\nrl_beta: 0.04\n", True),
        ("trl: {num_generations: 4, beta: 0}\nrl_beta: 0.04\n", False),
        # Axolotl 0.8 hands no zero on, and TRL 0.16 takes another value.
        ("trl: {num_generations: 4, beta: 0}\nlocal_rank:\n", True),
        ("trl: {num_generations: 4}\nlocal_rank:\n", True),
    ],
)
def test_the_reference_of_axolotl(tmp_path: Path, text: str, compares: bool) -> None:
    """By the key of the section, by the older one, or by the TRL of its time, which generates 256 tokens."""
    found = rollout_of(tmp_path, AXOLOTL + text, seq=1024)
    assert found.has_reference == compares
    assert found.completion_tokens == (256 if "local_rank" in text else 512)


def test_a_reward_model(tmp_path: Path) -> None:
    """By its key, or among functions of Axolotl, which hands no dtype on; functions need no card."""
    model = "HuggingFaceTB/SmolLM2-135M"
    found = rollout_of(tmp_path, TRL + f"reward_model_name_or_path: {model}\ndtype: float16\n", seq=1024)
    assert found.reward is not None
    assert found.reward.model.hub_id == model
    assert found.reward.load_dtype == "fp16"
    assert found.reward.model.head.out_features == 1
    functions = "trl:\n  num_generations: 4\n  reward_funcs: [rewards.length"
    found = rollout_of(tmp_path, f"{AXOLOTL}{functions}, {model}]\n", seq=1024)
    assert found.reward is not None
    assert found.reward.load_dtype == found.reward.model.checkpoint_dtype == "bf16"
    assert rollout_of(tmp_path, f"{AXOLOTL}{functions}]\n", seq=1024).reward is None
    with pytest.raises(PlannerError, match="nobody/knows-it"):
        scenario_of(tmp_path, TRL + "reward_model_name_or_path: nobody/knows-it\n", seq=1024)


def test_a_vllm_that_sleeps_and_is_divided(tmp_path: Path) -> None:
    """Both are of the colocated one; in a server neither takes memory of these cards."""
    said = "vllm_enable_sleep_mode: true\nvllm_tensor_parallel_size: 2\nuse_vllm: true\nvllm_mode: "
    beside = rollout_of(tmp_path, f"{TRL}{said}colocate\n", seq=1024)
    assert (beside.generator, beside.vllm_sleeps, beside.vllm_gpus) == ("vllm", True, 2)
    assert not rollout_of(tmp_path, f"{TRL}{said}server\n", seq=1024).vllm_sleeps
    assert not rollout_of(tmp_path, f"{TRL}use_vllm: true\nvllm_mode: colocate\n", seq=1024).vllm_sleeps


def test_a_generation_counted_in_sequences_is_divided_by_those_of_a_micro_batch(tmp_path: Path) -> None:
    """On all GPUs; TRL stops where that leaves a rest, or where both ways are said."""
    said = TRL + "generation_batch_size: 64\n"
    for gpus, steps in ((1, 16), (4, 4)):
        rollout = rollout_of(tmp_path, said, seq=1024, gpus=gpus)
        assert rollout.micro_steps == steps
    assert rollout_of(tmp_path, said, seq=1024, generation_steps=2).micro_steps == 2
    for text, gpus in ((said, 3), (said, 32), (said + "steps_per_generation: 2\n", 1)):
        with pytest.raises(UsageError, match="refused-by-its-tool"):
            scenario_of(tmp_path, text, seq=1024, gpus=gpus)


def test_ligers_kernels_of_an_older_trl_are_those_of_layers(tmp_path: Path) -> None:
    """The loss had a switch of its own up to 0.24; one that may be later says what is left out."""
    said = "max_prompt_length: 500\nbeta: 0.1\nuse_liger_kernel: true\n"
    for text, remarks in (
        (OLD + said, 1),
        (OLD + said + "bf16: true\nvllm_device: auto\nuse_liger: true\n", 0),
    ):
        found = scenario_of(tmp_path, text)
        assert (found.stack.fused_norm, found.stack.fused_mlp, found.recipe.loss) == (True, True, "hf")
        notes = read_config_file(tmp_path / "train.yaml").notes
        assert sum("TRL 0.25 and 0.26" in each for each in notes) == remarks
    with pytest.raises(NotModelledError, match="Liger's loss of GRPO"):
        scenario_of(tmp_path, OLD + said.replace("liger_kernel", "liger_loss"))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (TRL + "num_ppo_epochs: 4\n", "other than GRPO"),
        (TRL + "rloo_k: 4\n", "other than GRPO"),
        (TRL + "reward_model_name_or_path: gpt2\nreward_funcs: [a/b]\n", "several reward models"),
        # TRL 0.25 to 0.27 computes Liger's loss of GRPO then, and does not fail as 1.16 does.
        (TRL + "max_prompt_length: 500\nbeta: 0.1\n" + LIGERS_LOSS, "Liger's loss of GRPO"),
        (AXOLOTL + "trl:\n  sync_ref_model: true\n", "follows the policy"),
        (AXOLOTL + "trl:\n  async_prefetch: true\n", "async_prefetch: generation ahead"),
        (AXOLOTL + "trl:\n  rollout_func: mine.generate\n", "of one's own"),
    ],
)
def test_what_is_not_modelled(tmp_path: Path, text: str, sentence: str) -> None:
    """Each is refused by its key."""
    with pytest.raises(NotModelledError, match=sentence):
        scenario_of(tmp_path, text, seq=1024)


def test_ppo_of_llama_factory(tmp_path: Path) -> None:
    """A prompt is cut to cutoff_len and completions come on top; the software is that of TRL 0.9.6."""
    text = (
        "model_name_or_path: Qwen/Qwen2.5-0.5B\nfinetuning_type: lora\ntemplate: qwen\nbf16: true\n"
        "stage: ppo\nreward_model: saves/reward\ncutoff_len: 1024\noverwrite_cache: true\n"
    )
    unsaid = scenario_of(tmp_path, text)
    ppo = Rollout(1024, 1, micro_steps=1, iterations=4, has_reference=True, scores_itself=True)
    assert unsaid.recipe.rollout == ppo
    assert (unsaid.recipe.batch.seq_len, unsaid.stack.id) == (2048, "llama-factory@0.8")
    said = scenario_of(tmp_path, text + "max_new_tokens: 512\nppo_epochs: 2\n")
    assert said.recipe.rollout == replace(ppo, completion_tokens=512, iterations=2)
    assert said.recipe.batch.seq_len == 1536


def test_dropout_that_is_switched_off(tmp_path: Path) -> None:
    """Adapters drop nothing then; a model with dropout of its own is refused."""
    text = TRL + "max_completion_length: 128\n"
    assert scenario_of(tmp_path, text, seq=1024).recipe.adapter.dropout > 0
    silent = text + "disable_dropout: true\n"
    assert scenario_of(tmp_path, silent, seq=1024).recipe.adapter.dropout == 0
    with pytest.raises(NotModelledError, match="dropout that this model has"):
        scenario_of(tmp_path, silent, seq=1024, model="gpt2")
    assert scenario_of(tmp_path, f"{text}disable_dropout: false\n", seq=1024, model="gpt2")


def test_prompts_are_not_cut_since_0_26(tmp_path: Path) -> None:
    """A key that came then says so: the length is asked for, and there is no reference.  The length of the
    prompt is counted where it is said, with the remark that it cuts nothing.
    """
    newer = OLD + "max_completion_length: 100\nuse_bias_correction_kl: true\n"
    with pytest.raises(UsageError, match="prompts are not cut"):
        scenario_of(tmp_path, newer)
    assert rollout_of(tmp_path, newer, seq=1024) == Rollout(completion_tokens=100, generations=16)
    assert scenario_of(tmp_path, newer + "max_prompt_length: 300\n").recipe.batch.seq_len == 400
    remarks = read_config_file(tmp_path / "train.yaml").remarks
    assert any("cut no prompt" in each.text for each in remarks)
    assert scenario_of(tmp_path, OLD + "beta: 0.0\n").recipe.batch.seq_len == 256 + 512


@pytest.mark.parametrize(
    ("text", "machine", "trained"),
    [
        ("num_generations: 14\n", 8, 7),
        ("num_generations: 14\n", 7, 7),
        ("num_generations: 16\n", 8, 8),
        ("num_generations: 12\nvllm_device: cuda:6\n", 8, 6),
        ("num_generations: 16\nvllm_device: cuda:7\n", 8, 7),
        ("num_generations: 16\nvllm_device: cuda:7\n", 4, 4),
    ],
)
def test_vllm_has_a_card_of_its_own(tmp_path: Path, text: str, machine: int, trained: int) -> None:
    """Those before the device that is named train; else all, or all but one where only these have batches of
    whole groups.
    """
    recipe = OLD.replace("num_generations: 16\n", text) + "use_vllm: true\nbeta: 0\nbf16: true\n"
    assert scenario_of(tmp_path, recipe, gpu=f"a100-80-sxm:{machine}").hardware.world_size == trained


@pytest.mark.parametrize(("share", "counted"), [("", 0.9), ("vllm_gpu_memory_utilization: 0.3\n", 0.3)])
def test_vllm_on_the_first_card_of_the_training_lies_beside_it(
    tmp_path: Path, share: str, counted: float
) -> None:
    """TRL 0.15 warns, and goes on; on another card it takes nothing from those that train."""
    text = f"{OLD}bf16: true\nuse_vllm: true\nmax_completion_length: 64\n{share}"
    found = rollout_of(tmp_path, f"{text}vllm_device: cuda:0\n")
    assert (found.generator, found.vllm_share) == ("vllm", counted)
    assert rollout_of(tmp_path, f"{text}vllm_device: auto\n").generator == "vllm-server"
