"""Launch files that a config's own comments name."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.intake.given.config_file import ConfigFile, read_config_file
from tests.files import remarks

TRAIN = "model_name_or_path: Qwen/Qwen3-8B\nfinetuning_type: full\ntemplate: qwen3\nbf16: true\n"
FSDP = """distributed_type: FSDP
mixed_precision: bf16
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
"""
LAUNCH = "accelerate/fsdp2.yaml"
COMMENT = f"# Usage:\n#   accelerate launch \\\\\n#     --config_file {LAUNCH} train.py\n"
MISSING = COMMENT.replace("fsdp2", "other")


def read(folder: Path, text: str) -> ConfigFile:
    """What a config in a folder of its own says, beside a folder with the launch file."""
    for name, content in {LAUNCH: FSDP, "jobs/train.yaml": text}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    return read_config_file(folder / "jobs/train.yaml")


def test_a_comment_names_the_launch_file(tmp_path: Path) -> None:
    """Without it several GPUs would be DDP, of which such a file is not made."""
    found = read(tmp_path, COMMENT + TRAIN)
    assert found.request.get("sharding") == "fsdp"
    assert found.launch == tmp_path / LAUNCH
    assert "a comment of the config names this launch file" in remarks(found)
    assert read(tmp_path, TRAIN).request.get("sharding") is None


@pytest.mark.parametrize(
    "comment",
    [
        MISSING,
        COMMENT + COMMENT.replace("fsdp2", "other"),
        COMMENT.replace(LAUNCH, f"../{LAUNCH}"),
        COMMENT.replace("#", "x: '", 1).replace("#", " ").replace("train.py", "train.py'"),
    ],
)
def test_no_other_file_is_taken(tmp_path: Path, comment: str) -> None:
    """One that is not there, two, one above the folders, and one that no comment names."""
    found = read(tmp_path, comment + TRAIN)
    assert (found.request.get("sharding"), found.launch) == (None, None)
    assert ("which is not here" in remarks(found)) == (comment == MISSING)


def test_a_key_that_divides_state_wins(tmp_path: Path) -> None:
    """A comment is read only where no key says how state is divided."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/ds.json").write_text('{"zero_optimization": {"stage": 3}}', encoding="utf-8")
    assert read(tmp_path, f"{COMMENT}{TRAIN}deepspeed: ds.json\n").request.get("sharding") == "zero3"
