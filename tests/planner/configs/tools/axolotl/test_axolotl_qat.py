"""Axolotl's ``qat``: what is read, and what it stops at."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.configs.read import read_config
from planner.configs.said_by_file import Reading
from planner.errors import NotModelledError, UsageError
from planner.intake.given.config_file import read_config_file, with_flags
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from tests.files import filled, reading_of

BASE = "base_model: Qwen/Qwen3-8B\nsequence_len: 2048\nmicro_batch_size: 1\nbf16: true\n"
QAT = "qat:\n  activation_dtype: {}\n  weight_dtype: {}\n"


def read(folder: Path, text: str) -> Reading:
    """What such a file says."""
    return reading_of(folder, BASE + text)


def test_int8_with_int4_weights_is_read(tmp_path: Path) -> None:
    """In groups of 32, unless the file says another number."""
    found = read(tmp_path, QAT.format("int8", "int4"))
    assert (found.value("qat"), found.value("qat_group")) == ("int8-int4", 32)
    found = read(tmp_path, QAT.format("int8", "int4") + "  group_size: 256\n  fake_quant_after_n_steps: 9\n")
    assert found.value("qat_group") == 256
    request = with_flags(read_config_file(tmp_path / "train.yaml"), from_flags({"gpu": "h100-sxm"}))
    assert resolve(request).recipe.numerics.qat == "int8-int4"


def test_mxfp4_is_read_for_both(tmp_path: Path) -> None:
    """In blocks of 32, which Axolotl asks for, whatever is said of inputs."""
    for text in (QAT.format("mxfp4", "mxfp4"), "qat:\n  weight_dtype: mxfp4\n  group_size: 32\n"):
        found = read(tmp_path, text)
        assert (found.value("qat"), found.value("qat_group")) == ("mxfp4", 32)
    with pytest.raises(UsageError, match="refused-by-its-tool"):
        read(tmp_path, QAT.format("mxfp4", "mxfp4") + "  group_size: 16\n")


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        (QAT.format("int8", "int8"), "int8 with weights in int8 are not modelled"),
        ("qat:\n  weight_dtype: int4\n", "none with weights in int4 are not modelled"),
        (QAT.format("int8", "int4") + "  quantize_embedding: true\n", "a rounded token table"),
    ],
)
def test_other_numbers_are_refused(tmp_path: Path, text: str, refused: str) -> None:
    """Each by a sentence that names them."""
    with pytest.raises(NotModelledError, match=refused):
        read(tmp_path, text)


def test_axolotl_stops_at_nvfp4(tmp_path: Path) -> None:
    """Its torchao has no rounding for the configuration that it hands over."""
    with pytest.raises(UsageError, match="refused-by-its-tool"):
        read(tmp_path, QAT.format("nvfp4", "nvfp4"))


def test_fsdp2_checkpoints_layers_and_their_parts(tmp_path: Path) -> None:
    """Accelerate wraps the parts, and Axolotl the layers around them; FSDP1 the layers alone."""
    text = "fsdp_version: {}\nfsdp_config:\n  activation_checkpointing: true\n  reshard_after_forward: true\n"
    assert read(tmp_path, text.format(2)).switches["checkpoints_twice"][0] == "true"
    old = "fsdp: [full_shard]\nfsdp_version: 1\nfsdp_config:\n  fsdp_activation_checkpointing: true\n"
    assert "checkpoints_twice" not in read(tmp_path, old).switches


def test_ternary_weights_are_read(tmp_path: Path) -> None:
    """Beside the plugin of kernels, which without experts does nothing; of dense models alone."""
    text = "use_onebitllms: true\nplugins: [axolotl.integrations.kernels.KernelsPlugin]\n"
    assert read(tmp_path, text).value("qat") == "ternary"
    config = read_config_file(tmp_path / "train.yaml")
    scenario = filled(config, {"gpu": "h100-sxm"})
    assert scenario.recipe.numerics.rounds(48)
    with pytest.raises(UsageError, match="beside adapters"):
        read(tmp_path, text + "adapter: lora\n")
    with pytest.raises(NotModelledError, match="mixtures of experts"):
        filled(config, {"gpu": "h100-sxm", "model": "qwen3-30b-a3b"})


def test_checkpoints_before_rounding_have_16_bits(tmp_path: Path) -> None:
    """Those of Falcon-E are called prequantized; without the key such a name says that weights are packed."""
    path = tmp_path / "train.yaml"
    text = BASE.replace("Qwen/Qwen3-8B", "tiiuae/Falcon-E-3B-Base-prequantized")
    path.write_text(text + "use_onebitllms: true\n", encoding="utf-8")
    assert read_config(path).value("quantization") is None
    path.write_text(text, encoding="utf-8")
    with pytest.raises(NotModelledError, match="quantised already"):
        read_config(path)
