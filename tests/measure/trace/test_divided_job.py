"""A job that an engine divides is laid out as a program, or refused with a way out."""

from __future__ import annotations

import base64
import json
import pickle

import pytest

from tests.extras import import_or_skip

import_or_skip("peft")

from functools import partial

from measure.trace.divided_job import divided_job
from measure.trace.engine_program import MODEL_FOLDER, SCENARIO_FILE, Rows
from planner.errors import NotModelledError
from tests.jobs import resolved

FLAGS = {"model": "qwen2.5-0.5b", "method": "full", "gpu": "a100-80-sxm:4", "seq": 512, "sharding": "zero3"}


job = partial(resolved, FLAGS, force=True)
"""On four cards, with DeepSpeed where nothing else is said."""


def test_the_program_gets_the_job_and_the_model() -> None:
    """A process for each card; of sixteen micro-batches two, which show what gradients do."""
    made = divided_job(job(grad_accum=16, batch=2))
    assert made.command[:3] == ("torchrun", "--nproc_per_node", "4")
    assert json.loads(made.files[f"{MODEL_FOLDER}/config.json"])["model_type"] == "qwen2"
    read = pickle.loads(base64.b64decode(made.files[SCENARIO_FILE]))
    assert (read.recipe.batch.micro_batch, read.recipe.batch.grad_accum) == (2, 2)
    assert read.recipe.sharding.is_zero3


def test_rows_are_as_long_as_the_longest() -> None:
    """And nothing in them is padded."""
    row = Rows(512)[0]
    assert {len(each) for each in row.values()} == {512}
    assert row["attention_mask"].all()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"task": "orpo"}, "task 'orpo' over several cards"),
        ({"loss": "chunked", "stack": "trl"}, "loss 'chunked' over several cards"),
        ({"sharding": "hsdp"}, "sharding 'hsdp' over several cards"),
        ({"stack": "torchtune", "sharding": "fsdp"}, "stack 'torchtune'"),
        ({"sharding": "hsdp", "replicas": 1}, "copies other than one on each node"),
    ],
)
def test_what_the_trainer_alone_does_not_do_is_refused(flags: dict[str, object], words: str) -> None:
    """With another setting, or the dry run of a program."""
    with pytest.raises(NotModelledError, match=words) as caught:
        divided_job(job(**flags))
    assert "measure trace" in str(caught.value) or "; use " in str(caught.value)
