"""The JSON of ``plan check``, ``planner/check@1``, and its JSON Schema.  Bytes are integers, times seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from planner.version import __version__
from planner.domain.prediction import Verdict
from planner.report.check import Checked, worst_exit_code
from planner.report.schema import AssumptionPart, Bytes, MaybeBytes, Real
from planner.report.subject import shown_peak_bytes

CHECK_SCHEMA_ID: Final = "planner/check@1"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RemarkPart(_Part):
    """A key that is known but not counted as it stands."""

    origin: str
    text: str


class AnswerPart(_Part):
    """What is predicted of one job.

    ``peak_bytes``: what the driver would show on one GPU, or, where the job does not fit, what must be held at once.
    ``flags``: the same job in words of ``plan``.
    """

    verdict: Verdict
    reason: str
    fits_probability: Annotated[float, Field(ge=0, le=1)] | None
    peak_bytes: Bytes
    limit_bytes: MaybeBytes
    host_per_node_bytes: Bytes
    host_available_bytes: MaybeBytes
    step_s: Real
    tokens_per_s: Real
    calibration: str
    model: str
    stack: str
    flags: str
    warnings: list[str]
    assumptions: list[AssumptionPart] = Field(description="every setting with its value and where that comes from")


class CheckResultPart(_Part):
    """One config file: its answer, or why there is none."""

    config: str
    tool: str = Field(description="what the file is for, with the version whose defaults hold; empty where it was not told")
    exit_code: Annotated[int, Field(ge=0, le=6)]
    error: str | None = Field(description="null where there is an answer")
    answer: AnswerPart | None
    ignored: list[str] = Field(description="unknown keys, as file:key")
    remarks: list[RemarkPart]


class CheckDocument(_Part):
    """Everything that ``plan check`` says; ``exit_code`` is the worst of the results."""

    schema_: Literal["planner/check@1"] = Field(default=CHECK_SCHEMA_ID, alias="schema")
    version: str
    exit_code: Annotated[int, Field(ge=0, le=6)]
    results: list[CheckResultPart]


def check_json(checked: Sequence[Checked]) -> str:
    """All answers as indented JSON, ending in a newline."""
    document = CheckDocument(
        version=__version__, exit_code=int(worst_exit_code(checked)), results=[_result(each) for each in checked]
    )
    return document.model_dump_json(by_alias=True, indent=2) + "\n"


def check_json_schema() -> dict[str, Any]:
    """JSON Schema of :class:`CheckDocument`."""
    schema = CheckDocument.model_json_schema(by_alias=True, mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": CHECK_SCHEMA_ID, **schema}


def _result(each: Checked) -> CheckResultPart:
    return CheckResultPart(
        config=each.config,
        tool=each.tool,
        exit_code=int(each.exit_code),
        error=each.failure or None,
        answer=_answer(each),
        ignored=list(each.ignored),
        remarks=[RemarkPart(origin=origin, text=text) for origin, text in each.remarks],
    )


def _answer(each: Checked) -> AnswerPart | None:
    if each.subject is None:
        return None
    prediction, scenario = each.subject.prediction, each.subject.scenario
    return AnswerPart(
        verdict=prediction.verdict,
        reason=prediction.reason,
        fits_probability=prediction.fits_probability,
        peak_bytes=round(float(shown_peak_bytes(prediction))),
        limit_bytes=prediction.memory.limit_bytes,
        host_per_node_bytes=round(float(prediction.host.per_node_bytes)),
        host_available_bytes=prediction.host.available_bytes,
        step_s=float(prediction.time.step_s) if prediction.time else None,
        tokens_per_s=float(prediction.time.tokens_per_s) if prediction.time else None,
        calibration=prediction.calibration,
        model=scenario.model.id,
        stack=scenario.stack.id,
        flags=each.flags,
        warnings=list(dict.fromkeys((*scenario.warnings, *prediction.warnings))),
        assumptions=[AssumptionPart.model_validate(entry) for entry in scenario.assumptions],
    )
