"""Records -> a calibration: screened, fitted, held out group by group,
with intervals from what was held out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain

from planner.calibration.fit.problem import make_problem
from planner.calibration.fit.screen import LeftOut, nothing_usable, screen
from planner.calibration.fit.split import CrossFit, cross_fit
from planner.calibration.fit.targets import QUANTITIES, Target, targets_of
from planner.calibration.fit.unused import not_fitted, unused_readings
from planner.calibration.intervals.coverage import measured_coverage
from planner.calibration.intervals.residuals import residuals_of
from planner.calibration.intervals.spreads import Residual, make_spreads
from planner.domain.run_record import RunRecord
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.calibration import (
    Calibration,
    Support,
    engine_of,
    formulas_version,
    method_of,
    stack_family,
)
from planner.errors import UsageError

# With each of these, sources that are left out whole are predicted better than without it; with any other
# they are not, or worse (2026-11-30, `make figures NAMES=worth`).
EARNED = frozenset({"int8_outlier_fraction", "hook_s", "dequantize_relative_speed", "int8_relative_speed"})


@dataclass(frozen=True, slots=True)
class Fitted:
    """A calibration on all groups, one without each group, and what they were made from."""

    calibration: Calibration
    without: Mapping[str, Calibration]
    fits: tuple[CrossFit, ...]
    residuals: tuple[Residual, ...]
    left_out: tuple[LeftOut, ...]
    not_fitted: Mapping[str, str] = field(default_factory=dict)


def calibrate(records: Sequence[RunRecord], name: str = "default", free: Collection[str] = EARNED) -> Fitted:
    """Fit ``free`` coefficients to ``records`` and judge them by leaving out one source group at a time.

    Raises:
        UsageError: no record can be used.
    """
    screened = screen(records)
    targets = [target for record, scenario in screened.used for target in targets_of(record, scenario)]
    if not targets:
        raise UsageError(nothing_usable(screened.left_out))
    problems = [make_problem(quantity, targets, free) for quantity in QUANTITIES]
    fits = tuple(cross_fit(each) for each in problems if each is not None)
    groups = tuple(dict.fromkeys(target.group for target in targets))
    blind = {group: _calibration(f"{name} without {group}", targets, fits, group) for group in groups}
    residuals = tuple(chain.from_iterable(residuals_of(fit, blind) for fit in fits))
    without = {
        group: _with_intervals(each, [r for r in residuals if r.group != group])
        for group, each in blind.items()
    }
    whole = _with_intervals(_calibration(name, targets, fits, None), residuals)
    whole = replace(whole, coverage=tuple(sorted(measured_coverage(residuals).items())))
    left_out = (*screened.left_out, *unused_readings(screened.used))
    rest = not_fitted([fit.problem for fit in fits], free)
    return Fitted(whole, without, fits, residuals, left_out, rest)


def _calibration(
    name: str, targets: Sequence[Target], fits: Sequence[CrossFit], held_out: str | None
) -> Calibration:
    """The calibration that saw everything but ``held_out``, without intervals."""
    seen = [target for target in targets if target.group != held_out]
    return Calibration(
        name=name,
        date=datetime.now(UTC).date().isoformat(),
        formulas=formulas_version(),
        offsets=tuple(offset for fit in fits for offset in fit.offsets(held_out)),
        spreads=(),
        support=support_of([(target.group, target.scenario) for target in seen]),
        n_rows=len({target.record.id for target in seen}),
        groups=tuple(dict.fromkeys(target.group for target in seen)),
    )


def _with_intervals(calibration: Calibration, residuals: Sequence[Residual]) -> Calibration:
    """A calibration with intervals from what was held out."""
    return replace(calibration, spreads=make_spreads(residuals))


def support_of(readings: Sequence[tuple[str, Scenario]], vendor_sources: int = 2) -> Support:
    """What a set of readings covers, each as its source group and scenario.

    ``vendor_sources``: of how many groups a vendor's cards must be; one is enough on one's own machine.
    """
    scenarios = [scenario for _, scenario in readings]
    of_vendors = Counter(
        vendor for _, vendor in {(group, each.hardware.gpu.vendor) for group, each in readings}
    )
    return Support(
        generations=tuple(sorted({each.hardware.gpu.generation for each in scenarios})),
        gpus=tuple(sorted({each.hardware.gpu.id for each in scenarios})),
        families=tuple(sorted({stack_family(each.stack) for each in scenarios})),
        methods=tuple(sorted({method_of(each) for each in scenarios})),
        engines=tuple(sorted({engine_of(each) for each in scenarios})),
        vendors=tuple(sorted(name for name, count in of_vendors.items() if count >= vendor_sources)),
    )
