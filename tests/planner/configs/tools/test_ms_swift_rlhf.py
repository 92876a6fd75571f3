"""Arguments of ``swift rlhf``, value by value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.errors import ExitCode, NotModelledError, UsageError
from tests.files import answer_to, read

BASE = "model: Qwen/Qwen2.5-0.5B\ntuner_type: lora\nmax_length: 2048\n"
FULL = BASE.replace("lora", "full")
COMMAND = "swift rlhf --model Qwen/Qwen2.5-0.5B --tuner_type lora --dataset a --max_length 1024"


def asked(text: str, gpu: str = "a100-80-sxm") -> Any:
    """What ``plan check --command`` answers."""
    return answer_to(text, {"gpu": gpu})


STUDENT = "rlhf_type: gkd\nteacher_model: Qwen/Qwen2.5-1.5B\n"


def test_a_student_is_read_with_its_teacher(tmp_path: Path) -> None:
    """``beta`` and samples laid end to end."""
    request = read(tmp_path, f"{BASE}{STUDENT}lmbda: 0\n").request
    assert (request.get("task"), request.get("teacher_model")) == ("gkd", "Qwen/Qwen2.5-1.5B")
    packed = f"{BASE}{STUDENT}lmbda: 0\nbeta: 1\nattn_impl: flash_attn\npadding_free: true\n"
    request = read(tmp_path, packed).request
    assert request.get("padding") == "packed"
    assert request.get("switches") == ("distillation=reverse_in_pieces",)


@pytest.mark.parametrize(
    ("text", "task"),
    [
        (f"{BASE}rlhf_type: dpo\n", "dpo"),
        (f"{BASE}beta: 0.1\n", "dpo"),
        (f"{FULL}ref_model: Qwen/Qwen2.5-0.5B\nrpo_alpha: 0.1\nloss_type: [sigmoid, sft]\n", "dpo"),
        (f"{BASE}rlhf_type: kto\ndesirable_weight: 2.0\n", "kto"),
        (f"{BASE}rlhf_type: orpo\n", "orpo"),
        (f"{BASE}rlhf_type: simpo\nsimpo_gamma: 1\n", "simpo"),
        (f"{BASE}rlhf_type: cpo\nloss_type: sigmoid\n", "simpo"),
        (f"{BASE}rlhf_type: rm\n", "reward"),
        (BASE, None),
    ],
)
def test_the_type_says_the_task(tmp_path: Path, text: str, task: str | None) -> None:
    """CPO has the trainer of SimPO, and nothing is dpo."""
    assert read(tmp_path, text).request.get("task") == task


def test_the_command_is_dpo_where_it_says_nothing() -> None:
    """rlhf_args.py rlhf_type; ``swift sft`` is no training from preferences."""
    checked = asked(COMMAND)
    assert checked.subject.scenario.recipe.task == "dpo"
    assert asked(COMMAND.replace("rlhf", "sft")).subject.scenario.recipe.task == "sft"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (f"{COMMAND} --beta 0.1".replace("rlhf", "sft"), "beta: swift sft stops at an argument"),
        (f"{COMMAND} --rlhf_type dpo".replace("swift rlhf", "swift pt"), "rlhf_type: swift pt stops"),
        (f"{COMMAND} --rlhf_type ''", "'rlhf_type' must be dpo"),
    ],
)
def test_the_verb_of_a_command_says_what_it_takes(command: str, why: str) -> None:
    """An argument of ``swift rlhf`` is none of ``swift sft``; an empty type is no type."""
    checked = asked(command)
    assert checked.exit_code == ExitCode.USAGE
    assert why in checked.failure


def test_simpo_may_leave_the_likelihood_out(tmp_path: Path) -> None:
    """``cpo_alpha`` 0 takes no cross-entropy."""
    found = read(tmp_path, f"{BASE}rlhf_type: simpo\ncpo_alpha: 0\n")
    assert found.request.get("switches") == ("chosen_likelihood=false",)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("rlhf_type: grpo\nteacher_model: a/b\n", "a teacher beside GRPO"),
        ("rlhf_type: ppo\n", "PPO of ms-swift"),
        (f"{STUDENT}", "say lmbda 0"),
        (f"{STUDENT}lmbda: 0.5\n", "say lmbda 0"),
        ("rlhf_type: gkd\nlmbda: 0\n", "teaches itself"),
        (f"{STUDENT}lmbda: 0\ngkd_logits_topk: 64\n", "largest logits"),
        (f"{STUDENT}lmbda: 0\nteacher_deepspeed: zero3\n", "divided otherwise"),
        (f"{STUDENT}lmbda: 0\nsft_alpha: 0.1\n", "a likelihood beside"),
        ("ref_adapters: a\n", "another model"),
        ("rlhf_type: kto\nloss_type: apo_zero_unpaired\n", "of kto is not modelled"),
        ("rlhf_type: dpo\nuse_liger_kernel: true\n", "Liger"),
        ("rlhf_type: kto\nattn_impl: flash_attn\npadding_free: true\n", "padding-free"),
        ("rlhf_type: dpo\nsequence_parallel_size: 2\n", "sequence-parallel"),
    ],
)
def test_what_is_not_modelled_is_named(tmp_path: Path, text: str, why: str) -> None:
    """A file is refused by its own key, not answered without it."""
    with pytest.raises(NotModelledError, match=why):
        read(tmp_path, BASE + text)


@pytest.mark.parametrize("text", [
    f"{BASE}ref_model: Qwen/Qwen2.5-0.5B\n",
    f"{FULL}rlhf_type: simpo\nref_model: Qwen/Qwen2.5-0.5B\n",
    f"{BASE}rlhf_type: orpo\nattn_impl: flash_attn\npadding_free: true\n",
    f"{BASE}{STUDENT}lmbda: 0\nseq_kd: true\n",
])  # fmt: skip
def test_what_ms_swift_stops_at_gets_no_verdict(tmp_path: Path, text: str) -> None:
    """rlhf_args.py __post_init__ and _check_padding_free."""
    with pytest.raises(UsageError, match="refused-by-its-tool"):
        read(tmp_path, text)


def test_completions_lie_behind_prompts_of_max_length(tmp_path: Path) -> None:
    """Defaults of rlhf_args.py and args_mixin.py; a server's vLLM is elsewhere, whether it sleeps or not."""
    request = read(tmp_path, f"{BASE}rlhf_type: grpo\nmax_completion_length: 256\n").request
    found = {
        name: request.get(name) for name in ("seq", "completion_length", "compare_reference", "grad_accum")
    }
    assert found == {"seq": 2304, "completion_length": 256, "compare_reference": True, "grad_accum": 1}
    vllm = f"{BASE}rlhf_type: grpo\nbeta: '0.0'\nuse_vllm: true\nvllm_mode: "
    request = read(tmp_path, f"{vllm}colocate\n").request
    assert (request.get("compare_reference"), request.get("vllm_memory")) == (False, 0.9)
    elsewhere = read(tmp_path, f"{vllm}server\nsleep_level: 1\n").request
    assert (elsewhere.get("generator"), elsewhere.get("vllm_sleep")) == ("vllm-server", None)
    assert read(tmp_path, f"{vllm}colocate\nsleep_level: 1\n").request.get("vllm_sleep")


@pytest.mark.parametrize(
    ("more", "seq"),
    [
        ("max_length: 2048\nvllm_mode: colocate\nvllm_max_model_len: 2048\n", 2048),
        ("max_length: 2048\nvllm_mode: colocate\nvllm_max_model_len: 4096\n", 2304),
        ("vllm_mode: colocate\nvllm_max_model_len: 1024\n", 1024),
        # Too short for the completions that are asked for, and a server's, which has a limit of its own.
        ("max_length: 2048\nvllm_mode: colocate\nvllm_max_model_len: 256\n", 2304),
        ("max_length: 2048\nvllm_mode: server\nvllm_max_model_len: 1024\n", 2304),
    ],
)
def test_no_row_is_longer_than_vllm_takes(tmp_path: Path, more: str, seq: int) -> None:
    """Prompts that leave no room end the job (infer_engine.py set_default_max_tokens)."""
    base = BASE.replace("max_length: 2048\n", "")
    text = f"{base}rlhf_type: grpo\nmax_completion_length: 256\nuse_vllm: true\n{more}"
    assert read(tmp_path, text).request.get("seq") == seq


def test_weights_are_handed_to_vllm_in_groups(tmp_path: Path) -> None:
    """rollout_mixin.py split_batches."""
    request = read(tmp_path, f"{BASE}rlhf_type: grpo\nmove_model_batches: 16\n").request
    assert request.get("switches") == ("vllm_groups=16",)


@pytest.mark.parametrize("key", ["log_entropy: true", "top_entropy_quantile: '0.2'"])
def test_entropies_are_taken_where_they_are_asked_for(tmp_path: Path, key: str) -> None:
    """grpo_trainer.py _get_logps_via_local_forward: by the function of TRL, behind the log-probabilities."""
    plain, asked = (read(tmp_path, f"{BASE}rlhf_type: grpo\n{more}\n").request for more in ("", key))
    assert asked.get("switches") == ("completion_logps=in_place",)
    assert not plain.get("switches")


@pytest.mark.parametrize(("text", "seq"), [
    ("padding_free: true\n", 2048),
    ("packing: true\n", 1024),
    ("packing: true\npacking_length: 8192\n", 4096),
])  # fmt: skip
def test_pairs_without_padding_lie_in_one_row(tmp_path: Path, text: str, seq: int) -> None:
    """A pack holds whole pairs: both sequences share its length."""
    request = read(tmp_path, f"{BASE}rlhf_type: dpo\nattn_impl: flash_attn\n{text}").request
    assert (request.get("padding"), request.get("seq")) == ("packed", seq)


def test_another_reference_is_another_model(tmp_path: Path) -> None:
    """Its weights may be larger than the policy's."""
    with pytest.raises(NotModelledError, match="another model"):
        read(tmp_path, f"{FULL}rlhf_type: dpo\nref_model: Qwen/Qwen2.5-7B\n")


@pytest.mark.parametrize("kind", ["dpo", "kto", "orpo", "simpo", "cpo", "rm", "gkd"])
def test_trainers_of_3_x_were_read_but_that_of_students(kind: str) -> None:
    """``train_type`` is software of its time: pairs, as they are since 3.5."""
    teacher = " --teacher_model Qwen/Qwen2.5-1.5B --lmbda 0" if kind == "gkd" else ""
    checked = asked(COMMAND.replace("tuner_type", "train_type") + f" --rlhf_type {kind}{teacher}")
    if kind == "gkd":
        assert "no trainer for this task that was read" in checked.failure
        return
    assert (checked.failure, checked.subject.scenario.stack.pair_logps) == ("", "rows_let_go")
    assert any("before 3.5" in text for _, text in checked.remarks) == (kind != "rm")


@pytest.mark.parametrize(
    ("name", "logps"),
    [("train_type", "divided"), ("tuner_type", "in_place_alone")],
)
def test_a_completion_of_3_x_is_scored_as_trl_did(name: str, logps: str) -> None:
    """And with entropies where they are asked for, which only software since 4 lacks."""
    text = f"{COMMAND.replace('tuner_type', name)} --rlhf_type grpo --num_generations 2"
    text += " --per_device_train_batch_size 2 --max_completion_length 64"
    assert asked(text).subject.scenario.stack.completion_logps == logps
    with_entropies = {"train_type": "divided", "tuner_type": "in_place"}[name]
    assert asked(f"{text} --log_entropy true").subject.scenario.stack.completion_logps == with_entropies


def test_one_visible_gpu_is_one_gpu_of_the_machine() -> None:
    """Whatever ``--gpu`` says, the process uses what it sees; what sees several is another matter."""
    checked = asked(f"CUDA_VISIBLE_DEVICES=3 {COMMAND}", "a100-80-sxm:8")
    assert checked.subject.scenario.hardware.world_size == 1
    assert any("uses 1 of the 8 GPUs" in text for _, text in checked.remarks)
    assert "device_map" in asked(COMMAND, "a100-80-sxm:8").failure


GENERATES = (
    "--rlhf_type grpo --num_generations 8 --per_device_train_batch_size 8 --max_length 512 --beta 0 "
    "--max_completion_length 512 --use_vllm true --vllm_mode colocate --sleep_level 1 --offload_model true"
)


@pytest.mark.parametrize(("share", "verdict"), [("0.4", "fits"), ("0.95", "uncertain")])
def test_weights_that_leave_while_vllm_generates_are_counted_as_there(share: str, verdict: str) -> None:
    """Which is more; where that does not fit, a job without vLLM beside it says whether less might."""
    text = f"{COMMAND} {GENERATES} --vllm_gpu_memory_utilization {share} --tuner_type full --deepspeed zero3"
    checked = asked(f"NPROC_PER_NODE=8 {text}", "a100-80-sxm:8")
    assert checked.subject is not None, checked.failure
    assert checked.subject.prediction.verdict == verdict
    assert any("as on the card" in text for _, text in checked.remarks)


def test_weights_of_zero2_do_not_leave() -> None:
    """Its buffer stays, and copies come back beside it."""
    text = f"NPROC_PER_NODE=8 {COMMAND} {GENERATES} --tuner_type full --deepspeed zero2"
    assert "second copy of the weights" in asked(text, "a100-80-sxm:8").failure


def test_in_other_trainings_nothing_leaves() -> None:
    """DPO takes the arguments, and asks for none of them."""
    assert asked(f"{COMMAND} --rlhf_type dpo --offload_model true --sleep_level 1").failure == ""
