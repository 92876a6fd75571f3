"""A prediction as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from planner.domain.term import TimeTerm
from planner.report.prediction.document import PredictionDocument
from planner.report.prediction.subject import Subject
from planner.report.prediction.to_json import prediction_document, to_json
from tests.jobs import resolved
from tests.planner.report.prediction.made import (
    lever,
    prediction,
    scenario,
    short_of_memory,
    subject,
)


def test_json_is_valid_by_its_own_models_and_complete() -> None:
    """The text parses into the published models, and holds integer bytes, terms, phases,
    assumptions and the verdict.
    """
    made = Subject(scenario(), short_of_memory(), [lever(step_time_ratio=math.inf)], explain=True)
    text = to_json(made)
    document = PredictionDocument.model_validate_json(text)
    assert document == prediction_document(made)
    data = json.loads(text)
    assert data["schema"] == "planner/prediction@1"
    assert isinstance(data["memory"]["driver_peak_bytes"], int)
    assert [term["label"] for term in data["memory"]["terms"]] == [
        term.label for term in made.prediction.memory.terms
    ]
    assert [phase["phase"] for phase in data["memory"]["phases"]] == ["loss", "backward"]
    assert len(data["assumptions"]) == len(made.scenario.assumptions)
    (found,) = data["levers"]
    assert (found["flags"], found["flags_text"], found["fits"]) == ({"seq": "512"}, "--seq 512", True)
    assert (found["saves_bytes"], found["step_time_ratio"]) == (1610612736, None)
    assert data["explanations"][0]["formula"] == "planner.units:format_gib"
    assert data["scenario"]["recipe"]["lora_rank"] == 16


@pytest.mark.parametrize(
    ("stated", "changed"),
    [
        ({"pipeline_schedule": "interleaved", "pipeline_runs": 4}, {"pipeline_runs": 8}),
        (
            {"pipeline_first_layers": 14, "pipeline_last_layers": 18},
            {"pipeline_first_layers": 18, "pipeline_last_layers": 14},
        ),
    ],
)
def test_two_jobs_never_print_one_recipe(stated: dict[str, Any], changed: dict[str, Any]) -> None:
    """Runs of layers and the layers of a pipeline's ends are in it, as they were said."""
    base = {"model": "llama-3.1-8b", "method": "full", "stack": "megatron", "gpu": "h100-sxm:8", "seq": 4096}
    base |= {"pipeline_parallel": 2, "grad_accum": 16}

    def recipe(**flags: Any) -> dict[str, Any]:
        made = Subject(resolved(base, **flags), prediction(), [])
        return dict(json.loads(to_json(made))["scenario"]["recipe"])

    first, second = recipe(**stated), recipe(**stated | changed)
    assert stated.items() <= first.items()
    assert first != second


def test_json_has_no_nan_and_no_infinity() -> None:
    """A number that is not finite becomes null."""
    made = prediction()
    assert made.time is not None
    time = replace(
        made.time,
        step_s=math.inf,
        tokens_per_s=math.nan,
        terms=(TimeTerm("matmuls", math.inf, "planner.units:x"),),
    )
    data = json.loads(to_json(subject(time=time)), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert data["time"]["step_s"] is None
    assert data["time"]["tokens_per_s"] is None
    assert data["time"]["terms"][0]["seconds"] is None
