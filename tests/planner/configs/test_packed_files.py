"""Packed samples in files of TRL: which of its ways to pack brings a mask."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.api.answering import read_request
from planner.domain.scenario import Scenario
from planner.intake.resolve import resolve

FILE = "model_name_or_path: Qwen/Qwen2.5-0.5B\nper_device_train_batch_size: 4\nmax_length: 1024\n"
FLASH = "attn_implementation: flash_attention_2\n"


def scenario_of(folder: Path, text: str) -> Scenario:
    """The job of a file, on an A100."""
    path = folder / "sft.yaml"
    path.write_text(FILE + text, encoding="utf-8")
    return resolve(read_request({"gpu": "a100-80-sxm"}, str(path))[0])


@pytest.mark.parametrize(
    ("text", "padding", "masked"),
    [
        ("packing: true\n", "packed", True),
        ("packing: true\npacking_strategy: bfd\n", "packed", True),
        ("packing: true\npacking_strategy: wrapped\n", "packed", False),
        ("packing: true\npacking_strategy: wrapped\npadding_free: true\n", "packed", True),
        ("packing: true\n" + FLASH, "packed", False),
        ("padding_free: true\n", "packed", True),
        ("padding_free: true\n" + FLASH, "longest", False),
        (
            "model_init_kwargs: {attn_implementation: flash_attention_2}\npadding_free: true\n",
            "longest",
            False,
        ),
        ("packing_strategy: bfd\n", "longest", False),
    ],
)
def test_who_gets_a_mask(tmp_path: Path, text: str, padding: str, masked: bool) -> None:
    """Rows that are cut from one text have no borders; FlashAttention needs no mask."""
    scenario = scenario_of(tmp_path, "use_peft: true\n" + text)
    assert scenario.recipe.batch.padding == padding
    assert scenario.stack.masks_samples(scenario.recipe) is masked


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("padding_free: true\n", True),
        ("padding_free: true\n" + FLASH, True),
        ("padding_free: true\nmax_length: null\n", False),
        ("padding_free: true\npacking: true\n", False),
        ("padding_free: false\n", False),
    ],
)
def test_a_length_that_nothing_keeps_is_remarked(tmp_path: Path, text: str, stops: bool) -> None:
    """TRL's newest stops where a length is given and neither padding nor packing uses it."""
    lines = FILE.replace("max_length: 1024\n", "") if "null" in text else FILE
    path = tmp_path / "sft.yaml"
    path.write_text(lines + text, encoding="utf-8")
    _, notes = read_request({"gpu": "a100-80-sxm", "seq": "1024"}, str(path))
    assert any("padding_free: TRL 1.16.0 stops" in each for each in notes) is stops
