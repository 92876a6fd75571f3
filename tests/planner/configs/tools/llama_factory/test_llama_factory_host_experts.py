"""``use_kt`` of LLaMA-Factory: what its keys say, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import REFUSED_BY_TOOL, NotModelledError, UsageError
from planner.intake.given.config_file import with_flags
from planner.intake.given.request import from_flags
from tests.files import read

KT = (
    "model_name_or_path: Qwen/Qwen3-30B-A3B\nfinetuning_type: lora\nlora_target: all\ntemplate: qwen3\n"
    "bf16: true\nuse_kt: true\n"
)
INT8 = KT + "kt_weight_path: a\nkt_config:\n  kt_expert_weight_format: int8\n  kt_backend: auto\n"


def switches(folder: Path, text: str) -> dict[str, str]:
    """The switches that it sets."""
    pairs = read(folder, text).request.values["switches"].value
    return dict(pair.split("=") for pair in pairs)


@pytest.mark.parametrize(
    ("text", "kind", "keeps", "parts"),
    [
        (KT, "bf16", "false", None),
        (KT + "kt_cpu_activation: retain\n", "bf16", "true", None),
        (KT + "disable_gradient_checkpointing: true\n", "bf16", "true", None),
        (KT + "kt_config: {kt_backend: AMXINT8}\nkt_weight_path: a\n", "int8", "false", None),
        (KT + "kt_config: {kt_backend: AMXBF16, kt_tp_enabled: true, kt_threadpool_count: 2}\n",
         "bf16", "false", "2"),
        (KT + "kt_config: {kt_threadpool_count: 2}\n", "bf16", "false", None),
        (INT8, "int8", "false", None),
    ],
)  # fmt: skip
def test_where_experts_lie_and_what_they_keep(
    tmp_path: Path, text: str, kind: str, keeps: str, parts: str | None
) -> None:
    """Parts count where tensor parallelism over memory nodes is on."""
    found = switches(tmp_path, text)
    assert (found["host_experts"], found["keeps_host_activations"]) == (kind, keeps)
    assert found.get("host_parts") == parts


def test_several_processes_mean_fsdp_without_reentrant_checkpoints(tmp_path: Path) -> None:
    """KTransformers stops at anything else; off, the key says nothing."""
    found = read(tmp_path, KT)
    assert found.several is not None
    assert (found.several[0], found.request.get("checkpoint_reentrant")) == ("fsdp", False)
    off = read(tmp_path, KT.replace("use_kt: true", "use_kt: false"))
    assert (off.several, off.request.get("switches")) == (None, None)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (KT + "kt_optimize_rule: a.yaml\n", "up to 2026-04 is not modelled"),
        (KT + "kt_use_lora_experts: true\n", "more experts on the card"),
        (KT + "kt_config: {kt_backend: AMXINT4}\n", "experts in 'AMXINT4' are not modelled"),
        (KT + "kt_config: {kt_expert_weight_format: fp8}\n", "experts in 'fp8' are not modelled"),
        (KT + "kt_config: {kt_num_gpu_experts: 4}\n", "experts on the card beside those"),
        (KT + "kt_config: {kt_share_backward_bb: false}\n", "second copy of all experts"),
        (KT + "kt_config: {kt_expert_mode: a}\n", "kt_expert_mode"),
    ],
)
def test_what_was_not_read_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    """By the name of its key."""
    with pytest.raises(NotModelledError, match=sentence):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (KT + "gradient_checkpointing: true\n", "gradient_checkpointing"),
        (KT + "use_unsloth_gc: true\n", "use_unsloth_gc"),
        (KT + "compute_accuracy: true\n", "compute_accuracy"),
        (INT8.replace("kt_weight_path: a\n", ""), "kt_weight_path"),
        (INT8.replace("auto", "AMXBF16"), "kt_backend"),
        (KT + "disable_gradient_checkpointing: true\nkt_cpu_activation: recompute\n", "kt_cpu_activation"),
    ],
)
def test_what_it_stops_at(tmp_path: Path, text: str, key: str) -> None:
    """LLaMA-Factory or KTransformers."""
    with pytest.raises(UsageError, match=rf"{key}.*{REFUSED_BY_TOOL}"):
        read(tmp_path, text)


@pytest.mark.parametrize("model", ["deepseek-ai/DeepSeek-V2-Lite", "Qwen/Qwen3-8B"])
def test_models_that_it_stops_at(tmp_path: Path, model: str) -> None:
    """Routers that it cannot read, and models without experts."""
    config = read(tmp_path, KT.replace("Qwen/Qwen3-30B-A3B", model))
    flags = from_flags({"gpu": "h100-sxm"})
    with pytest.raises(UsageError, match=rf"KTransformers stops at this model.*{REFUSED_BY_TOOL}"):
        with_flags(config, flags)
    with_flags(read(tmp_path, KT), flags)
