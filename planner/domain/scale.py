"""How far a measurement may lie from one prediction, relative to others: more where less of it was counted, or was never seen.

A scale has no unit of its own: intervals are quantiles of ``log(measured / predicted) / scale``, so only ratios of scales matter.
All functions take numbers or arrays.
"""

from __future__ import annotations

from planner.domain.hierarchy import LEVEL_SPREAD
from planner.domain.prediction import MemoryLevel, MemoryPrediction, TimePrediction
from planner.domain.recipe import Number
from planner.domain.term import DRIVER_TERMS

# Weights, states and gradients are counted element by element; what a pass holds depends on kernels and on the allocator.  A peak
# that is all counted still scatters by this part of one that is all transient (context, alignment, what a document rounds).
_COUNTED_PART = 0.3
_PAGED_OUT = frozenset({"paged_optimizer_states"})
# What an unknown host adds to a step that only waits for it, beside what every step scatters.
_UNKNOWN_HOST = 1.0
# Seconds that the host, its links or its disks decide, and not the GPU's kernels.
_MACHINE_TERMS = frozenset({"launch", "sharding_hooks", "collectives", "host_transfers", "cpu_adam", "nvme"})


def far_factor(n_unseen: int) -> float:
    """How much wider a prediction is judged for each thing about it that no calibrated record had.

    Formula: sqrt(1 + n x LEVEL_SPREAD^2).  What was seen has an offset of its own below the shared one; what was not keeps the
    prior spread of that offset (:data:`planner.domain.hierarchy.LEVEL_SPREAD`, in spreads of the shared one).
    """
    return float((1 + n_unseen * LEVEL_SPREAD**2) ** 0.5)


def memory_scale(memory: MemoryPrediction, level: MemoryLevel, n_unseen: int) -> Number:
    """Scale of one level of the peak: the share of it that is not counted element by element, and a floor."""
    value = memory.uncapped_driver_bytes if level == "driver" else getattr(memory, f"{level}_peak_bytes")
    outside: frozenset[str] = frozenset() if level == "driver" else DRIVER_TERMS
    return _uncounted(memory, value, outside) * far_factor(n_unseen)


def need_scale(memory: MemoryPrediction, n_unseen: int) -> Number:
    """Scale of what must be held at once."""
    return _uncounted(memory, memory.must_have_bytes, _PAGED_OUT) * far_factor(n_unseen)


def _uncounted(memory: MemoryPrediction, value: Number, outside: frozenset[str]) -> Number:
    """The floor and the share of ``value`` that is not counted; terms named ``outside`` are no part of it."""
    counted: Number = sum(term.n_bytes for term in memory.terms if term.kind != "transient" and term.name not in outside)
    uncounted: Number = (value - counted) / value
    positive: Number = (uncounted + (uncounted**2) ** 0.5) / 2
    return _COUNTED_PART + positive


def machine_share(time: TimePrediction) -> Number:
    """Share of a step that waits for the host, links or disks."""
    waiting: Number = sum(term.seconds - term.overlapped_s for term in time.terms if term.name in _MACHINE_TERMS)
    share: Number = waiting / time.step_s
    return share


def time_scale(time: TimePrediction, n_unseen: int, *, host_is_known: bool) -> Number:
    """Scale of a step time: an unknown host adds to it for the share of the step that waits for it.

    Formula: sqrt(1 + (_UNKNOWN_HOST x share)^2) x :func:`far_factor`; the second part is 0 for a known host.
    """
    share = 0.0 if host_is_known else _UNKNOWN_HOST * machine_share(time)
    scale: Number = (1 + share**2) ** 0.5 * far_factor(n_unseen)
    return scale
