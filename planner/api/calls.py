"""``planner.estimate``, ``planner.check`` and ``planner.search``: the command line's answers, for Python."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Unpack, overload

from planner.api.answering import How, answer_job
from planner.api.answers import Answer, FileAnswer, FileFailure
from planner.api.building import answer_of, file_answer_of
from planner.api.files import CheckOptions, read_for
from planner.api.found import SearchAnswer, search_answer_of
from planner.api.keywords import JobFlags, SearchKeywords, Text, job_flags, path_text, search_flags, text_of
from planner.api.open_version import answer_of_versions, check_file
from planner.api.searches import SearchOptions, answer_search
from planner.errors import UsageError
from planner.intake.given.config_file import read_config_file
from planner.intake.given.request import from_flags
from planner.report.check.sections import Checked

_HOW = ("config", "calibration", "force")
_CHECK = ("tool", "deepspeed", "accelerate", "calibration", "force")
_SEARCH = ("config", "calibration", "confidence", "top", "global_batch", "solve", "beyond_context")


def estimate(
    *,
    config: Text | None = None,
    calibration: str | None = None,
    force: bool = False,
    **flags: Unpack[JobFlags],
) -> Answer:
    """Predict one job: ``plan`` with the same flags.

    >>> import planner
    >>> answer = planner.estimate(model="7b", method="qlora", gpu="4090", seq=1024)
    >>> answer.fits, answer.peak.driver_bytes < answer.limit_bytes
    (True, True)

    Args:
        config: a config file below the flags; flags win.
        calibration: a name, a file or ``none``; left out, the one that fits the job.
        force: turn refused combinations into warnings.
        flags: what the job is, named as the flags of ``plan`` with underscores.

    Raises:
        UsageError: something that was given cannot be used, or model, method, card or length was not given.
        NotModelledError: understood, but no formula covers it.
    """
    subject = answer_job(job_flags(flags, _HOW), path_text(config), How(calibration, force, in_python=True))
    return answer_of(subject)


@overload
def check(path: Text, /, **given: Any) -> FileAnswer: ...


@overload
def check(path: Iterable[Text], /, **given: Any) -> tuple[FileAnswer | FileFailure, ...]: ...


def check(path: Text | Iterable[Text], /, **given: Any) -> FileAnswer | tuple[FileAnswer | FileFailure, ...]:
    """Predict the job of a config file: ``plan check`` with the same flags.

    Args:
        path: a config file, or several: then one that cannot be answered does not stop the others.
        given: what wins over the file, named like the arguments of :func:`estimate`.  Also ``tool`` (what the
            file is for), ``deepspeed`` and ``accelerate`` (files in place of those that it refers to),
            ``calibration`` and ``force``.

    Raises:
        InputFileError: the one file cannot be read or understood.
        LengthOpenError: the file leaves the length of samples to the data, and the length decides.
        UsageError: something that was given cannot be used.
        NotModelledError: understood, but no formula covers it.
    """
    own = {name: given.pop(name) for name in _CHECK if name in given}
    own |= {name: path_text(own[name]) for name in ("deepspeed", "accelerate") if name in own}
    flags = from_flags(job_flags(given, _CHECK))
    options = read_for(CheckOptions(**own), flags)
    if isinstance(path, str | os.PathLike):
        name = os.fspath(path)
        read = read_config_file(name, options.tool, options.beside)
        return _file_answer(answer_of_versions(name, read, flags, options)[0])
    return tuple(_either(check_file(os.fspath(each), flags, options)) for each in path)


def search(**given: Unpack[SearchKeywords]) -> SearchAnswer:
    """Find recipes that fit: ``plan search`` with the same flags, each of which is a constraint;
    a list gives choices.

    >>> import planner
    >>> found = planner.search(model="8b", method="qlora", gpu=["3090", "4090"], seq=2048)
    >>> planner.estimate(**found.rows[0].flags).fits
    True

    Args:
        config: a config file below the flags; flags win.
        calibration: a name, a file or ``none``; left out, the one that fits each job.
        confidence: P(fits) from which a recipe counts as fitting, from 0.5 to below 1.
        top: recipes to list for each way of training.
        solve: find instead the largest ``batch`` or ``seq`` that fits, or the fewest ``gpus``.
        global_batch: samples per optimizer step on all GPUs, kept by accumulation.
        beyond_context: solve for lengths above what the model was made for, too.
        given: these, and what the job is, as for :func:`estimate`.

    Raises:
        UsageError: something that was given cannot be used, or no model or no card was given.
        NotModelledError: understood, but no formula covers it.
    """
    typed: dict[str, Any] = dict(given)
    own = {name: typed.pop(name, None) for name in _SEARCH}
    options = SearchOptions(
        config=path_text(own["config"]),
        calibration=own["calibration"],
        confidence=text_of(own["confidence"]),
        top=text_of(own["top"]),
        global_batch=text_of(own["global_batch"]),
        solve=own["solve"],
        beyond_context=bool(own["beyond_context"]),
    )
    return search_answer_of(answer_search(search_flags(typed, _SEARCH), options), options.calibration)


def _either(checked: Checked) -> FileAnswer | FileFailure:
    if checked.subject is None:
        return FileFailure(checked.config, checked.tool, checked.failure, int(checked.failure_code))
    return _file_answer(checked)


def _file_answer(checked: Checked) -> FileAnswer:
    if checked.subject is None:
        raise UsageError(checked.failure)
    return file_answer_of(
        checked.subject,
        path=checked.config,
        tool=checked.tool,
        flags=checked.flags,
        remarks=tuple(f"{origin}: {text}" for origin, text in checked.remarks),
        ignored=checked.ignored,
    )
