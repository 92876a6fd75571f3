"""What would make a job fit: single changes, and pairs where no single change of the recipe is enough."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from planner.domain.calibration import Calibration
from planner.domain.coefficients import Coefficients
from planner.domain.prediction import Prediction
from planner.domain.scenario import Scenario
from planner.errors import RefusedCombinationError
from planner.prediction import PRIORS, predict_with
from planner.searching.moves import Move, larger_cards, moves
from planner.searching.variants import Flags, refusals, warnings_about, with_flags
from planner.units import MIB

MAX_ESTIMATES = 60
MAX_PAIRS = 6
# Differences below this are rounding of the real allocator, not advice.
_WORTH_BYTES = 16 * MIB
# What nobody should be advised to do, although some do it.
_BAD_ADVICE = frozenset(
    {
        "liger-not-in-stack",
        "bf16-without-units",
        "fused-experts-not-quantized",
        "nf4-sharded-without-storage",
        "gpu-speed-unknown",
    }
)


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a job, or two together.

    ``flags`` ask for it on the command line, after the job's own.  ``saves_bytes`` is how many bytes fewer one GPU must hold at
    once; 0 for a card with more memory.  ``step_time_ratio`` is the time of an optimizer step after over before (``None``:
    unknown), ``fits`` whether the job then fits.
    """

    description: str
    flags: str
    saves_bytes: int
    step_time_ratio: float | None
    fits: bool


@dataclass(frozen=True, slots=True)
class _Trial:
    """An estimated move, and the job after it."""

    move: Move
    after: Scenario
    change: Change


class _Judge:
    """Estimates moves against the job as it is, and counts the estimates."""

    def __init__(self, scenario: Scenario, model: Coefficients | Calibration) -> None:
        self._scenario, self._model = scenario, model
        self._refused, self._warned = refusals(scenario).keys(), warnings_about(scenario)
        self.base = predict_with(scenario, model)
        self.left = MAX_ESTIMATES - 1

    def tries(self, options: Iterable[Move]) -> list[_Trial]:
        """Estimates those of ``options`` that no rule speaks against, while estimates are left."""
        trials = []
        for move in options:
            after = self._after(move)
            if after is None or self.left == 0:
                continue
            self.left -= 1
            trials.append(_Trial(move, after, _change(move, self.base, predict_with(after, self._model))))
        return trials

    def _after(self, move: Move) -> Scenario | None:
        """The job after the move, or ``None`` where that breaks a rule that the job did not break before (it may be forced)."""
        try:
            after = with_flags(self._scenario, _of_recipe(move), move.gpu)
        except RefusedCombinationError:
            return None
        broken = refusals(after).keys() - self._refused or (warnings_about(after) - self._warned) & _BAD_ADVICE
        return None if broken else after


def changes_that_fit(scenario: Scenario, model: Coefficients | Calibration = PRIORS) -> tuple[Change, ...]:
    """Changes that save GPU memory, those after which the job fits first.

    Order: what makes it fit, the fastest first; larger cards that hold it, the smallest first; what is not enough alone, the
    largest saver first.
    Where no single change of the recipe is enough, pairs are tried, the largest savers first; at most ``MAX_ESTIMATES``
    estimates in all.  Meant for a job that does not fit or only just does.
    """
    judge = _Judge(scenario, model)
    memory = judge.base.memory
    singles = _saving(judge.tries(moves(scenario)))
    need = max(float(memory.must_have_bytes), float(memory.limit_bytes or 0))
    cards = [trial.change for trial in judge.tries(larger_cards(scenario, need)) if trial.change.fits]
    pairs = [] if any(trial.change.fits for trial in singles) else _pairs(judge, singles)
    ordered = sorted((trial.change for trial in (*singles, *pairs)), key=_order)
    fitting = [change for change in ordered if change.fits]
    short = [change for change in ordered if not change.fits]
    return (*fitting, *cards, *short)


def _saving(trials: list[_Trial]) -> list[_Trial]:
    return [trial for trial in trials if trial.change.saves_bytes >= _WORTH_BYTES]


def _pairs(judge: _Judge, singles: list[_Trial]) -> list[_Trial]:
    """Pairs that fit, at most ``MAX_PAIRS``: each saver, largest first, with every change of another topic on top of it."""
    found: list[_Trial] = []
    seen: set[frozenset[tuple[str, str | bool | None]]] = set()
    for first in sorted(singles, key=lambda trial: -trial.change.saves_bytes):
        second = [_joined(first.move, move) for move in moves(first.after) if move.topic != first.move.topic]
        new = [move for move in second if frozenset(move.flags.items()) not in seen]
        seen.update(frozenset(move.flags.items()) for move in new)
        found += [trial for trial in judge.tries(new) if trial.change.fits]
    return sorted(found, key=lambda trial: _order(trial.change))[:MAX_PAIRS]


def _joined(first: Move, second: Move) -> Move:
    """Both moves as one; where both set a flag, the second has the last word."""
    description = f"{first.description}; and {second.description}"
    return Move(f"{first.topic}+{second.topic}", description, {**first.flags, **second.flags})


def _of_recipe(move: Move) -> Flags:
    """Flags of the move without those of the hardware."""
    return {name: value for name, value in move.flags.items() if name != "gpu"}


def _change(move: Move, before: Prediction, after: Prediction) -> Change:
    ratio = None
    if before.time is not None and after.time is not None:
        ratio = float(after.time.step_s) / float(before.time.step_s)
    saved = float(before.memory.must_have_bytes) - float(after.memory.must_have_bytes)
    return Change(move.description, _flags_text(move.flags), max(0, round(saved)), ratio, after.verdict == "fits")


def _flags_text(flags: Flags) -> str:
    """``--batch 2 --gradient-checkpointing``; a flag that is left out has no text."""
    return " ".join(f"--{name}" if value is True else f"--{name} {value}" for name, value in flags.items() if value is not None)


def _order(change: Change) -> tuple[bool, float, float]:
    """What is enough is chosen by its time; of what is not, people want to know what helps most."""
    ratio = float("inf") if change.step_time_ratio is None else change.step_time_ratio
    return (False, ratio, -change.saves_bytes) if change.fits else (True, -change.saves_bytes, ratio)
