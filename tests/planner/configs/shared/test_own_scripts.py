"""Arguments of a script of one's own that say another training."""

from __future__ import annotations

from typing import Any

import pytest

from planner.configs.shared.own_scripts import other_task
from planner.report.check.checked import Checked
from tests.files import answer_to


@pytest.mark.parametrize(
    ("table", "unread", "found"),
    [
        ({"seed": 1, "teacher_model": "a"}, (), "teacher_model"),
        ({"kl_coef": "0.0", "ref_model": "none"}, (), ""),
        ({"fsdp_auto_wrap_policy": "a", "policy": "b"}, (), "policy"),
        # What a tool has for something harmless says nothing where the tool reads it.
        ({"loss_type": "nll", "image_folder": "a", "wandb_mode": "b"}, (), ""),
        ({"loss_type": "nll"}, ("loss_type",), "loss_type"),
        ({"video_folder": "a"}, ("video_folder",), "video_folder"),
        ({"mode": "a"}, ("mode",), "mode"),
        ({"deepspeed": "a", "deepspeed_config": "b"}, ("deepspeed_config",), "deepspeed_config"),
        ({"finetune_from": "a", "fix_llm": True}, ("finetune_from", "fix_llm"), "fix_llm"),
        ({"wandb_mode": "a", "weight_loss": False}, ("wandb_mode", "weight_loss"), ""),
        # Of a report, of saving, of the rate: nothing that a step does.
        ({"save_policy": "a", "eval_mode": "b"}, ("save_policy", "eval_mode"), ""),
        ({"log_loss": True, "print_layers": 2}, ("log_loss", "print_layers"), ""),
        ({"log_image_loss": True}, ("log_image_loss",), "log_image_loss"),
        ({"fsdp_wrap_policy": "a"}, ("fsdp_wrap_policy",), "fsdp_wrap_policy"),
        ({"reward_log_mode": "a"}, (), "reward_log_mode"),
        ({"mode": "train", "run_mode": "SFT"}, ("mode", "run_mode"), ""),
        ({"run_mode": "dpo"}, ("run_mode",), "run_mode"),
        ({"num_layers": 2}, ("num_layers",), "num_layers"),
        # A task's name is a word by itself.
        ({"hf_endpoint": "a", "support_level": 2, "teacher_forcing": True}, (), ""),
        ({"dpo_beta": 0.1}, (), "dpo_beta"),
    ],
)
def test_another_training_is_told(table: dict[str, Any], unread: tuple[str, ...], found: str) -> None:
    """By a second model whatever the tool says; by other data and losses where it does not read them."""
    assert other_task(table, unread) == found


def answered(more: str, **given: object) -> Checked:
    """The answer for a script of one's own whose whole logits alone are more than the card has."""
    text = (
        "torchrun --nproc_per_node 2 mine.py --model_name_or_path unsloth/Llama-3.2-3B-Instruct --bf16 "
        "--per_device_train_batch_size 2 --block_size 28672 --gradient_checkpointing True "
        f"--torch_dtype bfloat16 {more}"
    )
    return answer_to(text, {"gpu": "a100-80-sxm:2", **given})


def test_a_loss_of_its_own_may_make_it_fit() -> None:
    """Which nothing says; a flag or the Trainer's own key does."""
    found = answered("")
    assert found.subject is not None, found.failure
    assert found.subject.prediction.verdict == "uncertain"
    assert "--method lora --loss liger: fits" in found.subject.prediction.reason
    for told in (answered("", loss="hf"), answered("--use_liger_kernel False", loss="hf", method="full")):
        assert told.subject is not None, told.failure
        assert told.subject.prediction.verdict == "does_not_fit"
