"""The line that starts a job, tool by tool."""

from __future__ import annotations

import pytest

from planner.configs.launchers.launch_lines import Launch, launch_line

LINES = [
    ("llama-factory", Launch("a.yaml", gpus=8, engine=True), "llamafactory-cli train a.yaml"),
    ("llama-factory", Launch("a.yaml", engine=True), "FORCE_TORCHRUN=1 llamafactory-cli train a.yaml"),
    (
        "llama-factory",
        Launch("a.yaml", "b.yaml"),
        "accelerate launch --config_file b.yaml -m llamafactory.launcher a.yaml",
    ),
    ("llama-factory", Launch("a.json"), ""),
    ("ms-swift", Launch("a.yaml"), "swift sft a.yaml"),
    ("ms-swift", Launch("a.yaml", engine=True), "NPROC_PER_NODE=1 swift sft a.yaml"),
    (
        "ms-swift",
        Launch("a.yaml", deepspeed="z.json", gpus=2),
        "NPROC_PER_NODE=2 swift sft a.yaml --deepspeed z.json",
    ),
    ("ms-swift", Launch("a.yaml", "b.yaml", gpus=2), ""),
    ("axolotl", Launch("a.yml", engine=True), "axolotl train a.yml --launcher torchrun"),
    (
        "axolotl",
        Launch("a.yml", deepspeed="z.json", gpus=2, engine=True),
        "axolotl train a.yml --deepspeed z.json",
    ),
    ("trl", Launch("a.yaml", engine=True), "torchrun --nproc_per_node 1 -m trl.scripts.sft --config a.yaml"),
    ("trl", Launch("a.yaml", gpus=2, engine=True), "trl sft --config a.yaml"),
    ("trl", Launch("a.yaml", gpus=2, engine=True, task="dpo"), "trl dpo --config a.yaml"),
    ("trl", Launch("a.yaml", task="orpo"), ""),
    # TRL's commands stop at dataset_mixer.
    (
        "trl",
        Launch("a.yaml", "b.yaml", task="orpo", mixes=True),
        "accelerate launch --config_file b.yaml scripts/run_orpo.py a.yaml",
    ),
    ("trl", Launch("a.yaml", task="kto", mixes=True), ""),
    (
        "transformers",
        Launch("a.json", deepspeed="z.json", gpus=2, engine=True),
        (
            "accelerate launch --num_processes 2 --use_deepspeed --deepspeed_config_file z.json "
            "YOUR_SCRIPT.py a.json"
        ),
    ),
]


@pytest.mark.parametrize(
    ("tool", "launch", "line"), LINES, ids=[f"{case[0]}-{i}" for i, case in enumerate(LINES)]
)
def test_the_line_starts_what_was_judged(tool: str, launch: Launch, line: str) -> None:
    """An engine on one GPU gets a rank, and arguments stand where the tool reads them."""
    assert launch_line(tool, launch) == line
