"""The JSON of ``plan check``, ``planner/check@1``, and its JSON Schema.  Bytes are integers, times seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from planner.configs.writing.edits import REMOVED, Edit
from planner.domain.prediction import Verdict
from planner.errors import ExitCode
from planner.report.checked import Checked, Fix, Written, assumed_of, worst_exit_code
from planner.report.json_document import document_text
from planner.report.schema import AssumptionPart, Bytes, MaybeBytes, Real
from planner.report.subject import Subject, shown_peak_bytes
from planner.searching.moves import LeverKind
from planner.version import __version__

CHECK_SCHEMA_ID: Final = "planner/check@1"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RemarkPart(_Part):
    """A key that is known but not counted as it stands."""

    origin: str
    text: str


class EditPart(_Part):
    """One key to set in a file.  ``key`` has dots between the tables that it lies in; ``remove``: take it out instead."""

    file: str
    key: str
    value: Any
    remove: bool


class FixPart(_Part):
    """One change that saves memory, for the files of the job.

    ``edits`` is empty where no key of the files asks for it: ``flags`` do.  ``saves_bytes``: fewer bytes that one GPU needs at
    least.  ``step_time_ratio``: step time after over before.  ``host_bytes``: more host RAM of a node.  ``verdict`` and
    ``fits_probability`` were read of the files with these keys.
    """

    kind: LeverKind
    description: str
    edits: list[EditPart]
    flags: str
    saves_bytes: Bytes
    step_time_ratio: Real
    host_bytes: Bytes
    verdict: Verdict
    fits_probability: Real


class AssumedPart(_Part):
    """A setting that no file says and that decides much, with the flags that say otherwise."""

    setting: str
    value: str
    text: str
    flags: list[str]


class AnswerPart(_Part):
    """What is predicted of one job.

    ``needs_bytes``: what one GPU needs at least, which decides whether the job fits.  ``peak_bytes``: what the driver would show
    on one GPU, or, where the job does not fit, ``needs_bytes``.  ``host_required_per_node_bytes`` is what the verdict compares
    with ``host_available_bytes``; ``host_reclaimable_per_node_bytes`` comes on top, and the system gives it back when memory is
    short.  ``flags``: the same job in words of ``plan``.
    """

    verdict: Verdict
    reason: str
    fits_probability: Annotated[float, Field(ge=0, le=1)] | None
    needs_bytes: Bytes
    peak_bytes: Bytes
    limit_bytes: MaybeBytes
    host_required_per_node_bytes: Bytes
    host_reclaimable_per_node_bytes: Bytes
    host_available_bytes: MaybeBytes
    step_s: Real
    tokens_per_s: Real
    calibration: str
    model: str
    stack: str
    flags: str
    warnings: list[str]
    assumed: list[AssumedPart] = Field(description="of what no file says, what decides much")
    assumptions: list[AssumptionPart] = Field(description="every setting with its value and where that comes from")


class WrittenPart(_Part):
    """Files that ``--write`` wrote, the config first, and what was then read of them."""

    files: list[str]
    exit_code: Annotated[int, Field(ge=0, le=6)]
    error: str | None
    answer: AnswerPart | None


class CheckResultPart(_Part):
    """One config file: its answer, or why there is none.

    ``exit_code`` is what it alone ends with, without ``--allow``; that of the written file where one was written.
    """

    config: str
    accelerate: str | None = Field(description="the launch file of this answer, where several were given")
    tool: str = Field(description="what the file is for, with the version whose defaults hold; empty where it was not told")
    exit_code: Annotated[int, Field(ge=0, le=6)]
    error: str | None = Field(description="null where there is an answer")
    answer: AnswerPart | None
    ignored: list[str] = Field(description="unknown keys, as file:key")
    remarks: list[RemarkPart]
    launch: str | None = Field(description="what starts the job, where that is known")
    levers: list[FixPart] | None = Field(description="the first changes that save memory; null where nobody looked, as it fits")
    remedy: list[FixPart] = Field(description="changes that together make it fit and that --write writes; empty: none found")
    written: WrittenPart | None


class CheckDocument(_Part):
    """Everything that ``plan check`` says; ``exit_code`` is the worst of the results, less what ``--allow`` lets pass."""

    schema_: Literal["planner/check@1"] = Field(default=CHECK_SCHEMA_ID, alias="schema")
    version: str
    exit_code: Annotated[int, Field(ge=0, le=6)]
    results: list[CheckResultPart]


def check_json(checked: Sequence[Checked], code: ExitCode | None = None) -> str:
    """All answers as indented JSON, ending in a newline; ``code`` is what the command ends with, else the worst of them."""
    code = worst_exit_code(checked) if code is None else code
    document = CheckDocument(version=__version__, exit_code=int(code), results=[_result(each) for each in checked])
    return document_text(document)


def check_json_schema() -> dict[str, Any]:
    """JSON Schema of :class:`CheckDocument`."""
    schema = CheckDocument.model_json_schema(by_alias=True, mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": CHECK_SCHEMA_ID, **schema}


def _result(each: Checked) -> CheckResultPart:
    return CheckResultPart(
        config=each.config,
        accelerate=each.accelerate or None,
        tool=each.tool,
        exit_code=int(each.exit_code),
        error=each.failure or None,
        answer=_answer(each),
        ignored=list(each.ignored),
        remarks=[RemarkPart(origin=origin, text=text) for origin, text in each.remarks],
        launch=each.launch or None,
        levers=None if each.fixes is None else [_fix(fix) for fix in each.fixes],
        remedy=[_fix(fix) for fix in each.remedy],
        written=None if each.written is None else _written(each.written),
    )


def _fix(fix: Fix) -> FixPart:
    lever, after = fix.lever, fix.after
    return FixPart(
        kind=lever.kind,
        description=lever.description,
        edits=[_edit(edit) for edit in fix.edits],
        flags=lever.flags_text,
        saves_bytes=fix.saves_bytes,
        step_time_ratio=lever.step_time_ratio,
        host_bytes=lever.host_bytes,
        verdict=fix.verdict,
        fits_probability=lever.fits_probability if after is None else after.prediction.fits_probability,
    )


def _edit(edit: Edit) -> EditPart:
    remove = edit.value is REMOVED
    return EditPart(file=str(edit.file), key=edit.key, value=None if remove else edit.value, remove=remove)


def _written(written: Written) -> WrittenPart:
    after = written.after
    return WrittenPart(
        files=list(written.files), exit_code=int(after.exit_code), error=after.failure or None, answer=_answer(after)
    )


def _answer(each: Checked) -> AnswerPart | None:
    return None if each.subject is None else _answer_of(each, each.subject)


def _answer_of(each: Checked, subject: Subject) -> AnswerPart:
    prediction, scenario = subject.prediction, subject.scenario
    host = prediction.host
    return AnswerPart(
        verdict=prediction.verdict,
        reason=prediction.reason,
        fits_probability=prediction.fits_probability,
        needs_bytes=round(float(prediction.memory.must_have_bytes)),
        peak_bytes=round(float(shown_peak_bytes(prediction))),
        limit_bytes=prediction.memory.limit_bytes,
        host_required_per_node_bytes=round(float(host.required_per_node_bytes)),
        host_reclaimable_per_node_bytes=round(float(host.reclaimable_per_node_bytes)),
        host_available_bytes=host.available_bytes,
        step_s=float(prediction.time.step_s) if prediction.time else None,
        tokens_per_s=float(prediction.time.tokens_per_s) if prediction.time else None,
        calibration=prediction.calibration,
        model=scenario.model.id,
        stack=scenario.stack.id,
        flags=each.flags,
        warnings=list(dict.fromkeys((*scenario.warnings, *prediction.warnings))),
        assumed=[
            AssumedPart(setting=entry.setting, value=entry.value, text=entry.text, flags=list(entry.flags))
            for entry in assumed_of(each)
        ],
        assumptions=[AssumptionPart.model_validate(entry) for entry in scenario.assumptions],
    )
