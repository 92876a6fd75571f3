"""Liger's kernels in files of TRL, which keeps its own loss beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.read import read_config
from planner.errors import UsageError
from tests.files import written

TRL = "model_name_or_path: a/b\nuse_peft: true\nlora_target_modules: [q_proj]\ndataset_name: c\n"
TAKES_IT_OUT = "liger_kernel_config: {fused_linear_cross_entropy: false}\n"


@pytest.mark.parametrize("also", ["", "loss_type: nll\n", TAKES_IT_OUT])
def test_trl_keeps_its_own_loss_beside_liger(tmp_path: Path, also: str) -> None:
    """use_liger_kernel brings its norms and feed-forward part, and no loss."""
    path = written(tmp_path, TRL + "use_liger_kernel: true\n" + also, "file.yaml")
    reading = read_config(path, "trl", Beside(look=False))
    assert reading.value("loss") == "chunked"
    assert reading.ignored == []
    assert not any("loss" in remark.text for remark in reading.remarks)


@pytest.mark.parametrize("also", ["", "desirable_weight: 1.0\n"])
def test_trl_fails_where_ligers_loss_is_asked_for(tmp_path: Path, also: str) -> None:
    """Trainers of answers and of preferences both: their head is fused with a loss of their own."""
    asked = TAKES_IT_OUT.replace("false", "true")
    path = written(tmp_path, TRL + "use_liger_kernel: true\n" + also + asked, "file.yaml")
    with pytest.raises(UsageError, match=r"fused_linear_cross_entropy: TRL 1\.16\.0 fails here"):
        read_config(path, "trl", Beside(look=False))


@pytest.mark.parametrize("sign", ["max_seq_length: 512\n", "torch_dtype: bfloat16\n"])
def test_older_trl_takes_ligers_loss(tmp_path: Path, sign: str) -> None:
    """Up to 1.9 no trainer looks at liger_kernel_config, and the loss of SFT is the model's."""
    asked = TAKES_IT_OUT.replace("false", "true")
    path = written(tmp_path, TRL + sign + "use_liger_kernel: true\n" + asked, "file.yaml")
    assert read_config(path, "trl", Beside(look=False)).value("loss") == "liger"


@pytest.mark.parametrize(("also", "on"), [(", cross_entropy: true", True), ("", False)])
def test_ligers_cross_entropy_stands_alone(tmp_path: Path, also: str, *, on: bool) -> None:
    """The logits are those of Transformers, whose log-softmax is not there.  A dry run of Axolotl 0.19 with
    it (full, Llama 3.2 1B) allocates 14.48 GiB, where its default has 15.46.
    """
    path = tmp_path / "file.yaml"
    config = "liger_kernel_config: {fused_linear_cross_entropy: false" + also + "}\n"
    path.write_text("per_device_train_batch_size: 1\nuse_liger_kernel: true\n" + config, encoding="utf-8")
    reading = read_config(path, None, Beside(look=False))
    assert reading.value("loss") == "hf"
    assert ("loss_forward" in str(reading.said.get("switches"))) is on
