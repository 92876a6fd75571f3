"""Files whose keys fit several versions of their tool: one answer where all have it, else none is sure."""

from __future__ import annotations

from pathlib import Path

import pytest

import planner
from planner.errors import NotModelledError, UsageError
from tests.files import written

QLORA = (
    "sequence_len: 1024\nmicro_batch_size: 1\nadapter: qlora\nload_in_4bit: true\nlora_r: 8\n"
    "lora_target_linear: true\nlora_dropout: 0.05\ngradient_checkpointing: true\nbf16: true\n"
)
FLAG = "flash_attention: true\n"


def answered(folder: Path, model: str, text: str, gpu: str, **given: str) -> planner.FileAnswer:
    """The answer for a file of Axolotl."""
    path = written(folder, f"base_model: {model}\n{QLORA}{text}", "train.yml")
    answer = planner.check(path, gpu=gpu, **given)
    assert isinstance(answer, planner.FileAnswer)
    return answer


def test_a_mixture_is_uncertain_where_one_version_alone_quantises_its_experts(tmp_path: Path) -> None:
    """Transformers 5 has them as one tensor, which bitsandbytes leaves in 16 bits."""
    model = "mistralai/Mixtral-8x7B-v0.1"
    assert answered(tmp_path, model, FLAG, "a100-80-sxm").verdict == "uncertain"
    older = answered(tmp_path, model, FLAG, "a100-80-sxm", stack="axolotl@0.13")
    newer = answered(tmp_path, model, FLAG, "a100-80-sxm", stack="axolotl")
    assert (older.verdict, newer.verdict) == ("fits", "does_not_fit")
    named = answered(tmp_path, model, "attn_implementation: flash_attention_2\n", "a100-80-sxm")
    assert named.verdict == "does_not_fit"


def test_versions_that_agree_are_not_doubted(tmp_path: Path) -> None:
    """The likeliest is counted: that of the flag."""
    answer = answered(tmp_path, "Qwen/Qwen2.5-0.5B", FLAG, "a100-80-sxm")
    assert answer.verdict == "fits"
    assert answer.flags.startswith("--stack axolotl@0.13 ")


def test_a_model_that_the_likeliest_lacks_is_counted_for_the_other(tmp_path: Path) -> None:
    """Its Transformers is older than the model; asked for by name, that is refused."""
    answer = answered(tmp_path, "Qwen/Qwen3.5-0.8B", FLAG, "a100-80-sxm")
    assert answer.flags.startswith("--stack axolotl ")
    assert any("with --stack axolotl@0.13: Transformers 4" in remark for remark in answer.remarks)
    with pytest.raises(NotModelledError, match="no class for this model"):
        answered(tmp_path, "Qwen/Qwen3.5-0.8B", FLAG, "a100-80-sxm", stack="axolotl@0.13")


def test_what_the_likeliest_refuses_is_refused(tmp_path: Path) -> None:
    """Another version that takes it is no way out: KTO needs a key since 0.9, and nothing says 0.8."""
    with pytest.raises(UsageError, match="remove_unused_columns"):
        answered(tmp_path, "Qwen/Qwen2.5-0.5B", "rl: kto\n", "a100-80-sxm")


GRPO = (
    "bf16: true\nuse_peft: false\ntorch_dtype: bfloat16\nreward_funcs: [a_script]\nnum_generations: 8\n"
    "per_device_train_batch_size: 8\nmax_prompt_length: 512\nmax_completion_length: 512\n"
    "gradient_checkpointing: true\n"
)


def grpo(folder: Path, model: str, gpu: str, tokens: int = 512, **given: object) -> planner.FileAnswer:
    """The answer for a file that leaves ``beta`` to TRL: 0.04 up to 0.18, 0 since."""
    path = folder / "grpo.yaml"
    text = GRPO.replace("completion_length: 512", f"completion_length: {tokens}")
    path.write_text(f"model_name_or_path: {model}\n{text}", encoding="utf-8")
    answer = planner.check(path, gpu=gpu, **given)
    assert isinstance(answer, planner.FileAnswer)
    return answer


def test_a_switch_that_the_version_decides_is_tried_both_ways(tmp_path: Path) -> None:
    """The one that needs more is shown: with a reference model."""
    answer = grpo(tmp_path, "Qwen/Qwen2.5-0.5B", "a100-80-sxm")
    assert answer.verdict == "fits"
    assert any("beta is 0.04 up to TRL 0.18" in remark for remark in answer.remarks)
    held, without = (
        grpo(tmp_path, "Qwen/Qwen2.5-0.5B", "a100-80-sxm", compare_reference=on) for on in (True, False)
    )
    assert answer.peak.driver_bytes == held.peak.driver_bytes > without.peak.driver_bytes
    assert not any("beta" in remark for remark in held.remarks)


def test_a_switch_that_the_verdict_hangs_on_is_uncertain(tmp_path: Path) -> None:
    """Both needs are named, with the flag of each."""
    job, memory = ("Qwen/Qwen2.5-7B", "a100-80-sxm", 256), "66GiB"
    answer = grpo(tmp_path, *job, gpu_memory=memory)
    assert grpo(tmp_path, *job, gpu_memory=memory, compare_reference=False).verdict == "fits"
    assert grpo(tmp_path, *job, gpu_memory=memory, compare_reference=True).verdict == "does_not_fit"
    assert answer.verdict == "uncertain"
    assert any("--no-compare-reference: fits" in remark for remark in answer.remarks)
