"""Packed samples in files of TRL, Axolotl and LLaMA-Factory's v1: who of them brings a mask."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from planner.api.answering import read_request
from planner.domain.scenario import Scenario
from planner.errors import UsageError
from planner.intake.resolve import resolve
from planner.memory.replayed import replayed
from planner.predicting import PRIORS
from planner.program.job import job_of
from planner.units import GIB

FILE = "model_name_or_path: Qwen/Qwen2.5-0.5B\nper_device_train_batch_size: 4\nmax_length: 1024\n"
FREE = "padding_free: true\nmax_length: null\n"
FLASH = "attn_implementation: flash_attention_2\n"


def scenario_of(folder: Path, text: str) -> Scenario:
    """The job of a file, on an A100."""
    return resolve(read_request({"gpu": "a100-80-sxm", "seq": "1024"}, str(written(folder, text)))[0])


def written(folder: Path, text: str) -> Path:
    """A file with these keys besides, of which a length may be one."""
    lines = FILE.replace("max_length: 1024\n", "") if "null" in text else FILE
    path = folder / "sft.yaml"
    path.write_text(lines + text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "padding", "masked"),
    [
        ("packing: true\n", "packed", True),
        ("packing: true\npacking_strategy: bfd\n", "packed", True),
        ("packing: true\npacking_strategy: wrapped\n", "packed", False),
        ("packing: true\npacking_strategy: wrapped\npadding_free: true\n", "packed", True),
        ("packing: true\n" + FLASH, "packed", False),
        (FREE, "packed", True),
        (FREE + FLASH, "longest", False),
        ("model_init_kwargs: {attn_implementation: flash_attention_2}\n" + FREE, "longest", False),
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
        (FREE, False),
        ("padding_free: true\npacking: true\n", False),
        ("padding_free: false\n", False),
    ],
)
def test_a_length_that_nothing_keeps_is_refused(tmp_path: Path, text: str, stops: bool) -> None:
    """TRL's newest stops where a length is given and neither padding nor packing uses it."""
    with pytest.raises(UsageError, match=r"padding_free: TRL 1\.16\.0 stops") if stops else nullcontext():
        scenario_of(tmp_path, text)


AXOLOTL = """base_model: meta-llama/Llama-3.2-1B
datasets: [{path: teknium/GPT4-LLM-Cleaned, type: alpaca}]
adapter: lora
lora_r: 16
lora_alpha: 32
lora_target_linear: true
sequence_len: 2048
sample_packing: true
pad_to_sequence_len: true
gradient_accumulation_steps: 1
num_epochs: 1
optimizer: adamw_torch_fused
learning_rate: 0.0002
bf16: true
"""


@pytest.mark.parametrize(
    ("attention", "rows", "dropout", "checkpoints", "gib"),
    [
        ("sdpa", 4, 0.05, False, 25.56),
        ("flash_attention_2", 4, 0.05, False, 24.81),
        ("eager", 4, 0.05, False, 73.55),
        ("sdpa", 4, 0.0, False, 23.31),
        ("flash_attention_2", 4, 0.0, False, 22.56),
        ("sdpa", 4, 0.05, True, 14.74),
        ("sdpa", 1, 0.05, False, 8.23),
        ("flash_attention_2", 1, 0.05, False, 8.05),
        ("sdpa", 1, 0.05, True, 5.51),
    ],
)
def test_what_axolotl_itself_allocates(
    tmp_path: Path, attention: str, rows: int, dropout: float, *, checkpoints: bool, gib: float
) -> None:
    """Peaks of dry runs of Axolotl 0.19 (``measure trace --check FILE --lengths 500``)."""
    path = tmp_path / "axolotl.yaml"
    more = {
        "attn_implementation": attention,
        "micro_batch_size": rows,
        "lora_dropout": dropout,
        "gradient_checkpointing": str(checkpoints).lower(),
    }
    text = AXOLOTL + "".join(f"{name}: {value}\n" for name, value in more.items())
    path.write_text(text, encoding="utf-8")
    scenario = resolve(read_request({"gpu": "a100-80-sxm"}, str(path))[0])
    made = replayed(job_of(scenario, PRIORS))
    assert made.allocated_bytes / GIB == pytest.approx(gib, rel=0.01)


@pytest.mark.parametrize(("key", "masked"), [("", False), ("sdpa_varlen: false\n", True)])
def test_axolotls_kernel_is_turned_off_by_a_key(tmp_path: Path, key: str, *, masked: bool) -> None:
    """Then torch's fused attention gets a mask of each row."""
    path = tmp_path / "axolotl.yaml"
    path.write_text(AXOLOTL + "attn_implementation: sdpa\nmicro_batch_size: 4\n" + key, encoding="utf-8")
    scenario = resolve(read_request({"gpu": "a100-80-sxm"}, str(path))[0])
    assert scenario.stack.masks_samples(scenario.recipe) is masked
    assert not scenario.stack.joins_rows(scenario.recipe)


@pytest.mark.parametrize(("key", "masked"), [("", True), ("sdp_attention: true\n", False)])
def test_axolotls_kernel_waits_for_the_name_of_attention(tmp_path: Path, key: str, *, masked: bool) -> None:
    """Without one torch's fused attention gets the mask of the batch, which hides the padding behind a pack:
    a run of Axolotl 0.19 with Qwen2.5 0.5B and 2 rows of 2 x 500 of 1,024 tokens allocates 6.34 GiB.
    """
    path = tmp_path / "axolotl.yaml"
    path.write_text(AXOLOTL + "micro_batch_size: 4\n" + key, encoding="utf-8")
    scenario = resolve(read_request({"gpu": "a100-80-sxm"}, str(path))[0])
    assert scenario.recipe.attention == "sdpa"
    assert scenario.stack.masks_samples(scenario.recipe) is masked


@pytest.mark.parametrize(
    ("attention", "padding", "masked"),
    [("sdpa", "packed", True), ("eager", "packed", True), ("flash_attention_2", "longest", False)],
)
def test_v1_of_llama_factory_joins_samples(
    tmp_path: Path, attention: str, padding: str, *, masked: bool
) -> None:
    """``padding_free`` lays a micro-batch in one row."""
    path = tmp_path / "v1.yaml"
    text = "model: Qwen/Qwen2.5-0.5B\ntrain_dataset: data.yaml\ncutoff_len: 1024\n"
    text += "micro_batch_size: 4\nglobal_batch_size: 8\ndist_config: {name: fsdp2}\n"
    path.write_text(f"{text}flash_attn: {attention}\nbatching_strategy: padding_free\n", encoding="utf-8")
    scenario = resolve(read_request({"gpu": "a100-80-sxm", "gpus": 2}, str(path))[0])
    assert scenario.recipe.batch.padding == padding
    assert scenario.stack.masks_samples(scenario.recipe) is masked
    assert scenario.stack.joins_rows(scenario.recipe) is masked
