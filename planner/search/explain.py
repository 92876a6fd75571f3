"""What would make a job fit: single changes, and pairs where no single change of the recipe is enough."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from planner.domain.coefficients import Coefficients
from planner.domain.prediction import Prediction
from planner.domain.scenario import Scenario
from planner.estimate import PRIORS, estimate
from planner.search.moves import Move, larger_cards, moves
from planner.search.variants import refusals, warnings_about
from planner.units import MIB

MAX_ESTIMATES = 60
MAX_PAIRS = 6
# Differences below this are rounding of the real allocator, not advice.
_WORTH_BYTES = 16 * MIB
# What nobody should be advised to do, although some do it.
_BAD_ADVICE = frozenset({"liger-not-in-stack", "bf16-without-units", "fused-experts-not-quantized", "gpu-speed-unknown"})


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a job, or two together.

    ``flags`` ask for it on the command line.  ``saves_bytes`` is what fewer bytes one GPU must hold at once; 0 for a card with
    more memory.  ``step_time_ratio`` is the time of an optimizer step after over before (``None``: unknown), ``fits`` whether
    the job then fits.
    """

    description: str
    flags: str
    saves_bytes: int
    step_time_ratio: float | None
    fits: bool


@dataclass(frozen=True, slots=True)
class _Trial:
    """An estimated move."""

    move: Move
    change: Change


class _Judge:
    """Estimates moves against the job as it is, and counts the estimates."""

    def __init__(self, scenario: Scenario, coefficients: Coefficients) -> None:
        self._coefficients = coefficients
        self._refused, self._warned = refusals(scenario).keys(), warnings_about(scenario)
        self.base = estimate(scenario, coefficients)
        self.left = MAX_ESTIMATES - 1

    def tries(self, options: Iterable[Move], *, worth_bytes: float = _WORTH_BYTES) -> list[_Trial]:
        """Those of ``options`` that no rule speaks against and that save at least ``worth_bytes``, while estimates are left."""
        allowed = [move for move in options if self._allows(move.scenario)]
        trials = []
        for move in allowed[: self.left]:
            self.left -= 1
            change = _change(move, self.base, estimate(move.scenario, self._coefficients))
            if change.saves_bytes >= worth_bytes:
                trials.append(_Trial(move, change))
        return trials

    def _allows(self, scenario: Scenario) -> bool:
        """Whether the move breaks no rule that the job does not break already (people may force theirs)."""
        if refusals(scenario).keys() - self._refused:
            return False
        return not (warnings_about(scenario) - self._warned) & _BAD_ADVICE


def changes_that_fit(scenario: Scenario, coefficients: Coefficients = PRIORS) -> tuple[Change, ...]:
    """Changes that save GPU memory: those after which the job fits come first, the fastest first; then larger cards that hold it,
    the smallest first; then what is not enough alone.

    Where no single change of the recipe is enough, pairs are tried, the largest savers first; at most ``MAX_ESTIMATES``
    estimates in all.  Meant for a job that does not fit or only just does.
    """
    judge = _Judge(scenario, coefficients)
    memory = judge.base.memory
    singles = judge.tries(moves(scenario))
    need = max(float(memory.must_have_bytes), float(memory.limit_bytes or 0))
    cards = [trial for trial in judge.tries(larger_cards(scenario, need), worth_bytes=0) if trial.change.fits]
    pairs = [] if any(trial.change.fits for trial in singles) else _pairs(judge, singles)
    ordered = sorted((trial.change for trial in (*singles, *pairs)), key=_order)
    fitting = [change for change in ordered if change.fits]
    short = [change for change in ordered if not change.fits]
    return (*fitting, *(trial.change for trial in cards), *short)


def _pairs(judge: _Judge, singles: list[_Trial]) -> list[_Trial]:
    """Pairs that fit, at most ``MAX_PAIRS``: each saver, largest first, with every change of another topic on top of it."""
    found: list[_Trial] = []
    seen: set[frozenset[str]] = set()
    for first in sorted(singles, key=lambda trial: -trial.change.saves_bytes):
        second = [_joined(first.move, move) for move in moves(first.move.scenario) if move.topic != first.move.topic]
        new = [move for move in second if _signature(move) not in seen]
        seen.update(map(_signature, new))
        found += [trial for trial in judge.tries(new) if trial.change.fits]
        if judge.left == 0:
            break
    return sorted(found, key=lambda trial: _order(trial.change))[:MAX_PAIRS]


def _joined(first: Move, second: Move) -> Move:
    """Both moves as one; where both set a flag, the second has the last word."""
    flags = {**first.flags, **second.flags}
    return Move(f"{first.topic}+{second.topic}", f"{first.description}; and {second.description}", flags, second.scenario)


def _signature(move: Move) -> frozenset[str]:
    return frozenset(f"{name}={value}" for name, value in move.flags.items())


def _change(move: Move, before: Prediction, after: Prediction) -> Change:
    ratio = None
    if before.time is not None and after.time is not None:
        ratio = float(after.time.step_s) / float(before.time.step_s)
    saved = float(before.memory.must_have_bytes) - float(after.memory.must_have_bytes)
    return Change(move.description, _flags_text(move.flags), max(0, round(saved)), ratio, after.verdict == "fits")


def _flags_text(flags: Mapping[str, str]) -> str:
    """``--batch 2 --grad-accum 8``."""
    return " ".join(f"--{name} {value}".strip() for name, value in flags.items())


def _order(change: Change) -> tuple[bool, float, int]:
    ratio = float("inf") if change.step_time_ratio is None else change.step_time_ratio
    return not change.fits, ratio, -change.saves_bytes
