"""The model of a file: folders of another machine, which are not here."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import InputFileError, NotModelledError
from planner.intake.given.config_file import ConfigFile, with_flags
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from tests.files import read as read_file

REST = "finetuning_type: lora\ntemplate: qwen\nbf16: true\n"


def read(folder: Path, model: str) -> ConfigFile:
    """What a file says that names this model."""
    return read_file(folder, f"model_name_or_path: {model}\n{REST}")


@pytest.mark.parametrize(
    ("model", "meant"),
    [
        ("/data/models/Qwen3-0.6B", "qwen3-0.6b"),
        ("checkpoints/Qwen/Qwen2.5-14B-Instruct/", "qwen2.5-14b"),
        ("Qwen2.5-14B-Instruct/", "qwen2.5-14b"),
        ("/root/models/qwen/Qwen2___5-7B-Instruct", "qwen2.5-7b"),
        ("/m/Qwen3-0.6B-mine", "qwen3-0.6b"),
        ("/path/to/Qwen2.5-Math-7B", "qwen2.5-7b"),
        ("saves/Qwen3-8b-sft/checkpoint-3000/", "qwen3-8b"),
        ("saves/Llama-3-8B/full/sft_epoch2_lr5e-6/checkpoint-500", "llama-3-8b"),
        ("out/qwen2_5_vl_7b_mine/hf_1834", "qwen2.5-vl-7b"),
        ("/hf/models--Qwen--Qwen2.5-7B-Instruct/snapshots/5d8e171e5ee60e8c", "qwen2.5-7b"),
    ],
)
def test_a_folder_of_another_machine_is_the_model_of_its_name(tmp_path: Path, model: str, meant: str) -> None:
    """The answer says so; --model wins."""
    found = read(tmp_path, model)
    assert found.request.get("model") == meant
    assert any("is not here" in each.text for each in found.remarks)
    flags = from_flags({"model": "gpt2", "gpu": "4090"})
    assert with_flags(found, flags).get("model") == "gpt2"


@pytest.mark.parametrize(
    "model",
    [
        *("/out/checkpoint-900", "saves/qwen2.5/full/sft", "/m/Qwen3-0.6B-lora", "/m/qwen2.5-14B-addtoken"),
        # Of an adapter, of another model, or stored packed.
        *(
            "saves/Qwen3-0.6B/lora/sft",
            "/m/Qwen3-0.6B/reward",
            "/m/Qwen3-0.6B/phi9",
            "/m/Qwen3-0.6B-GPTQ/sft",
        ),
    ],
)
def test_another_folder_is_asked_for(tmp_path: Path, model: str) -> None:
    """A name that tells no model, or one of other shapes, says nothing."""
    request = with_flags(read(tmp_path, model), from_flags({"gpu": "4090"}))
    with pytest.raises(InputFileError, match="no such file"):
        resolve(request)


def test_a_checkpoint_in_fp8_is_unpacked_where_the_tool_asks_for_it(tmp_path: Path) -> None:
    """LLaMA-Factory since 0.9.4 does, on any card, and passes over the bits that a file asks for."""
    model, card = "mistralai/Ministral-3-8B-Instruct-2512", from_flags({"gpu": "h100-sxm"})
    for text in (model, f"{model}\nquantization_bit: 4"):
        scenario = resolve(with_flags(read(tmp_path, text), card))
        assert (scenario.model.id, scenario.recipe.numerics.quantization) == ("ministral-3-8b", "none")


def test_a_checkpoint_in_fp8_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    """Its name does not say how it is stored."""
    with pytest.raises(NotModelledError, match="released in FP8"):
        read(tmp_path, "deepseek-ai/DeepSeek-V3.1")


def test_a_folder_that_is_here_is_itself(tmp_path: Path) -> None:
    """Whatever its name is."""
    (tmp_path / "a/b/Qwen3-0.6B").mkdir(parents=True)
    found = read(tmp_path, "a/b/Qwen3-0.6B")
    assert found.request.get("model") == "a/b/Qwen3-0.6B"
    assert not any("is not here" in each.text for each in found.remarks)
