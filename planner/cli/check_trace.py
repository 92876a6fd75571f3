"""``plan check ... --trace``: beside each answer the dry run of the file by its own tool,
in a process of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from planner.allocator.documents.trace_document import TraceDocument
from planner.api.measure_process import need_measure, run_measure
from planner.errors import ExitCode, PlannerError, UsageError
from planner.report.check.checked import Checked
from planner.report.check.traced import Traced

# ``--accelerate none``: no launch file was counted.
_NO_FILE = "none"


def with_traces(checked: Sequence[Checked], flags: Mapping[str, object]) -> list[Checked]:
    """``checked`` with the dry run of each file.

    Raises:
        UsageError: no card is named, other flags than the card say what the job is,
        or the measure extra is missing.
    """
    need_measure()
    given = {name: value for name, value in flags.items() if value is not None}
    card = given.pop("gpu", None)
    if card is None:
        raise UsageError("--trace runs the file on a card: name it with --gpu")
    if given:
        flag = next(iter(given)).replace("_", "-")
        raise UsageError(
            f"--trace runs the file as it is, so --{flag} cannot be joined with it; write it into the file"
        )
    return [replace(each, traced=_traced(each.config, each.launch_file, str(card))) for each in checked]


def _traced(config: str, launch_file: str, card: str) -> Traced:
    """The dry run of ``config``; of a job whose launch file is counted it would be another job."""
    if launch_file not in ("", _NO_FILE):
        reason = f"--trace runs {config} without {launch_file}; --accelerate {_NO_FILE} counts none, and "
        way_out = "measure trace --gpu CARD:N -- COMMAND runs the whole launch line"
        return Traced(ExitCode.NOT_MODELLED, reason + way_out)
    try:
        return _answer(run_measure(TraceDocument, ["trace", "--json", f"--check={config}", f"--gpu={card}"]))
    except PlannerError as error:
        return Traced(error.exit_code, str(error))


def _answer(document: TraceDocument) -> Traced:
    verdict = document.verdict
    assumed = tuple(
        f"{each.get('name')} at {each.get('origin')}: {each.get('value')}" for each in document.assumptions
    )
    return Traced(
        ExitCode.FITS if verdict is None else verdict.exit_code,
        allocated_bytes=document.allocated_peak_bytes,
        reserved_bytes=document.reserved_peak_bytes,
        limit_bytes=None if verdict is None else verdict.limit_bytes,
        assumed=assumed,
    )
