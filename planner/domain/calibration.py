"""Fitted coefficients: offsets from the priors by level, resolved to plain coefficients for one scenario."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache

from planner.domain.coefficients import Coefficients, Level, priors
from planner.domain.scenario import Scenario

UNCALIBRATED = "uncalibrated"
# A level below "all" is shrunk to the one above by this part of the coefficient's spread.  Hosts differ by more than GPUs of a
# generation do, so theirs is the whole of it.
LEVEL_SPREAD = 0.5
HOST_SPREAD = 1.0


@dataclass(frozen=True, slots=True)
class Knob:
    """One free number of the fit: how far one coefficient lies from its prior for one key of one level.

    ``key`` is the generation, GPU, stack family, host or quantisation; empty at the level ``all``.
    """

    coefficient: str
    level: Level = "all"
    key: str = ""

    @property
    def label(self) -> str:
        """``launch_s`` or ``context_bytes[hopper]``."""
        return f"{self.coefficient}[{self.key}]" if self.key else self.coefficient

    @property
    def spread(self) -> float:
        """One standard deviation of the offset before the fit; see :class:`planner.domain.coefficients.Prior`."""
        parts = {"all": 1.0, "host": HOST_SPREAD}
        return priors()[self.coefficient].spread * parts.get(self.level, LEVEL_SPREAD)


@dataclass(frozen=True, slots=True)
class Offset:
    """A fitted knob: its offset, and one standard deviation of it after the fit, in the unit of the prior's spread."""

    knob: Knob
    offset: float
    spread: float


def level_key(level: Level, scenario: Scenario) -> str:
    """Key of ``scenario`` at one level; empty where the level says nothing of it (an unknown host, no quantisation)."""
    if level == "generation":
        return scenario.hardware.gpu.generation
    if level == "gpu":
        return scenario.hardware.gpu.id
    if level == "family":
        return stack_family(scenario.stack.id)
    if level == "host":
        return "" if scenario.hardware.host.id == "unknown" else scenario.hardware.host.id
    if level == "quantization":
        quantization = scenario.recipe.numerics.quantization
        return "" if quantization == "none" else quantization
    return ""


def stack_family(stack_id: str) -> str:
    """``hf-trainer`` of ``hf-trainer@4-noprep``: the name without the version."""
    return stack_id.partition("@")[0]


def applies(knob: Knob, scenario: Scenario, host: str = "") -> bool:
    """Whether the knob moves its coefficient for this scenario; ``host`` names its machine where the scenario does not."""
    if knob.level == "all":
        return True
    key = level_key(knob.level, scenario) or (host if knob.level == "host" else "")
    return bool(knob.key) and key == knob.key


def resolve_coefficients(name: str, offsets: tuple[Offset, ...], scenario: Scenario) -> Coefficients:
    """Plain coefficients for one scenario: prior plus the offsets of every level that applies, inside the bounds."""
    used = tuple(each for each in offsets if applies(each.knob, scenario))
    return _summed(name, used)


@lru_cache(maxsize=512)
def _summed(name: str, offsets: tuple[Offset, ...]) -> Coefficients:
    totals: dict[str, float] = {}
    for each in offsets:
        totals[each.knob.coefficient] = totals.get(each.knob.coefficient, 0.0) + each.offset
    values = {coefficient: priors()[coefficient].moved(total) for coefficient, total in totals.items()}
    return replace(Coefficients(), name=name, **values)


def known_coefficient(name: str) -> bool:
    """Whether ``name`` is a coefficient of the formulas."""
    return name in {each.name for each in fields(Coefficients)} - {"name"}
