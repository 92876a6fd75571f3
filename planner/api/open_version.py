"""Config files whose keys fit several versions of their tool, or that leave something to the version or to a
script of one's own: has each of them the same answer?
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from shlex import quote
from typing import Any

from planner.api.files import CheckOptions, answer_file
from planner.configs.read import TOOLS
from planner.errors import ExitCode, NotModelledError, PlannerError, RefusedCombinationError
from planner.intake.given.config_file import ConfigFile, read_config_file
from planner.intake.given.fields import REQUEST_FIELDS
from planner.intake.given.request import TRIED, Given, ScenarioRequest, merge
from planner.intake.rules.all_rules import FORCE_HINT
from planner.report.check.checked import Checked
from planner.report.render.numbers import gib

_DECIDE = ("stack", "versions")
"""Fields that say the version."""
_MORE = "both were tried, and the one that needs more is shown"
_EACH = "those that run have one verdict, and the largest need is shown"
_MOST_WAYS = 6
_SHORT = ("does_not_fit", "host_memory_short")


_Pair = tuple[Checked, ConfigFile]


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
    that is not modelled, the newest is answered for, which a remark says.  Of what is on or off by version,
    both are answered, and the one that needs more is the answer.  Of what is a script's own, every way is
    answered that its libraries take, and the one that needs the most is the answer where all end alike.
    What may need less is tried where nothing fits.

    Raises:
        PlannerError: no version has an answer; what the likeliest says.
    """
    found, refusal = list[list[_Pair]](), None
    for stack in ("",) if any(map(given.is_given, _DECIDE)) else ("", *read.fits):
        try:
            each = _read_for(config, stack, options) if stack else read
            ways = _answers(config, each, given, options)
        except PlannerError as error:
            if not stack and (_is_newest(read) or not isinstance(error, NotModelledError)):
                raise
            refusal = refusal or (stack, error)
        else:
            found.append(sorted(ways, key=lambda pair: -_needs(pair[0])))
    if not found and refusal is not None:
        raise refusal[1]
    checked, chosen = found[0][0]
    if refusal is not None and not refusal[0]:
        text = f"with --stack {read.request.get('stack')}: {str(refusal[1]).removesuffix(FORCE_HINT)}"
        checked = replace(checked, remarks=(*checked.remarks, (config, text)))
    if left := tuple(_left_open(read, given)):
        checked = _with_more(checked, chosen, left)
    every = tuple(pair for pairs in found for pair in pairs)
    less = _with_less(every, given, options)
    verdicts = {_verdict(each) for each, _ in every}
    if not less and (verdicts.issubset(_SHORT) or verdicts.isdisjoint(_SHORT)):
        return checked, chosen, False
    return *_uncertain((*every, *less), (*left, *(read.less if less else ()))), True


def _answers(config: str, read: ConfigFile, given: ScenarioRequest, options: CheckOptions) -> list[_Pair]:
    """The answer of each way that its libraries take.

    Raises:
        PlannerError: a way has no answer, or no way is taken.
    """
    found, refusal = list[_Pair](), None
    for one in _each_way(read, given):
        try:
            found.append((answer_file(config, one, given, options), one))
        except RefusedCombinationError as error:
            if isinstance(error, NotModelledError) or not read.either:
                raise
            refusal = refusal or error
    if not found and refusal is not None:
        raise refusal
    return found


def _with_less(every: Sequence[_Pair], given: ScenarioRequest, options: CheckOptions) -> list[_Pair]:
    """Where no way of ``every`` fits, the last one with each value of what may need less; nothing where that
    does not fit, either.
    """
    found, (checked, read) = list[_Pair](), every[-1]
    if any(_verdict(each) == "fits" for each, _ in every):
        return found
    for name, (_, value) in read.less.items():
        if given.is_given(name):
            continue
        said = ScenarioRequest({name: Given(REQUEST_FIELDS[name].parse(value), TRIED)})
        one = replace(read, request=merge(read.request, said))
        with suppress(RefusedCombinationError):
            found.append((answer_file(checked.config, one, given, options), one))
    return [pair for pair in found if _verdict(pair[0]) not in _SHORT]


def _left_open(read: ConfigFile, given: ScenarioRequest) -> Mapping[str, tuple[Any, ...]]:
    """The values of what nothing says: switches whose default changed, and what is a script's own."""
    switches = {name: (True, False) for name in read.needs if REQUEST_FIELDS[name].kind == "flag"}
    either = {
        name: tuple(map(REQUEST_FIELDS[name].parse, values)) for name, (_, values) in read.either.items()
    }
    if given.get("method") == "full":
        either.pop("lora_rank", None)
    every = {**switches, **either}.items()
    return {
        name: values for name, values in every if not (given.is_given(name) or read.request.is_given(name))
    }


def _each_way(read: ConfigFile, given: ScenarioRequest) -> Iterator[ConfigFile]:
    """``read`` with every value of what it leaves open; itself where it leaves nothing."""
    names = _left_open(read, given)
    for values in product(*names.values()):
        said = {name: Given(value, TRIED) for name, value in zip(names, values, strict=True)}
        yield replace(read, request=merge(read.request, ScenarioRequest(said)))


def _is_newest(read: ConfigFile) -> bool:
    """Whether a file is read for its tool of today."""
    tool = TOOLS.get(read.tool_name)
    return tool is None or read.request.get("stack") == tool.stack


def _read_for(config: str, stack: str, options: CheckOptions) -> ConfigFile:
    return read_config_file(config, options.tool, replace(options.beside, stack=stack))


def _with_more(checked: Checked, chosen: ConfigFile, left: Sequence[str]) -> Checked:
    """``checked`` with a remark on what is ``left`` to the version, and the flags that ask for the same."""
    asked = {name: f"{chosen.needs[name]}; {_MORE}" for name in left if name not in chosen.either}
    for name, (sentence, values) in chosen.either.items():
        asked[name] = f"{sentence}; tried: {', '.join(values)}; {_EACH}"
    texts = (asked[name].removeprefix(f"{checked.config}: ") for name in left)
    more = checked.details or f"plan --config {quote(checked.config)} --details, with the same flags"
    flags = " ".join(_flag(chosen, name) for name in left)
    return replace(
        checked,
        remarks=(*checked.remarks, *((checked.config, text) for text in texts)),
        details=more.replace(" --details", f" {flags} --details"),
    )


def _uncertain(every: Sequence[_Pair], names: Sequence[str]) -> _Pair:
    """The one that needs the most, with a verdict that says that the version decides."""
    every = sorted(every, key=lambda pair: -_needs(pair[0]))
    most, read = every[0]
    if most.subject is None:
        return most, read
    several = len({_stack(checked) for checked, _ in every}) > 1
    each = "; ".join(
        f"{' '.join([f'--stack {_stack(checked)}'] * several + _flags(one, names))}: "
        f"{_verdict(checked).replace('_', ' ')}, {gib(_needs(checked))} GiB"
        for checked, one in every[:_MOST_WAYS]
    )
    what = "what is left open decides" if names else "its keys fit several versions, which differ"
    text = f"{what}: say which ({each})"
    prediction = replace(most.subject.prediction, verdict="uncertain", reason=text, fits_probability=None)
    subject = replace(most.subject, prediction=prediction)
    return replace(most, subject=subject, remarks=((most.config, text), *most.remarks)), read


def _flags(read: ConfigFile, names: Sequence[str]) -> list[str]:
    """Flags of what was tried."""
    return [_flag(read, name) for name in names if read.request.is_given(name)]


def _flag(read: ConfigFile, name: str) -> str:
    flag, value = REQUEST_FIELDS[name].flag, read.request.get(name)
    if not isinstance(value, bool):
        return f"{flag} {value}"
    return flag if value else f"--no-{flag.removeprefix('--')}"


def _stack(checked: Checked) -> str:
    return "" if checked.subject is None else checked.subject.scenario.stack.id


def _verdict(checked: Checked) -> str:
    return "" if checked.subject is None else checked.subject.prediction.verdict


def _needs(checked: Checked) -> float:
    return 0 if checked.subject is None else float(checked.subject.prediction.memory.must_have_bytes)
