"""How far a measurement may lie from one prediction, relative to others:
more where less of it was counted, given or ever seen.

A scale has no unit of its own: intervals are quantiles of ``log(measured / predicted) / scale``, so only
ratios of scales matter. All functions take numbers or arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.prediction import MemoryLevel, MemoryPrediction, TimePrediction
from planner.domain.recipes.recipe import Number
from planner.domain.term import DRIVER_TERMS
from planner.domain.uncertainty.hierarchy import FREEDOM
from planner.units import GIB

_PAGED_OUT = frozenset({"paged_optimizer_states"})
# Issue time that kernels hide shows as soon as the host is slower than predicted, so all of it counts,
# hidden or not.
ISSUE_TERMS = frozenset({"launch", "sharding_hooks", "module_walks", "update_launch"})
_LINK_TERMS = frozenset(
    {"collectives", "update_collectives", "parallel_collectives", "host_transfers", "cpu_adam", "nvme"}
)
# Where no mean length is given, a step may take less than half of the time of full samples, like its memory.
# No published time of such a job tests this guess.
_UNTOLD_LENGTHS = 5.0
# How much each cause of scatter counts, where a scale of 1 is a peak that is all transient: its bytes are off
# by a sixth or so, as one standard deviation of the logarithm.  These were settled with the published tables
# known.  Chosen for each source by all others, they held as many of its readings in intervals as wide.
# Weights, states and gradients are counted element by element, while transient bytes depend on kernels and
# the allocator.  A peak that is all counted still scatters by this much: alignment, what a source rounds.
_COUNTED = 0.6
# Where not even the mean length is given, samples are taken to fill the cap.  What is allocated is that of
# the longest batch, which fills it.  What shorter batches leave reserved may be several times the guess.
_UNKNOWN_LENGTHS = 10.0
# The order of samples, whose deviation is known, in scales: the inverse of that sixth.
_ORDER = 6.0
# Context, libraries, other processes and rounding scatter by bytes, whatever the job's size, like so many
# transient bytes.
_FIXED_BYTES = 2.0 * GIB
# Weights that are gathered come as far ahead as the host runs, and what another stream has used is free only
# when that stream has passed: the replay takes one order of many.  Chosen for each source by the interval
# scores of all others, this is 1.5 (allocated) or 2 (reserved, driver's total) for all of them but one;
# with 2 such jobs lie inside too often, and others too rarely.
_GATHERED = 1.5
# One standard deviation of the logarithm of times whose scale is 1, by sources left out.  All rates of a card
# whose chip nobody names are in parts of it, by ``FREEDOM`` of :mod:`planner.domain.uncertainty.hierarchy`.
_TIME_DEVIATION = 0.08
# How far hosts lie apart, in scales.  Chosen for each source by the interval scores of all others, this is 3
# for every one; from 3 to 4.5 the scores are within 1 %, at 6 they are 6 % worse.
_MACHINE = 3.5
_UNSOURCED_RATES = FREEDOM["gpu_rate"].machine / _TIME_DEVIATION
# Rates of a generation of cards that no calibrated record had: as far off as the stated range of what
# products reach of their peak.
_UNSEEN_RATES = FREEDOM["matmul_efficiency"].spread / _TIME_DEVIATION
# What each thing that no record had may add, in parts of what a peak that is all transient scatters by.
# The interval scores of kinds of job that are left out whole are best with 0 and 1 % worse with this.
# It is kept, since what nobody measured may be worse than the kinds that somebody did.
_UNSEEN = 0.2
# Of a peak below this, the interval is taken in bytes: as a ratio to a few MiB,
# what scatters by bytes would have no bound.
_SMALLEST_BYTES = 0.5 * GIB


@dataclass(frozen=True, slots=True)
class Doubt:
    """What makes one scenario less sure than others, beside what its prediction is made of.

    ``n_unseen``: things about it that no calibrated record had.  ``lengths_unknown``: samples are padded to
    the longest of their batch, and how long they are is not given.  ``rates_unsourced``: no source says how
    fast the card is, such as a rented card of unknown chip, or how much of its rates the libraries of its
    vendor reach in training.  ``generation_unseen``: cards of its generation are among what no record had.
    ``gathers``: weights are brought together for the passes.
    """

    n_unseen: int = 0
    lengths_unknown: bool = False
    rates_unsourced: bool = False
    generation_unseen: bool = False
    gathers: bool = False


def widened(scale: Number, n_unseen: int, *, rates_unseen: bool = False) -> Number:
    """A scale with what things that no calibrated record had may add; of a time also what ``rates_unseen``
    may, those of a generation of cards.

    Formula: sqrt(scale^2 + n x 0.2^2), whatever the rest scatters by, and for rates 1.5^2.  So code that
    nobody read may hold another copy of what is counted element by element, and a prediction that would be
    narrow widens most.
    """
    rates = _UNSEEN_RATES if rates_unseen else 0.0
    wide: Number = (scale * scale + n_unseen * _UNSEEN**2 + rates**2) ** 0.5
    return wide


def memory_scale(memory: MemoryPrediction, level: MemoryLevel, doubt: Doubt) -> Number:
    """Scale of one level of the peak: its predictive standard deviation,
    in that of a peak that is all transient.

    Formula: sqrt(0.6^2 + (u x t)^2 + (6 x d)^2 + (2 GiB / peak)^2 + g^2), :func:`widened`.
    ``t``: the share of the peak that is not counted element by element.  ``u``: 10 where lengths are unknown
    and blocks of shorter batches count, else 1.  ``d``: what natural lengths pile up, as its standard
    deviation over orders of the samples, in shares of the peak; 0 of what is allocated.  ``g``: 1.5 where
    weights are gathered, else 0.  A peak of less than half a GiB has the shares of half a GiB
    (:func:`lifted`).
    Ignored: that no batch at all may be as long as the cap.
    """
    value = memory.uncapped_driver_bytes if level == "driver" else getattr(memory, f"{level}_peak_bytes")
    outside: frozenset[str] = frozenset() if level == "driver" else DRIVER_TERMS
    piles_up = level != "allocated"
    deviation: Number = memory.order_spread_bytes / lifted(value) if piles_up else 0.0
    guessed = _UNKNOWN_LENGTHS if doubt.lengths_unknown and piles_up else 1.0
    held = _uncounted(memory, value, outside) * guessed
    return widened(_root(value, held, _ORDER * deviation, _ahead(doubt)), doubt.n_unseen)


def lifted(value: Number) -> Number:
    """``value``, a number of bytes, or half a GiB where it is less.

    A smaller peak scatters by as many bytes as one of that size: its interval is that one's,
    moved down by the difference.
    """
    return value + _positive(_SMALLEST_BYTES - value)


def need_scale(memory: MemoryPrediction, doubt: Doubt) -> Number:
    """Scale of the minimum memory: that of :func:`memory_scale`, with no cache,
    and for samples that fill the length.

    A job has to live through its longest batch, and no batch is longer than the cap,
    whatever the lengths are.
    """
    held = _uncounted(memory, memory.must_have_bytes, _PAGED_OUT)
    return widened(_root(memory.must_have_bytes, held, _ahead(doubt)), doubt.n_unseen)


def widest_need_scale(need_bytes: Number, doubt: Doubt) -> Number:
    """No job that needs so much or more has a larger :func:`need_scale`: nothing of it is counted."""
    return widened(_root(need_bytes, 1.0, _ahead(doubt)), doubt.n_unseen)


def _ahead(doubt: Doubt) -> float:
    """What the moment scatters at which gathered weights come and go."""
    return _GATHERED if doubt.gathers else 0.0


def _root(value: Number, *parts: Number) -> Number:
    """Independent causes add as squares: parts of a peak ``value``, what every peak scatters,
    and bytes that know no size.
    """
    squares: Number = _COUNTED**2
    for part in (_FIXED_BYTES / lifted(value), *parts):
        squares = squares + part * part
    total: Number = squares**0.5
    return total


def _positive(value: Number) -> Number:
    """``value``, or 0 where it is below."""
    positive: Number = (value + (value**2) ** 0.5) / 2
    return positive


def _uncounted(memory: MemoryPrediction, value: Number, outside: frozenset[str]) -> Number:
    """The share of ``value`` that is not counted; terms named ``outside`` are no part of it."""
    beside = (term.n_bytes for term in memory.terms if term.name in DRIVER_TERMS - outside)
    counted: Number = sum(beside, memory.state_bytes)
    return _positive((value - counted) / value)


def machine_share(time: TimePrediction, *, below: bool = False) -> Number:
    """Share of a step that the host, links or disks decide, 1 at most for issuing operators.

    Issue time counts where kernels hide it, too: on a slower host it is what a step waits for.  A faster one
    saves only what shows (``below``).
    """
    if below:
        return _exposed(time, ISSUE_TERMS | _LINK_TERMS) / time.step_s
    issue: Number = sum((term.seconds for term in time.terms if term.name in ISSUE_TERMS), 0.0)
    within: Number = 1.0 - _positive(1.0 - issue / time.step_s)
    return within + _exposed(time, _LINK_TERMS) / time.step_s


def _exposed(time: TimePrediction, names: frozenset[str]) -> Number:
    """Seconds of terms that nothing hides."""
    seconds: Number = sum(
        (term.seconds - term.overlapped_s for term in time.terms if term.name in names), 0.0
    )
    return seconds


def time_scale(time: TimePrediction, doubt: Doubt, *, below: bool = False) -> Number:
    """Scale of a step time: sqrt(1 + (3.5 x :func:`machine_share`)^2), :func:`widened`: kernels and
    machine err independently.  ``below``: of times that are less than predicted.

    Five times as much where lengths vary and their mean is not given: tokens that are not there take no more
    time than memory.  Rates without a source may be off as far as virtual and shared cards differ, and so may
    those of libraries of a vendor that fewer than two sources tell of.  A host's name tells nothing of its
    speed that records could confirm, so it narrows nothing.
    """
    guessed = _UNTOLD_LENGTHS if doubt.lengths_unknown else 1.0
    rates = _UNSOURCED_RATES if doubt.rates_unsourced else 0.0
    own = (1 + (_MACHINE * machine_share(time, below=below)) ** 2 + rates**2) ** 0.5
    return widened(own, doubt.n_unseen, rates_unseen=doubt.generation_unseen) * guessed
