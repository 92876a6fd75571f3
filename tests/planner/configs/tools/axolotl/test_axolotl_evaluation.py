"""How many samples a file of Axolotl evaluates at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import NotModelledError, UsageError
from tests.files import read

BASE = "base_model: Qwen/Qwen2.5-0.5B\nsequence_len: 512\nmicro_batch_size: 3\n"
HELD = BASE + "val_set_size: 0.05\n"


@pytest.mark.parametrize(
    ("text", "samples"),
    [
        (HELD, 3),
        (HELD + "eval_batch_size: 2\n", 2),
        (BASE + "eval_batch_size: 2\n", None),
        (HELD + "eval_batch_size: 8\nsample_packing: true\n", 3),
        (HELD + "eval_batch_size: 8\nsample_packing: true\neval_sample_packing: false\n", 8),
        # A key of Axolotl up to 0.8.
        (HELD + "eval_batch_size: 8\nsample_packing: true\nlocal_rank:\n", 8),
    ],
)
def test_evaluation_has_the_micro_batch_where_samples_are_held_back(
    tmp_path: Path, text: str, samples: int | None
) -> None:
    """normalize_config; without held-back samples nothing is evaluated, and packs are those of training."""
    config = read(tmp_path, text)
    assert config.request.get("eval_batch") == samples
    ignored = [remark for remark in config.remarks if remark.origin.endswith("eval_batch_size")]
    assert bool(ignored) == (samples == 3 and "eval_batch_size" in text)


def test_longer_samples_of_evaluation_are_refused(tmp_path: Path) -> None:
    """Samples held back from training are as long as its own, whatever the key says (utils/data/sft.py)."""
    longer = "eval_sequence_len: 1024\n"
    assert read(tmp_path, HELD + longer).request.get("eval_batch") == 3
    with pytest.raises(NotModelledError, match="longer samples"):
        read(tmp_path, BASE + longer + "test_datasets:\n  - path: notes\n")


def test_the_best_checkpoint_needs_a_measure(tmp_path: Path) -> None:
    """check_save_strategy_best_requires_metric, which versions before 2026-04 do not have."""
    best = HELD + "save_strategy: best\n"
    with pytest.raises(UsageError, match="metric_for_best_model"):
        read(tmp_path, best)
    for more in ("metric_for_best_model: eval_loss\n", "local_rank:\n"):
        assert read(tmp_path, best + more).request.get("batch") == 3
