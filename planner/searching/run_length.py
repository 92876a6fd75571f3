"""Time and cost of a run with samples of a real length,
where theirs is not given and full ones are assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.prediction import Prediction
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.calibration import Calibration
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import UsageError
from planner.predicting import predict_with
from planner.searching.variants import with_flags

EXAMPLE_SHARE = 4
"""The example is a quarter of the sequence length: people set a length that few samples reach."""
_LEAST_TOKENS = 32


@dataclass(frozen=True, slots=True)
class AtLength:
    """The run at another real length of samples: tokens of one sample, time,
    and cost where the price is known.
    """

    tokens_per_sample: int
    run_time_s: float
    cost_usd: float | None


def at_example_length(
    scenario: Scenario, prediction: Prediction, model: Coefficients | Calibration
) -> AtLength | None:
    """The run with samples of a quarter of the sequence length, by an estimate of its own.

    ``None`` where no run is asked for, where the length of samples is given,
    or where it changes nothing that is predicted.
    """
    tokens = int(scenario.recipe.batch.seq_len) // EXAMPLE_SHARE
    mean = scenario.assumption("tokens_per_sample")
    is_given = mean is None or not mean.is_assumed
    if prediction.time is None or prediction.time.run_time_s is None or is_given or tokens < _LEAST_TOKENS:
        return None
    try:
        after = predict_with(with_flags(scenario, {"tokens-per-sample": str(tokens)}), model).time
    except UsageError:
        return None
    if (
        after is None
        or after.run_time_s is None
        or float(after.run_time_s) == float(prediction.time.run_time_s)
    ):
        return None
    return AtLength(
        tokens, float(after.run_time_s), None if after.cost_usd is None else float(after.cost_usd)
    )
