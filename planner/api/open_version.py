"""Config files whose keys fit several versions of their tool: has each of them the same answer?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.api.files import CheckOptions, answer_file
from planner.errors import ExitCode, NotModelledError, PlannerError
from planner.intake.given.config_file import ConfigFile, read_config_file
from planner.intake.given.request import ScenarioRequest
from planner.intake.rules.all_rules import FORCE_HINT
from planner.report.check.checked import Checked
from planner.report.render.numbers import gib

_DECIDE = ("stack", "versions")
"""Fields that say the version."""


def check_file(config: str, given: ScenarioRequest, options: CheckOptions) -> Checked:
    """Answer one config; what was ``given`` wins over it.  Why there is no answer is part of the result,
    never raised.
    """
    read: ConfigFile | None = None
    try:
        read = read_config_file(config, options.tool, options.beside)
        return answer_of_versions(config, read, given, options)[0]
    except PlannerError as error:
        return Checked(config, read.tool if read else "", failure=str(error), failure_code=error.exit_code)
    except Exception as error:  # noqa: BLE001 - one file must not take the answers of the others with it
        text = f"internal error ({type(error).__name__}: {str(error)[:200]}), please report it with the file"
        return Checked(config, read.tool if read else "", failure=text, failure_code=ExitCode.INTERNAL_ERROR)


def answer_of_versions(
    config: str, read: ConfigFile, given: ScenarioRequest, options: CheckOptions
) -> tuple[Checked, ConfigFile, bool]:
    """The answer of one config, what was ``read`` for it, and whether the version decides.

    It is that of the likeliest version where all have the same and the job fits; else that of the one that
    needs the most, uncertain where verdicts differ.  What the likeliest itself refuses is refused; others
    without an answer are named in a remark.

    Raises:
        PlannerError: no version has an answer; what the likeliest says.
    """
    if any(map(given.is_given, _DECIDE)):
        return answer_file(config, read, given, options), read, False
    found, refused = list[tuple[Checked, ConfigFile]](), list[tuple[str, PlannerError]]()
    for stack in ("", *read.fits):
        try:
            each = _read_for(config, stack, options) if stack else read
            found.append((answer_file(config, each, given, options), each))
        except PlannerError as error:
            if not stack and not isinstance(error, NotModelledError):
                raise
            refused.append((stack or read.request.get("stack"), error))
    if not found:
        raise refused[0][1]
    verdicts = {_verdict(checked) for checked, _ in found}
    if verdicts != {"fits"}:
        found.sort(key=lambda pair: -_needs(pair[0]))
    checked, read = found[0]
    if len(verdicts) > 1:
        checked = _uncertain(checked, [each for each, _ in found])
    others = tuple(
        (config, f"with --stack {stack}: {str(error).removesuffix(FORCE_HINT)}") for stack, error in refused
    )
    return replace(checked, remarks=(*checked.remarks, *others)), read, len(verdicts) > 1


def _read_for(config: str, stack: str, options: CheckOptions) -> ConfigFile:
    return read_config_file(config, options.tool, replace(options.beside, stack=stack))


def _uncertain(most: Checked, found: Sequence[Checked]) -> Checked:
    """``most`` with a verdict that says that the version decides."""
    if most.subject is None:
        return most
    each = "; ".join(
        f"--stack {_stack(checked)}: {_verdict(checked).replace('_', ' ')}, {gib(_needs(checked))} GiB"
        for checked in found
    )
    text = f"its keys fit several versions, which differ: say which ({each})"
    prediction = replace(most.subject.prediction, verdict="uncertain", reason=text, fits_probability=None)
    subject = replace(most.subject, prediction=prediction)
    return replace(most, subject=subject, remarks=((most.config, text), *most.remarks))


def _stack(checked: Checked) -> str:
    return "" if checked.subject is None else checked.subject.scenario.stack.id


def _verdict(checked: Checked) -> str:
    return "" if checked.subject is None else checked.subject.prediction.verdict


def _needs(checked: Checked) -> float:
    return 0 if checked.subject is None else float(checked.subject.prediction.memory.must_have_bytes)
