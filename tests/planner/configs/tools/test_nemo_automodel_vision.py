"""Recipes of NeMo AutoModel for models that see: the frozen tower, the images, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.errors import NotModelledError
from planner.intake.given.config_file import read_config_file, with_flags
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.predicting import estimate
from tests.files import reading_of as read

QWEN = """
recipe: FinetuneRecipeForVLM
step_scheduler: {global_batch_size: 8, local_batch_size: 1}
model:
  _target_: nemo_automodel.NeMoAutoModelForImageTextToText.from_pretrained
  pretrained_model_name_or_path: Qwen/Qwen3-VL-4B-Thinking
processor: {_target_: transformers.AutoProcessor.from_pretrained, max_pixels: 1003520}
loss_fn: {_target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy}
dataset: {_target_: nemo_automodel.components.datasets.vlm.datasets.make_rdr_dataset}
dataloader:
  collate_fn: {_target_: nemo_automodel.components.datasets.vlm.collate_fns.qwen2_5_collate_fn}
optimizer: {_target_: torch.optim.AdamW, lr: 1.0e-5}
freeze_config: {freeze_embeddings: true, freeze_vision_tower: true}
"""


def test_a_frozen_tower_is_in_the_root_and_sees_one_image(tmp_path: Path) -> None:
    """Sequences are as long as the data have them."""
    found = read(tmp_path, QWEN)
    assert found.value("freeze") == ("vision_tower", "projector")
    assert found.value("image_size") == "1001x1001"
    assert found.value("images_per_sample") == 1
    assert found.switches["tower_units"][0] == "in_root"
    assert found.switches["caches_keys"][0] == "true"
    assert "say --seq" in found.needs["seq"]


def test_the_root_gathers_the_tower(tmp_path: Path) -> None:
    """Its weights are whole on each card beside those of the table, in 16 bits."""
    read(tmp_path, QWEN)
    given = from_flags({"gpu": "h100-sxm:8", "seq": 2048})
    scenario = resolve(with_flags(read_config_file(tmp_path / "train.yaml"), given))
    apart = replace(scenario, stack=replace(scenario.stack, tower_units="layers"))
    in_root, in_layers = (float(estimate(each).memory.allocated_peak_bytes) for each in (scenario, apart))
    # Seven eighths of 24 blocks of 12.6 M weights at least, and of the tower's 415 M at most.
    assert 7 / 8 * 24 * 12.6e6 * 2 <= in_root - in_layers <= 7 / 8 * 415e6 * 2


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("freeze_vision_tower: true", "freeze_vision_tower: false", "tower that learns"),
        ("freeze_config: {freeze_embeddings: true, freeze_vision_tower: true}", "", "tower that learns"),
        ("freeze_embeddings: true", "freeze_language_model: true", "frozen language model"),
        ("optimizer:", "peft: {dim: 8}\noptimizer:", "adapters of models that see"),
        ("optimizer:", "distributed: {activation_checkpointing: true}\noptimizer:", "layers of towers"),
        ("make_rdr_dataset", "build_mock_dataset", "made up"),
        ("qwen2_5_collate_fn}", "default_collate_fn, max_length: 512}", "cut or padded"),
        ("Qwen/Qwen3-VL-4B-Thinking", "google/gemma-3-4b-it", "qwen3_vl"),
        ("ImageTextToText", "CausalLM", "NeMoAutoModelForImageTextToText is"),
        ("FinetuneRecipeForVLM", "TrainFinetuneRecipeForNextTokenPrediction", "parts frozen"),
    ],
)
def test_what_is_not_modelled_is_refused(tmp_path: Path, before: str, after: str, sentence: str) -> None:
    """Each by a sentence of its own."""
    assert before in QWEN
    with pytest.raises(NotModelledError, match=sentence):
        read(tmp_path, QWEN.replace(before, after))
