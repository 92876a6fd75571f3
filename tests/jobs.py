"""Jobs by their flags, as the intake resolves them and as the step program reads them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from itertools import zip_longest

from planner.domain.model import ModelSpec
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.program.job import Job, job_of

Flags = Mapping[str, object] | str
"""By name, or as they are typed behind ``plan``."""


def typed(text: str) -> dict[str, object]:
    """Flags as they are typed behind ``plan``; of one that is there twice the last one counts."""
    flags: dict[str, object] = {}
    words = shlex.split(text)
    for word, behind in zip_longest(words, words[1:], fillvalue="--"):
        if word.startswith("--"):
            is_switch, off = behind.startswith("--"), word.startswith("--no-")
            name = word.removeprefix("--no-" if off else "--").replace("-", "_")
            flags[name] = not off if is_switch else behind
    return flags


def resolved(flags: Flags = "", /, *, force: bool = False, **more: object) -> Scenario:
    """The job of ``flags`` and ``more``, which has the last word; ``None`` leaves a flag out.

    ``force``: what would be refused is let pass.
    """
    return resolve(from_flags(_named(flags, more)), force=force)


def job_by(flags: Flags = "", /, **more: object) -> Job:
    """The same job as its step program reads it, without a calibration."""
    return job_of(resolved(_named(flags, more)), Coefficients())


def _named(flags: Flags, more: Mapping[str, object]) -> dict[str, object]:
    return {**(typed(flags) if isinstance(flags, str) else flags), **more}


def with_few_layers(model: ModelSpec, n_layers: int) -> ModelSpec:
    """The first layers of each kind, at most so many, in their order."""
    groups, left = [], dict.fromkeys((group.block for group in model.groups), n_layers)
    for group in model.groups:
        count = min(group.count, left[group.block])
        left[group.block] -= count
        groups += [replace(group, count=count)] if count else []
    return replace(model, groups=tuple(groups))
