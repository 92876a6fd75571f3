"""Files of LLaMA-Factory that say neither bf16 nor fp16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.errors import UsageError
from tests.files import filled, read

LORA = "model_name_or_path: Qwen/Qwen2.5-0.5B\nfinetuning_type: lora\ntemplate: qwen\ndo_train: true\n"
FP16 = (
    "model_name_or_path: meta-llama/Llama-2-7b-hf\nfinetuning_type: lora\ntemplate: llama2\ndo_train: true\n"
)
ZERO2 = '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}'


def numerics_of(folder: Path, text: str, **flags: str) -> Any:
    """The numbers that a file with this text computes in."""
    return filled(read(folder, text), {"gpu": "a100-80-sxm", **flags}).recipe.numerics


@pytest.mark.parametrize(
    ("text", "precision", "load_dtype"),
    [
        (LORA, "bf16", "bf16"),
        (LORA + "quantization_bit: 4\n", "bf16", "bf16"),
        (LORA + "stage: dpo\n", "bf16", "bf16"),
        (LORA + "tokenized_path: saves/data\n", "bf16", "bf16"),
        (FP16, "fp16", "fp16"),
        (LORA.replace("lora", "full"), "fp32", "bf16"),
        (LORA + "bf16: true\n", "bf16-mixed", "bf16"),
        (LORA.replace("lora", "full") + "pure_bf16: true\n", "bf16", "bf16"),
        (LORA.replace("lora", "full") + "pure_bf16: true\nbf16: true\n", "bf16-mixed", "bf16"),
    ],
)
def test_the_checkpoint_or_fp32_decides(tmp_path: Path, text: str, precision: str, load_dtype: str) -> None:
    """Each but that of the fp16 checkpoint was compared with the dry run of llamafactory 0.9.5, where data
    are prepared as they come.
    """
    found = numerics_of(tmp_path, text)
    assert (found.precision, found.load_dtype) == (precision, load_dtype)
    assert numerics_of(tmp_path, text, precision="fp32").precision == "fp32"


@pytest.mark.parametrize(
    "text",
    [
        LORA.replace("do_train: true\n", "stage: sft\n"),
        LORA.replace("lora", "freeze"),
        LORA.replace("lora", "full") + "stage: dpo\n",
        LORA + "deepspeed: ds.json\n",
        LORA + "cutoff_len: 512\noverwrite_cache: true\n",
        LORA.replace("template: qwen", "template: qwen2_vl"),
        FP16 + "quantization_bit: 4\n",
    ],
)
def test_what_nobody_compared_is_asked_for(tmp_path: Path, text: str) -> None:
    """No do_train, other training, an engine, older software, images, a packed fp16 base."""
    (tmp_path / "ds.json").write_text(ZERO2, encoding="utf-8")
    with pytest.raises(UsageError, match=r"say .*--precision"):
        numerics_of(tmp_path, text)


def test_with_deepspeed_the_way_out_is_autocast(tmp_path: Path) -> None:
    """Its masters refuse weights in 16 bits without it."""
    (tmp_path / "ds.json").write_text(ZERO2, encoding="utf-8")
    with pytest.raises(UsageError, match="--precision bf16-mixed"):
        numerics_of(tmp_path, LORA + "deepspeed: ds.json\n")
    found = numerics_of(tmp_path, LORA + "deepspeed: ds.json\n", precision="bf16-mixed")
    assert found.precision == "bf16-mixed"
