"""What could be changed about a job to save memory, the cheapest first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from planner.domain.prediction import Prediction, Verdict
from planner.domain.recipes.sharding import sharding_named
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.calibration import Calibration
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import NotModelledError, RefusedCombinationError, UsageError
from planner.predicting import PRIORS, predict_with
from planner.searching.affordable import is_affordable_beside, n_affordable
from planner.searching.common_stacks import runs_sharding
from planner.searching.compared import host_bytes, step_ratio, usd_ratio
from planner.searching.moves import (
    CHEAP,
    KINDS,
    LeverKind,
    Move,
    has_large_states,
    less_offload,
    moves,
    smaller_batches,
)
from planner.searching.places import (
    divided_sequences,
    inputs_in_host_ram,
    larger_cards,
    loaded_on_host,
    more_cards,
    more_nodes,
    one_process,
    other_stacks,
)
from planner.searching.variants import flags_text, refusals, warnings_about, with_flags
from planner.units import GIB, MIB

MAX_ESTIMATES = 200
MAX_PAIRS = 4
# Pairs that are tried with a third change on top, the largest savers.
_MAX_GROWN = 3
# Pairs that need this many times the card's memory tell that no others fit.
_HOPELESS = 1.5
# Where nothing fits, this many times as much is tried in the end.
_LAST_RESORT = 4
# Differences below this are rounding of the real allocator, not advice.
_WORTH_BYTES = 64 * MIB
# A lever that is called free may cost this share of the step time: less is not told apart.
_FREE_RATIO = 1.05
_SHOWN_RATIO = 0.02
# A quick answer is within this share of the replayed one.
_NEAR = 0.13
# What rented servers of eight H100 or H200 have: AWS p5 2,048 GiB, Azure ND H100 v5 1,900 GiB.
_MOST_HOST_BYTES = 2048 * GIB
# What nobody should be advised to do, although some do it.
_BAD_ADVICE = frozenset(
    {
        "liger-not-in-stack",
        "bf16-without-units",
        "fused-experts-not-quantized",
        "own-linears-not-quantized",
        "nf4-sharded-without-storage",
        "gpu-speed-unknown",
    }
)
# Of adapters they save too little to be what another change lacks.
_OF_STATES = ("optimizer", "rank")
_OF_PLACE = ("gpu", "gpu-memory", "nodes", "stack")
_OF_SHARDING = frozenset({"sharding", "precision", "quant-storage", "optimizer"})


@dataclass(frozen=True, slots=True)
class Lever:
    """One change of a job, or two or three together.

    ``kind``: ``free`` changes nothing in the training and costs nothing; then what costs time, what costs
    money or host RAM, and what changes the training.  ``flags`` ask for it on the command line, after the
    job's own (``None``: leave that flag out).  ``saves_bytes``: fewer bytes that one GPU needs at least; 0
    for a card with more memory.  ``saves_host_bytes``: less host RAM that a node needs.
    ``step_time_ratio``: time of an optimizer step after over before, ``None`` where unknown.
    ``host_bytes``: host RAM that a node needs on top of today's.  ``usd_ratio``: cost of a sample after
    over before, ``None`` where a price is unknown.  ``verdict`` and ``fits_probability`` are those after
    the change.
    """

    kind: LeverKind
    description: str
    flags: Mapping[str, str | bool | None]
    saves_bytes: int
    saves_host_bytes: int
    step_time_ratio: float | None
    host_bytes: int
    usd_ratio: float | None
    verdict: Verdict
    fits_probability: float | None

    @property
    def fits(self) -> bool:
        """Whether the job fits after the change."""
        return self.verdict == "fits"

    def saves_of(self, short_of: Verdict) -> int:
        """Bytes it saves of what a job with this verdict is short of."""
        return self.saves_host_bytes if short_of == "host_memory_short" else self.saves_bytes

    @property
    def flags_text(self) -> str:
        """``--batch 2 --gradient-checkpointing``; a flag to leave out is ``without --modules-to-save``."""
        return flags_text(self.flags)

    @property
    def only_divides_weights(self) -> bool:
        """Whether it divides the weights over the same GPUs, and changes what that takes alone."""
        sharding = self.flags.get("sharding")
        divides = isinstance(sharding, str) and sharding_named(sharding).divides_weights
        return divides and self.flags.keys() <= _OF_SHARDING

    @property
    def hardware_text(self) -> str:
        """What other hardware it asks for, if any."""
        return "other cards" if "gpu" in self.flags else "more nodes" if "nodes" in self.flags else ""

    @property
    def nothing_more(self) -> str:
        """The words where no number says what it costs; without a step time nobody knows that it is free."""
        if self.step_time_ratio is not None:
            return "free"
        return "time" if self.kind == "time" else "time unknown"

    @property
    def cost_text(self) -> str:
        """What it costs in a few words: ``step x 1.23``, ``67 GiB host RAM``, ``free``; ``time`` where nobody
        knows how much.
        """
        ratio = self.step_time_ratio
        parts = [] if ratio is None or abs(ratio - 1) < _SHOWN_RATIO else [f"step x {ratio:.2f}"]
        parts += [f"{self.host_bytes / GIB:,.0f} GiB host RAM"] if self.host_bytes >= GIB else []
        parts += [self.hardware_text] if self.hardware_text else []
        parts += ["changes the training"] if self.kind == "training" else []
        return ", ".join(parts) or self.nothing_more


@dataclass(frozen=True, slots=True)
class _Trial:
    """An estimated move, and the job after it."""

    move: Move
    after: Scenario
    lever: Lever


class _Judge:
    """Estimates moves against the job as it is, and counts the estimates.

    ``quick``: one that is far from the card's limit is not replayed; nor is it ever where its program is far
    larger than the job's.  ``kinds``: others are counted alone.
    """

    def __init__(
        self,
        scenario: Scenario,
        model: Coefficients | Calibration,
        *,
        quick: bool,
        kinds: tuple[LeverKind, ...] = KINDS,
    ) -> None:
        self._scenario, self._model, self._quick, self._kinds = scenario, model, quick, kinds
        self._refused, self._warned = refusals(scenario).keys(), warnings_about(scenario)
        self.base = predict_with(scenario, model, quick=quick)
        self.left = MAX_ESTIMATES - 1

    def tries(self, options: Iterable[Move]) -> list[_Trial]:
        """Estimates ``options`` that break no rule and are not padded, while estimates are left."""
        trials = list[_Trial]()
        for move in options:
            padded = _asks_for_more(move.flags, (trial.lever for trial in trials))
            after = None if padded else self._after(move)
            if after is None or self.left == 0:
                continue
            self.left -= 1
            if move.kind not in self._kinds:
                continue
            # What is not modelled after a move is no reason to keep the answer of the job itself.
            with suppress(NotModelledError):
                trials.append(_Trial(move, after, self._lever(move, after)))
        return trials

    def is_hosted(self, lever: Lever) -> bool:
        """Whether servers have the host RAM for ``lever``; of a host whose size is known the verdict says."""
        return self.base.host.available_bytes is not None or lever.host_bytes <= _MOST_HOST_BYTES

    def is_hopeless(self, trials: list[_Trial]) -> bool:
        """Whether the best of ``trials`` is so far above the limit that others like them will not fit."""
        memory = self.base.memory
        most = max((trial.lever.saves_bytes for trial in trials), default=None)
        return most is not None and float(memory.must_have_bytes) - most > _HOPELESS * float(
            memory.limit_bytes or math.inf
        )

    def again(self, trials: Iterable[_Trial]) -> list[_Trial]:
        """The same changes, estimated by this judge."""
        return [replace(trial, lever=self._lever(trial.move, trial.after)) for trial in trials]

    def confirmed(self, trial: _Trial) -> _Trial:
        """``trial``; where a quick answer says that the job fits, with the verdict of a replay."""
        if not (self._quick and trial.lever.fits and is_affordable_beside(self._scenario, trial.after)):
            return trial
        replayed = predict_with(trial.after, self._model)
        chance = replayed.fits_probability
        return replace(trial, lever=replace(trial.lever, verdict=replayed.verdict, fits_probability=chance))

    def _after(self, move: Move) -> Scenario | None:
        """The job after the move, or ``None`` where that breaks a rule that the job did not break before (it
        may be forced).
        """
        try:
            after = _moved(self._scenario, move)
        except (RefusedCombinationError, UsageError):
            return None
        if not runs_sharding(after.stack.id, after.recipe.sharding):
            return None
        broken = (
            refusals(after).keys() - self._refused or (warnings_about(after) - self._warned) & _BAD_ADVICE
        )
        return None if broken else after

    def _lever(self, move: Move, after: Scenario) -> Lever:
        quick = self._quick or not is_affordable_beside(self._scenario, after)
        before, compared = self.base, predict_with(after, self._model, quick=quick)
        prediction = near_the_limit(after, self._model, compared) if quick else compared
        ratio = step_ratio(before, prediction)
        saved = float(before.memory.must_have_bytes) - float(compared.memory.must_have_bytes)
        saved_host = float(before.host.required_per_node_bytes) - float(
            prediction.host.required_per_node_bytes
        )
        return Lever(
            kind="time" if move.kind == "free" and ratio is not None and ratio > _FREE_RATIO else move.kind,
            description=move.description,
            flags=move.flags,
            saves_bytes=max(0, round(saved)),
            saves_host_bytes=max(0, round(saved_host)),
            step_time_ratio=ratio,
            host_bytes=host_bytes(self._scenario, before, after, prediction),
            usd_ratio=usd_ratio(self._scenario, before, after, prediction),
            verdict=prediction.verdict,
            fits_probability=prediction.fits_probability,
        )


def levers(
    scenario: Scenario,
    model: Coefficients | Calibration = PRIORS,
    *,
    alone: bool = False,
    kinds: tuple[LeverKind, ...] = KINDS,
) -> tuple[Lever, ...]:
    """Changes that save GPU memory, or host RAM where that is short: of settings free ones, then those that
    cost time, money or host RAM; then other software, then other cards, last what changes the training.

    In each kind what makes the job fit comes first; of changes that cost time, money or host RAM the one that
    slows a step least.  Else the largest saver is first.
    Where no single change is enough that costs nothing or time, several are tried together, the cheap first;
    and a cheaper method with as much on top as it takes.  Other cards come where the job surely does not fit.
    ``alone``: single changes on the same cards, replayed near the limit.  ``kinds``: what is estimated.
    """
    judge = _Judge(scenario, model, quick=alone, kinds=kinds)
    judge.left = judge.left if alone else min(judge.left, n_affordable(scenario))
    verdict = judge.base.verdict
    less = less_offload(scenario) if verdict == "host_memory_short" else ()
    short = verdict not in ("fits", "no_verdict")
    on_host = loaded_on_host(scenario) if short else ()
    options = (*on_host, *moves(scenario), *other_stacks(scenario), *less)
    singles = _roomiest(judge, judge.tries(options), scenario)
    trials = [trial for trial in singles if trial.lever.saves_of(verdict) >= _WORTH_BYTES]
    if short and not alone:
        memory, first = judge.base.memory, _Judge(scenario, model, quick=True)
        first.left = min(first.left, n_affordable(scenario, quick=True))
        need = max(float(memory.must_have_bytes), float(memory.limit_bytes or 0))
        found = [trial for trial in first.tries(larger_cards(scenario, need)) if trial.lever.fits]
        found += [trial for trial in first.tries(more_cards(scenario)) if trial.lever.fits][:1]
        found += _cheaper_methods(first, singles)
        found += _downhill(first, first.tries(divided_sequences(scenario)), with_stacks=True)
        found += _together(first, [trial for trial in (*trials, *found) if trial.move.topic != "card"])
        found = [trial for each in found for trial in _within_hosts(first, each)]
        found += _on_more_nodes(first, scenario)
        trials += judge.again(found)
        if not any(trial.lever.fits for trial in trials):
            trials += [trial for trial in judge.tries(one_process(scenario)) if trial.lever.fits]
        if not any(trial.lever.fits and not trial.lever.hardware_text for trial in trials):
            trials += judge.again(_last_resort(scenario, model, singles))
    every = [trial.lever for trial in trials if judge.is_hosted(trial.lever)]
    return _ordered([lever for lever in every if not _asks_for_more(lever.flags, every)], verdict)


def _asks_for_more(flags: Mapping[str, str | bool | None], found: Iterable[Lever]) -> bool:
    """Whether one of ``found`` asks for less by the same method, and the job fits after it."""
    alike = (
        lever.flags for lever in found if lever.fits and lever.flags.get("method") == flags.get("method")
    )
    return any(each.items() < flags.items() for each in alike)


def near_the_limit(scenario: Scenario, model: Coefficients | Calibration, quick: Prediction) -> Prediction:
    """The ``quick`` answer, or the replayed one where the quick one is so near the card's limit that it may
    be wrong.
    """
    limit = quick.memory.limit_bytes
    near = bool(limit) and abs(float(quick.memory.must_have_bytes) / limit - 1) < _NEAR if limit else False
    return predict_with(scenario, model) if near else quick


def _moved(scenario: Scenario, move: Move) -> Scenario:
    of_recipe = {name: value for name, value in move.flags.items() if name not in _OF_PLACE}
    return with_flags(scenario, of_recipe, move.hardware, move.stack)


def _together(judge: _Judge, singles: list[_Trial]) -> list[_Trial]:
    """What fits of two changes together, of the cheapest kinds among which no single one is enough.

    Three are tried where all of them are free or cost time: a full fine-tune wants checkpointing,
    sharding and a fused loss.  Where another stack alone is enough, there is an answer for who stays, too.
    """
    if any(trial.lever.fits for trial in singles if trial.move.topic == "stack"):
        singles = [trial for trial in singles if trial.move.topic != "stack"]
    for n_kinds in range(2, len(KINDS) + 1):
        kinds = KINDS[:n_kinds]
        cheap = [trial for trial in singles if trial.lever.kind in kinds]
        if any(trial.lever.fits for trial in cheap):
            return []
        tried = _on_top(judge, cheap, kinds)
        if n_kinds == 2 and not any(trial.lever.fits for trial in tried):
            tried = _on_top(judge, _largest_first(tried)[:_MAX_GROWN], kinds)
        if found := [trial for trial in tried if trial.lever.fits]:
            return sorted(found, key=lambda trial: (*_rescue(trial.lever), -trial.lever.saves_bytes))[
                :MAX_PAIRS
            ]
    return []


def _roomiest(judge: _Judge, singles: list[_Trial], scenario: Scenario) -> list[_Trial]:
    """``singles``; where half the micro-batch is too much and one sample is not, the first that fits of those
    between is in the place of one sample.
    """
    batches = [trial for trial in singles if trial.move.topic == "batch"]
    if [trial.lever.fits for trial in batches] != [False, True]:
        return singles
    for move in smaller_batches(scenario)[1:-1]:
        if found := [trial for trial in judge.tries([move]) if trial.lever.fits]:
            return [*(trial for trial in singles if trial is not batches[-1]), *found]
    return singles


def _within_hosts(judge: _Judge, trial: _Trial) -> list[_Trial]:
    """``trial``; where it takes more host RAM than servers have, the same on the fewest nodes that do."""
    if judge.is_hosted(trial.lever):
        return [trial]
    joined = (_joined(trial.move, move) for move in more_nodes(trial.after))
    found = (each for move in joined for each in judge.tries([move]))
    return [each for each in found if each.lever.fits and judge.is_hosted(each.lever)][:1]


def _on_more_nodes(judge: _Judge, scenario: Scenario) -> list[_Trial]:
    """The fewest nodes on which the job fits with changes on top that are free or cost time."""
    options = more_nodes(scenario)
    # What does not fit on the most does not fit on fewer.
    if not _downhill(judge, judge.tries(options[-1:])):
        return []
    found = (_downhill(judge, judge.tries([move])) for move in options)
    return next(filter(None, found), [])


def _last_resort(
    scenario: Scenario, model: Coefficients | Calibration, singles: list[_Trial]
) -> list[_Trial]:
    """Change upon change of any kind but shorter samples, always the one that saves most, if it ends well:
    who has no other cards gets an answer, too.
    """
    judge = _Judge(scenario, model, quick=True)
    judge.left = min(judge.left, _LAST_RESORT * n_affordable(scenario, quick=True))
    starts = [trial for trial in singles if trial.move.topic != "length"]
    return [trial for trial in _downhill(judge, starts, kinds=KINDS) if trial.lever.fits]


def _downhill(
    judge: _Judge,
    starts: list[_Trial],
    *,
    kinds: tuple[LeverKind, ...] = CHEAP,
    with_stacks: bool = False,
) -> list[_Trial]:
    """The first of ``starts`` that fits; else the best of them with whatever saves most on top of it, and so
    on until it fits, by changes of these ``kinds``, ``with_stacks`` by another stack at the end.
    """
    confirmed = list[_Trial]()
    for trial in starts:
        confirmed.append(judge.confirmed(trial))
        if confirmed[-1].lever.fits:
            return confirmed[-1:]
    best = max(confirmed, key=lambda trial: trial.lever.saves_bytes, default=None)
    while best is not None and not (best := judge.confirmed(best)).lever.fits:
        others = [
            move
            for move in moves(best.after)
            if move.kind in kinds and move.topic not in (*best.move.topic.split("+"), "length")
        ]
        stacks = (*other_stacks(best.after), *inputs_in_host_ram(best.after)) if with_stacks else ()
        best = _better(judge, best, others) or _better(judge, best, stacks)
    return [] if best is None else [best]


def _cheaper_methods(judge: _Judge, singles: list[_Trial]) -> list[_Trial]:
    """A cheaper method with as much on top as it takes, other software last; a 4-bit base may come divided
    to the GPUs.
    """
    methods = [trial for trial in singles if trial.move.topic == "method"]
    on_host = [_joined(trial.move, move) for trial in methods for move in loaded_on_host(trial.after)]
    found = _downhill(judge, [*methods, *judge.tries(on_host)], with_stacks=True)
    return [trial for trial in found if trial not in methods]


def _better(judge: _Judge, best: _Trial, others: Iterable[Move]) -> _Trial | None:
    """``best`` with the largest saver of ``others`` on top of it, if one saves anything."""
    tried = judge.tries(_joined(best.move, move) for move in others)
    saved = best.lever.saves_bytes + _WORTH_BYTES
    return next((trial for trial in _largest_first(tried) if trial.lever.saves_bytes >= saved), None)


def _largest_first(trials: list[_Trial]) -> list[_Trial]:
    return sorted(trials, key=lambda trial: -trial.lever.saves_bytes)


def _on_top(judge: _Judge, firsts: list[_Trial], kinds: tuple[LeverKind, ...]) -> list[_Trial]:
    """Each saver, largest first, with every change of another topic on top of it; other stacks last.

    Ends where the best pair with the largest saver still needs ``_HOPELESS`` times what the card has.  What
    another stack lacks tells nothing of the job's own, nor the other way round.
    """
    own = [trial for trial in firsts if trial.move.stack is None]
    others = [trial for trial in firsts if trial.move.stack is not None]
    seen: set[frozenset[tuple[str, str | bool | None]]] = set()
    return [*_pairs(judge, own, kinds, seen), *_pairs(judge, others, kinds, seen)]


def _pairs(
    judge: _Judge,
    firsts: list[_Trial],
    kinds: tuple[LeverKind, ...],
    seen: set[frozenset[tuple[str, str | bool | None]]],
) -> list[_Trial]:
    """Pairs whose flags are not yet ``seen``, until there is no hope."""
    tried: list[_Trial] = []
    for first in _largest_first(firsts):
        topics = first.move.topic.split("+")
        topics += () if has_large_states(first.after) else _OF_STATES
        others = [move for move in moves(first.after) if move.topic not in topics and move.kind in kinds]
        new = [
            joined
            for move in others
            if frozenset((joined := _joined(first.move, move)).flags.items()) not in seen
        ]
        seen.update(frozenset(move.flags.items()) for move in new)
        tried += judge.tries(new)
        if judge.is_hopeless(tried):
            break
    return tried


def _joined(first: Move, second: Move) -> Move:
    """Both moves as one; where both set a flag, the second has the last word."""
    kind = max(first.kind, second.kind, key=KINDS.index)
    flags = {**first.flags, **second.flags}
    topic, description = f"{first.topic}+{second.topic}", f"{first.description} + {second.description}"
    hardware = first.hardware or second.hardware
    return Move(topic, kind, description, flags, hardware, second.stack or first.stack)


def _ordered(found: list[Lever], verdict: Verdict) -> tuple[Lever, ...]:
    """Of a job that fits what saves most, in each kind; of one that does not what rescues it for least."""
    order = _order if verdict == "fits" else _rescue
    return tuple(sorted(found, key=lambda lever: (*order(lever), -lever.saves_of(verdict))))


def _order(lever: Lever) -> tuple[bool, int, int, bool]:
    """Settings first, then other software, then other cards; what changes the training comes last."""
    place = 2 if lever.hardware_text else 1 if "stack" in lever.flags else 0
    return lever.kind == "training", place, KINDS.index(lever.kind), not lever.fits


def _rescue(lever: Lever) -> tuple[bool, int, int, bool, float]:
    """What is enough is not better where it saves more.
    A step of half the length is no better for being faster.
    """
    compared = lever.fits and lever.kind in ("time", "money") and not lever.hardware_text
    slower = round(lever.step_time_ratio or 0.0, 2) if compared else 0.0
    return *_order(lever), slower
