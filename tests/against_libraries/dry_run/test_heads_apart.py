"""A head that its checkpoint holds beside the embedding, and values that nobody has, compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.against_libraries.dry_run.test_dry_run import folder, run
from tests.against_libraries.dry_run.test_dry_run import pytestmark as needed

__all__ = ["folder"]
pytestmark = [pytest.mark.real, *needed]
# Each matrix of the vocabulary has 4 MiB: no values.
T5 = {"model_type": "t5", "vocab_size": 8192, "d_model": 128, "d_ff": 256, "num_layers": 1, "num_heads": 2}
LOADS = """
import sys, torch, transformers
model = transformers.AutoModelForSeq2SeqLM.from_pretrained("model").cuda()
assert (model.lm_head.weight is model.shared.weight) == (sys.argv[1] == "one")
assert model.encoder.embed_tokens.weight is model.shared.weight
optimizer = torch.optim.SGD(model.parameters())
ids = torch.ones(1, 8, dtype=torch.long, device="cuda")
model(input_ids=ids, labels=ids).loss.backward()
optimizer.step()
"""
COMPARES = """
import torch
for device in ("cpu", "cuda"):
    one, other = (torch.empty(1024, 1024, device=device) for _ in range(2))
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    assert not torch.equal(one, other)
    assert (torch.cuda.max_memory_allocated() - before >= 2**20) == (device == "cuda")
    assert torch.equal(one, one) and not torch.equal(one, other[:5])
few = torch.arange(5, device="cuda")
assert torch.equal(few, torch.arange(5).cuda()) and not torch.equal(few, few + 1)
model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters())
model(torch.zeros(2, 4, device="cuda")).sum().backward()
optimizer.step()
"""


@pytest.mark.parametrize(("matrices", "fields"), [("one", {}), ("two", {"tie_word_embeddings": False})])
def test_a_head_that_config_json_says_apart_is_loaded_apart(
    matrices: str, fields: dict[str, bool], folder: Path
) -> None:
    """As of FLAN-T5, though T5Config of Transformers 5 takes every head for the embedding."""
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text(
        json.dumps({**T5, "decoder_start_token_id": 0, **fields}), encoding="utf-8"
    )
    (folder / "train.py").write_text(LOADS, encoding="utf-8")
    job = ("--gpu", "4090", "--steps", "1", "--", "python", "train.py", matrices)
    code, _, err = run("trace", *job)
    assert code == 0, err


def test_tensors_without_values_are_not_the_same(folder: Path) -> None:
    """Unless they are one; those with values are compared, and other shapes are no guess."""
    (folder / "train.py").write_text(COMPARES, encoding="utf-8")
    code, out, err = run("trace", "--gpu", "4090", "--steps", "1", "--json", "--", "python", "train.py")
    assert code == 0, err
    guessed = [each for each in json.loads(out)["assumptions"] if "aten.equal" in each["note"]]
    assert len(guessed) == 1, guessed
