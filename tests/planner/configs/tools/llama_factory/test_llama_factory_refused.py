"""Files that LLaMA-Factory itself stops at: none gets a verdict, and its neighbours do.

Each was run through ``get_train_args`` of llamafactory 0.9.5, or through the line that the module names.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.configs.launchers.fsdp_keys import Beside
from planner.errors import REFUSED_BY_TOOL, UsageError
from planner.intake.given.config_file import read_config_file
from tests.files import read

LORA = "model_name_or_path: Qwen/Qwen2.5-0.5B\nfinetuning_type: lora\ntemplate: qwen\nbf16: true\n"
FULL = LORA.replace("lora", "full")
PLAIN = FULL.replace("bf16", "pure_bf16")
BITS = LORA + "quantization_bit: 4\n"
DPO = LORA + "stage: dpo\n"
AWQ = LORA.replace("Qwen2.5-0.5B", "Qwen2.5-0.5B-Instruct-AWQ")
OF_0_7 = "dpo_ftx: 0.0\n"


@pytest.mark.parametrize(
    ("refused", "taken"),
    [
        (FULL + "adapter_name_or_path: a\n", LORA + "adapter_name_or_path: a\n"),
        (FULL + "quantization_bit: 8\n", LORA + "quantization_bit: 8\n"),
        (BITS + "resize_vocab: true\n", LORA + "resize_vocab: true\n"),
        (BITS + "pissa_init: true\n", LORA + "pissa_init: true\n"),
        (BITS + "adapter_name_or_path: a\ncreate_new_adapter: true\n", BITS + "create_new_adapter: true\n"),
        (BITS + "adapter_name_or_path: a,b\n", LORA + "adapter_name_or_path: a,b\n"),
        (BITS + "quantization_device_map: auto\n", BITS),
        (BITS + "fp8: true\n", LORA + "fp8: true\n"),
        (DPO + "pissa_init: true\n", DPO + "pissa_init: true\npref_loss: simpo\n"),
        (DPO + "neat_packing: true\n", LORA + "neat_packing: true\n"),
        (DPO + "mask_history: true\n", LORA + "mask_history: true\n"),
        (DPO + "predict_with_generate: true\n", LORA + "predict_with_generate: true\n"),
        (DPO + "pref_loss: ipo\ndpo_label_smoothing: 0.1\n", DPO + "dpo_label_smoothing: 0.1\n"),
        (FULL + "use_dora: true\n", LORA + "use_dora: true\n"),
        (FULL + "use_rslora: true\n", FULL + "use_rslora: false\n"),
        (FULL + "use_llama_pro: true\n", FULL),
        (FULL + "loraplus_lr_ratio: 16.0\n", LORA + "loraplus_lr_ratio: 16.0\n"),
        (LORA + "val_size: 0.1\neval_dataset: a\n", LORA + "val_size: 0.0\neval_dataset: a\n"),
        (LORA + "streaming: true\n", LORA + "streaming: true\nmax_steps: 5\n"),
        (LORA + "mask_history: true\ntrain_on_prompt: true\n", LORA + "train_on_prompt: true\n"),
        (
            (LORA + "train_on_prompt: true\n").replace("template: qwen", "template: gemma2"),
            (LORA + "train_on_prompt: true\n").replace("template: qwen", "template: gemma"),
        ),
        (LORA + "group_by_length: true\n", LORA + "train_sampling_strategy: group_by_length\n"),
        (LORA + "stage: rm\nload_best_model_at_end: true\n", LORA + "load_best_model_at_end: true\n"),
        (PLAIN + "use_apollo: true\n", PLAIN + "use_apollo: true\noptim: adamw_torch\n"),
        (
            PLAIN + "use_apollo: true\noptim: adamw_torch\napollo_layerwise: true\n"
            "gradient_accumulation_steps: 2\n",
            PLAIN + "use_apollo: true\noptim: adamw_torch\ngradient_accumulation_steps: 2\n",
        ),
        (
            LORA + "neat_packing: true\nflash_attn: fa2\n",
            LORA + "neat_packing: true\nflash_attn: fa2\nper_device_train_batch_size: 1\n",
        ),
        (AWQ + "use_dora: true\n", AWQ),
    ],
)
def test_what_llama_factory_stops_at_gets_no_verdict(tmp_path: Path, refused: str, taken: str) -> None:
    """The sentence says whose refusal it is; the neighbour, which its parser takes, is read."""
    with pytest.raises(UsageError, match=REFUSED_BY_TOOL):
        read(tmp_path, refused)
    read(tmp_path, taken)


@pytest.mark.parametrize(
    ("text", "stage"),
    [
        (LORA + "pissa_init: true\n", 3),
        (PLAIN, 3),
        (LORA + "quantization_bit: 8\n", 3),
        (AWQ, 3),
        (PLAIN + "use_apollo: true\noptim: adamw_torch\n", 2),
    ],
)
def test_some_are_refused_beside_an_engine_alone(tmp_path: Path, text: str, stage: int) -> None:
    """ZeRO-3 brings weights together; APOLLO goes with no stage of DeepSpeed."""
    (tmp_path / "ds.json").write_text(
        f'{{"zero_optimization": {{"stage": {stage}}}, "bf16": {{"enabled": "auto"}}, '
        '"train_micro_batch_size_per_gpu": "auto"}',
        encoding="utf-8",
    )
    read(tmp_path, text)
    with pytest.raises(UsageError, match=REFUSED_BY_TOOL):
        read(tmp_path, text + "deepspeed: ds.json\n")


def test_older_versions_did_not_stop_yet(tmp_path: Path) -> None:
    """0.7.1 has no check of DoRA in a full fine-tune."""
    read(tmp_path, FULL + OF_0_7 + "use_dora: true\n")
    with pytest.raises(UsageError, match=REFUSED_BY_TOOL):
        read(tmp_path, FULL + OF_0_7 + "quantization_bit: 4\n")


def test_a_key_that_it_does_not_know_is_told(tmp_path: Path) -> None:
    """It has no pad_to_multiple_of; each key of its own argument classes is known."""
    found = read(tmp_path, LORA + "pad_to_multiple_of: 8\nsortish_sampler: false\n")
    assert [each.origin.partition(":")[2] for each in found.remarks if "stops at it" in each.text] == [
        "pad_to_multiple_of"
    ]


@pytest.mark.parametrize(("kind", "stops"), [("NO", True), ("MULTI_GPU", False)])
def test_deepspeed_without_ranks_is_refused(tmp_path: Path, kind: str, stops: bool) -> None:
    """A process that no launcher gave a rank; where the launch is not known nothing is said."""
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}', encoding="utf-8")
    (tmp_path / "launch.yaml").write_text(f"distributed_type: {kind}\nnum_processes: 1\n", encoding="utf-8")
    text = LORA + "deepspeed: ds.json\n"
    read(tmp_path, text)
    path = tmp_path / "train.yaml"
    beside = Beside(accelerate=tmp_path / "launch.yaml")
    if stops:
        with pytest.raises(UsageError, match="FORCE_TORCHRUN"):
            read_config_file(path, None, beside)
    else:
        assert read_config_file(path, None, beside).request.get("sharding") == "zero2"
