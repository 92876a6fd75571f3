"""Config files whose keys fit several versions of their tool: has each of them the same answer?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.api.files import CheckOptions, answer_file
from planner.configs.read import TOOLS
from planner.errors import ExitCode, NotModelledError, PlannerError
from planner.intake.given.config_file import ConfigFile, read_config_file
from planner.intake.given.request import ScenarioRequest
from planner.intake.rules.all_rules import FORCE_HINT
from planner.report.check.checked import Checked
from planner.report.render.numbers import gib

_DECIDE = ("stack", "versions")
"""Fields that say the version."""
_SHORT = ("does_not_fit", "host_memory_short")


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

    It is that of the likeliest version, unless another says the opposite: then it is uncertain, with the
    numbers of the one that needs the most.  What the likeliest refuses is refused; where it is an older one
    that is not modelled, the newest is answered for, which a remark says.

    Raises:
        PlannerError: no version has an answer; what the likeliest says.
    """
    if any(map(given.is_given, _DECIDE)):
        return answer_file(config, read, given, options), read, False
    found, refusal = list[tuple[Checked, ConfigFile]](), None
    for stack in ("", *read.fits):
        try:
            each = _read_for(config, stack, options) if stack else read
            found.append((answer_file(config, each, given, options), each))
        except PlannerError as error:
            if not stack and (_is_newest(read) or not isinstance(error, NotModelledError)):
                raise
            refusal = refusal or error
    if not found and refusal is not None:
        raise refusal
    checked, chosen = found[0]
    if chosen is not read and refusal is not None:
        text = f"with --stack {read.request.get('stack')}: {str(refusal).removesuffix(FORCE_HINT)}"
        checked = replace(checked, remarks=(*checked.remarks, (config, text)))
    verdicts = {_verdict(each) for each, _ in found}
    if "fits" not in verdicts or verdicts.isdisjoint(_SHORT):
        return checked, chosen, False
    found.sort(key=lambda pair: -_needs(pair[0]))
    return _uncertain(found[0][0], [each for each, _ in found]), found[0][1], True


def _is_newest(read: ConfigFile) -> bool:
    """Whether a file is read for its tool of today."""
    tool = TOOLS.get(read.tool_name)
    return tool is None or read.request.get("stack") == tool.stack


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
