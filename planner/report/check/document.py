"""The JSON of ``plan check``, ``planner/check@1``, and its JSON Schema.  Bytes are integers,
times seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import fspath
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from planner.configs.writing.edits import REMOVED
from planner.documents import DocumentPart, at, at_or_none, document_text
from planner.domain.prediction import Verdict
from planner.errors import ExitCode
from planner.report.bounds.document import BoundsPart
from planner.report.check.checked import Checked, worst_exit_code
from planner.report.prediction.document import AssumptionPart, Bytes, MaybeBytes, Real
from planner.searching.moves import LeverKind
from planner.version import __version__

CHECK_SCHEMA_ID: Final = "planner/check@1"


def _plain_value(value: Any) -> Any:
    return None if value is REMOVED else value


def _remarks(remarks: Iterable[Any]) -> list[Any]:
    """A pair as origin and text; what is read from JSON as it is."""
    return [{"origin": each[0], "text": each[1]} if isinstance(each, tuple) else each for each in remarks]


def _text_or_none(text: str | None) -> str | None:
    return text or None


MaybeText = Annotated[str | None, BeforeValidator(_text_or_none)]


class RemarkPart(DocumentPart):
    """A key that is known but not counted as it stands."""

    origin: str
    text: str


class EditPart(DocumentPart):
    """One key to set in a file.  ``key`` has dots between the tables that it lies in; ``remove``:
    take it out instead.
    """

    file: Annotated[str, BeforeValidator(fspath)]
    key: str
    value: Annotated[Any, BeforeValidator(_plain_value)]
    remove: bool = at("removes")


class FixPart(DocumentPart):
    """One change that saves memory, for the files of the job.

    ``edits`` is empty where no key of the files asks for it: ``flags`` do.  ``saves_bytes``: fewer bytes that
    one GPU needs at least.  ``step_time_ratio``: step time after over before.  ``host_bytes``: more host RAM
    of a node.  ``verdict`` and ``fits_probability`` were read of the files with these keys.
    """

    kind: LeverKind = at("lever", "kind")
    description: str = at("lever", "description")
    edits: list[EditPart]
    flags: str = at("lever", "flags_text")
    saves_bytes: Bytes
    step_time_ratio: Real = at("lever", "step_time_ratio")
    host_bytes: Bytes = at("lever", "host_bytes")
    verdict: Verdict
    fits_probability: Real


class AssumedPart(DocumentPart):
    """A setting that no file says and that decides much, with the flags that say otherwise."""

    setting: str
    value: str
    text: str
    flags: list[str]


class AnswerPart(DocumentPart):
    """What is predicted of one job.

    ``needs_bytes``: what one GPU needs at least, which decides whether the job fits.  ``peak_bytes``: what
    the driver would show on one GPU, or, where the job does not fit, ``needs_bytes``.
    ``host_required_per_node_bytes`` is what the verdict compares with ``host_available_bytes``;
    ``host_reclaimable_per_node_bytes`` comes on top, and the system gives it back when memory is short.
    ``flags``: the same job in words of ``plan``.
    """

    verdict: Verdict = at("subject", "prediction", "verdict")
    reason: str = at("subject", "prediction", "reason")
    fits_probability: Annotated[float, Field(ge=0, le=1)] | None = at(
        "subject", "prediction", "fits_probability"
    )
    needs_bytes: Bytes = at("subject", "prediction", "memory", "must_have_bytes")
    peak_bytes: Bytes = at("subject", "shown_peak_bytes")
    limit_bytes: MaybeBytes = at("subject", "prediction", "memory", "limit_bytes")
    host_required_per_node_bytes: Bytes = at("subject", "prediction", "host", "required_per_node_bytes")
    host_reclaimable_per_node_bytes: Bytes = at("subject", "prediction", "host", "reclaimable_per_node_bytes")
    host_available_bytes: MaybeBytes = at("subject", "prediction", "host", "available_bytes")
    step_s: Real = at_or_none("subject", "prediction", "time", "step_s")
    tokens_per_s: Real = at_or_none("subject", "prediction", "time", "tokens_per_s")
    calibration: str = at("subject", "prediction", "calibration")
    model: str = at("subject", "scenario", "model", "id")
    stack: str = at("subject", "scenario", "stack", "id")
    flags: str
    warnings: list[str] = at("subject", "warnings")
    assumed: list[AssumedPart] = Field(description="of what no file says, what decides much")
    assumptions: list[AssumptionPart] = at(
        "subject",
        "scenario",
        "assumptions",
        description="every setting with its value and where that comes from",
    )


class WrittenPart(DocumentPart):
    """Files that ``--write`` wrote, the config first, and what was then read of them."""

    files: list[str]
    exit_code: Annotated[int, Field(ge=0, le=6)] = at("after", "exit_code")
    error: MaybeText = at("after", "failure")
    answer: AnswerPart | None = at("after", "answered")


class DryRunPart(DocumentPart):
    """The file run by its own tool on a card that is not there;
    ``exit_code`` is what that alone ends with.
    """

    exit_code: Annotated[int, Field(ge=0, le=6)] = at("code")
    error: MaybeText = at("failure")
    allocated_bytes: MaybeBytes
    reserved_bytes: MaybeBytes
    limit_bytes: MaybeBytes
    assumed: list[str]


class CheckResultPart(DocumentPart):
    """One config file: its answer, or why there is none.

    ``exit_code`` is what it alone ends with, without ``--allow``;
    that of the written file where one was written.
    """

    config: str
    accelerate: MaybeText = Field(description="the launch file of this answer, where several were given")
    tool: str = Field(
        description="what the file is for, with the version whose defaults hold; empty where it was not told"
    )
    exit_code: Annotated[int, Field(ge=0, le=6)]
    error: MaybeText = at("failure", description="null where there is an answer")
    answer: AnswerPart | None = at("answered")
    bounds: BoundsPart | None = Field(
        description="of an architecture that is not modelled, which has no answer"
    )
    ignored: list[str] = Field(description="unknown keys, as file:key")
    remarks: Annotated[list[RemarkPart], BeforeValidator(_remarks)]
    launch: MaybeText = Field(description="what starts the job, where that is known")
    levers: list[FixPart] | None = at(
        "fixes", description="the first changes that save memory; null where nobody looked, as it fits"
    )
    remedy: list[FixPart] = Field(
        description="changes that together make it fit and that --write writes; empty: none found"
    )
    written: WrittenPart | None
    dry_run: DryRunPart | None = at("traced", description="where --trace asked for it")


class CheckDocument(DocumentPart):
    """Everything that ``plan check`` says; ``exit_code`` is the worst of the results,
    less what ``--allow`` lets pass.
    """

    schema_: Literal["planner/check@1"] = Field(default=CHECK_SCHEMA_ID, alias="schema")
    version: str
    exit_code: Annotated[int, Field(ge=0, le=6)]
    results: list[CheckResultPart]


def check_json(checked: Sequence[Checked], code: ExitCode | None = None) -> str:
    """All answers as indented JSON, ending in a newline; ``code`` is what the command ends with,
    else the worst of them.
    """
    code = worst_exit_code(checked) if code is None else code
    return document_text(
        CheckDocument.model_validate({"version": __version__, "exit_code": code, "results": checked})
    )
