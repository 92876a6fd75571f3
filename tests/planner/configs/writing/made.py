"""A small file of each tool, and what is read of it after a change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.read import read_config
from planner.configs.writing.sharding_keys import Files
from planner.configs.writing.text import trial_text
from planner.configs.writing.translate import edits_for
from planner.configs.yaml_or_json import read_document
from planner.files.reading import reading_instead
from tests.files import written

BASES = {
    "llama-factory": "model_name_or_path: a/b\nstage: sft\nfinetuning_type: lora\nbf16: true\n",
    "axolotl": (
        "base_model: a/b\nadapter: lora\nlora_r: 8\nlora_target_linear: true\nsequence_len: "
        "64\nmicro_batch_size: 2\n"
    ),
    "trl": "model_name_or_path: a/b\nuse_peft: true\nlora_target_modules: [q_proj]\ndataset_name: c\n",
    "transformers": (
        '{"per_device_train_batch_size": 2, "num_train_epochs": 1, "bf16": true, '
        '"attn_implementation": "sdpa"}'
    ),
    "ms-swift": "model: a/b\ntuner_type: lora\nmax_length: 64\n",
    "unsloth": "model: a/b\ntraining:\n  batch_size: 2\nlora:\n  lora_r: 8\n",
    "lmflow": '{"model_name_or_path": "a/b", "dataset_path": "c", "block_size": 64, "use_lora": true}',
    "deepspeed": '{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}',
    "accelerate": "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\n",
}


def read_with(tool: str, changes: dict[str, Any], tmp_path: Path) -> dict[str, Any] | None:
    """What is read of a tool's file after the edits for ``changes``,
    ``None`` where it has no keys for them.
    """
    path = written(tmp_path, BASES[tool], "file.json" if BASES[tool].startswith("{") else "file.yaml")
    document = read_document(path)
    edits = edits_for(Files(tool, document), changes)
    if edits is None:
        return None
    with reading_instead({path.resolve(): trial_text(document, BASES[tool], edits)}):
        reading = read_config(path, tool, Beside(look=False))
    assert reading.ignored == []
    return {name: said.value for name, said in reading.said.items()}
