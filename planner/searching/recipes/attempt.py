"""One recipe of a search, answered: the flags that ask for it, its scenario,
and the prediction that ``plan`` makes for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

from planner.domain.prediction import Prediction, Verdict
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.calibration import Calibration
from planner.domain.uncertainty.coefficients import Coefficients
from planner.domain.uncertainty.interval import TAIL
from planner.errors import RefusedCombinationError
from planner.intake.resolve import complete
from planner.intake.rules.all_rules import FORCE_HINT
from planner.predicting import is_too_large, predict_with
from planner.searching.recipes.space import Option, Space, TypedFlags
from planner.units import HOUR_S

Model = Coefficients | Calibration
ModelFor = Callable[[Scenario], Model]
# Times that differ by less are the same for choosing.
_SAME_TIME = math.log(1.01)
DEFAULT_CONFIDENCE = 1 - TAIL
"""P(fits) from which ``plan`` says "fits" rather than "uncertain"."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One recipe with its answer by ``model``, which is read when it is asked for.

    ``n_changes``: settings that nobody asked for and that differ from the stack's own.  ``config`` is the
    file below the flags.  ``offloads``: the search moved state to host RAM by itself.  ``option`` is what was
    tried, but for the sizes.  ``is_too_large``: its answer, which nobody asked for yet, says that it does not
    fit.
    """

    flags: TypedFlags
    scenario: Scenario
    answer: Callable[[], Prediction]
    n_changes: int
    model: Model
    option: Option
    config: str | None = None
    offloads: bool = False
    is_too_large: bool = False

    @property
    def prediction(self) -> Prediction:
        """The answer."""
        return self.answer()

    @property
    def sample_s(self) -> float | None:
        """Seconds of the whole job per sample; ``None`` where the rates of the card are unknown."""
        time = self.prediction.time
        return None if time is None else 1 / float(time.samples_per_s)

    @property
    def sample_usd(self) -> float | None:
        """US dollars per sample; ``None`` without a price or a time."""
        price, seconds = self.scenario.run.usd_per_gpu_hour, self.sample_s
        return (
            None
            if price is None or seconds is None
            else price * self.scenario.hardware.world_size * seconds / HOUR_S
        )

    @property
    def need_bytes(self) -> float:
        """The minimum memory of one GPU."""
        return float(self.prediction.memory.must_have_bytes)

    @property
    def room(self) -> float:
        """Share of the card that is left beside what must be held, negative where it does not fit;
        less bytes where unknown.
        """
        limit = self.prediction.memory.limit_bytes
        return -self.need_bytes if limit is None else 1 - self.need_bytes / max(limit, 1)

    @property
    def place(self) -> tuple[str, int, int]:
        """GPU and counts."""
        hardware = self.scenario.hardware
        return hardware.gpu.id, hardware.gpus_per_node, hardware.nodes

    @property
    def warnings(self) -> tuple[str, ...]:
        """Of the job and of its estimate, each once."""
        return tuple(dict.fromkeys((*self.scenario.warnings, *self.prediction.warnings)))

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words after ``plan`` that ask for this recipe."""
        return (*(("--config", self.config) if self.config else ()), *words_of(self.flags))


def words_of(flags: TypedFlags) -> list[str]:
    """Flags as words of a command line; a value that begins with a hyphen is tied to its flag."""
    words = []
    for name, value in flags.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value.startswith("-"):
            words.append(f"--{flag}={value}")
        else:
            words += [f"--{flag}", value]
    return words


def attempt(
    space: Space, option: Option, model: Model, more: TypedFlags, *, quick: bool = True
) -> Tried | RefusedCombinationError:
    """The answer to an option with ``more`` flags, by the same steps as ``plan`` with all of them;
    or the rule that it breaks.
    """
    flags = {**option.flags, **more}
    try:
        scenario = complete(space.request(flags), option.found)
    except RefusedCombinationError as error:
        return type(error)(str(error).removesuffix(FORCE_HINT))
    offloads = "offload" in option.flags and not space.is_given("offload")
    too_large, answer = quick and is_too_large(scenario, model), _answer(scenario, model, quick=quick)
    if not too_large:
        answer()
    file = space.config_file
    return Tried(flags, scenario, answer, option.n_changes, model, option, file, offloads, too_large)


def _answer(scenario: Scenario, model: Model, *, quick: bool) -> Callable[[], Prediction]:
    return cache(partial(predict_with, scenario, model, quick=quick))


def confirmed(tried: Tried) -> Tried:
    """The same recipe with the answer that ``plan`` gives: its step is replayed."""
    return replace(tried, answer=_answer(tried.scenario, tried.model, quick=False), is_too_large=False)


def rank(tried: Tried) -> tuple[float, int, float, float]:
    """Best first: the cheapest sample where prices are known, else the fastest; of equals the plainest,
    then the roomiest.
    """
    effort = tried.sample_s if tried.sample_usd is None else tried.sample_usd
    if effort is None:
        return math.inf, tried.n_changes, -tried.room, math.inf
    return round(math.log(effort) / _SAME_TIME), tried.n_changes, -tried.room, effort


def state_of(prediction: Prediction, confidence: float) -> Verdict:
    """The verdict of ``plan``, with ``confidence`` as the chance from which a job fits rather than is
    uncertain.

    Without a calibration that knows P(fits) the verdict stays.
    """
    verdict, chance = prediction.verdict, prediction.fits_probability
    if verdict not in ("fits", "uncertain") or chance is None:
        return verdict
    return "fits" if chance >= confidence else "uncertain"
