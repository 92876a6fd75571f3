"""What one answer is about: the peak and the terms that are shown of it."""

from __future__ import annotations

import pytest

from planner.api.answering import How, answer_job
from planner.domain.prediction import Prediction
from planner.domain.term import LENGTH_CACHE
from planner.report.prediction.subject import peaks_to_show, terms_at_peak
from tests.jobs import typed

UPDATE = typed("--model qwen3-8b --method full --gpu b200:2 --sharding ddp --stack torchtune --batch 3")
HEAD = {"model": "qwen3-0.6b", "method": "lora", "gpu": "b200", "stack": "hf-trainer@5", "batch": 8}


@pytest.mark.parametrize("memory", ["170GiB", "12GiB"])
@pytest.mark.parametrize("job", [UPDATE, HEAD], ids=["optimizer step", "loss"])
def test_what_is_shown_at_the_peak_adds_up_to_it(job: dict[str, object], memory: str) -> None:
    """Samples of natural lengths: whichever phase has the peak, and also where the card does not hold it."""
    lengths = {"seq": 4096, "tokens_per_sample": 1365, "padding": "longest"}
    flags = {**job, **lengths, "gpu_memory": memory}
    shown = answer_job(flags, None, How(advise=False)).prediction
    terms = terms_at_peak(shown)
    assert any(term.label == LENGTH_CACHE for term in terms)
    assert_adds_up(shown)


@pytest.mark.parametrize(("rank", "phase"), [(8, "load"), (32, "backward_2")])
def test_columns_of_older_int8_layers_are_in_the_peak_of_steps_alone(rank: int, phase: str) -> None:
    """A checkpoint in fp32 is loaded before any column meets an outlier."""
    job = {"model": "olmo-2-7b", "method": "int8", "gpu": "b200", "stack": "axolotl@0.8", "precision": "bf16"}
    sizes = {"seq": 1024, "batch": 2, "lora_rank": rank, "gradient_checkpointing": True, "loss": "chunked"}
    shown = answer_job({**job, **sizes, "offload": "activations"}, None, How(advise=False)).prediction
    assert shown.memory.limiting_phase == phase
    assert_adds_up(shown)


def assert_adds_up(shown: Prediction) -> None:
    """Terms at the peak are what the three levels say."""
    terms = terms_at_peak(shown)
    total = sum(float(term.n_bytes) for term in terms)
    assert float(peaks_to_show(shown).driver_bytes) == pytest.approx(total)
    assert float(shown.memory.uncapped_driver_bytes) == pytest.approx(total)
