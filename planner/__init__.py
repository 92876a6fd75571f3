"""Predict memory, host RAM and step time of a fine-tuning job, term by term.

::

    import planner

    answer = planner.estimate(model="7b", method="qlora", gpu="4090", seq=1024)
    answer.verdict, answer.peak.driver_bytes, answer.probability

``estimate`` answers one job, ``check`` config files of training tools, and ``search`` looks for recipes that
fit.  ``precheck`` answers for a Trainer of Transformers or TRL that is about to start; ``PrecheckCallback``
does so by itself.  What is imported here costs nothing until it is used, and no framework is imported but by
``PrecheckCallback``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from planner.version import __version__

if TYPE_CHECKING:
    from planner.api.answers import Answer, FileAnswer, FileFailure, Host, Peak, Run, Step, Term
    from planner.api.calls import check, estimate, search
    from planner.api.found import SearchAnswer, SearchRow
    from planner.api.precheck import precheck
    from planner.errors import (
        DoesNotFit,
        InputFileError,
        LengthOpenError,
        NotModelledError,
        PlannerError,
        RefusedCombinationError,
        UnknownArchitectureError,
        UnknownNameError,
        UsageError,
    )
    from planner.integrations.transformers import Measured, PrecheckCallback
    from planner.searching.levers import Lever

__all__ = [
    "Answer",
    "DoesNotFit",
    "FileAnswer",
    "FileFailure",
    "Host",
    "InputFileError",
    "LengthOpenError",
    "Lever",
    "Measured",
    "NotModelledError",
    "Peak",
    "PlannerError",
    "PrecheckCallback",
    "RefusedCombinationError",
    "Run",
    "SearchAnswer",
    "SearchRow",
    "Step",
    "Term",
    "UnknownArchitectureError",
    "UnknownNameError",
    "UsageError",
    "__version__",
    "check",
    "estimate",
    "precheck",
    "search",
]

_HOMES = {
    "planner.api.answers": "Answer FileAnswer FileFailure Host Peak Run Step Term",
    "planner.api.calls": "check estimate search",
    "planner.api.found": "SearchAnswer SearchRow",
    "planner.api.precheck": "precheck",
    "planner.errors": (
        "DoesNotFit InputFileError LengthOpenError NotModelledError PlannerError RefusedCombinationError "
        "UnknownArchitectureError UnknownNameError UsageError"
    ),
    "planner.integrations.transformers": "Measured PrecheckCallback",
    "planner.searching.levers": "Lever",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``import planner`` stays light."""
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'planner' has no attribute '{name}'")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
