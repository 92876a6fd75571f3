"""Vision in files of LLaMA-Factory: what a template says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.configs.read import read_config
from planner.errors import InputFileError
from tests.files import written


@pytest.mark.parametrize(
    ("model", "refused"), [("Qwen/Qwen2.5-7B", False), ("Qwen/Qwen2-VL-7B-Instruct", True)]
)
def test_a_template_that_is_left_open_decides_nothing_of_text(
    tmp_path: Path, model: str, refused: bool
) -> None:
    """A model that sees needs one, because it says how."""
    file = written(
        tmp_path,
        f"model_name_or_path: {model}\nstage: sft\nfinetuning_type: lora\ntemplate: $T\nbf16: true\n",
    )
    if refused:
        with pytest.raises(InputFileError, match=r"placeholder \$T"):
            read_config(file)
    else:
        assert any(each.origin.endswith(":template") for each in read_config(file).remarks)
