"""The question: model, hardware, recipe and stack, with the origin of every resolved value."""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.domain.hardware import Hardware
from planner.domain.model import ModelSpec
from planner.domain.recipe import Recipe
from planner.domain.stack import Stack


@dataclass(frozen=True, slots=True)
class Assumption:
    """One resolved value.

    ``origin`` is ``cli``, ``file:line``, ``file:key``, ``default:<stack>``, ``default of <tool>``, ``catalog``, ``assumed`` or
    ``derived``.
    """

    name: str
    value: str
    origin: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Length and price of the whole run; ``None`` where the user does not say.  ``usd_per_gpu_hour`` is per GPU.

    ``eval_samples`` are evaluated after each epoch, ``eval_micro_batch`` at a time on each GPU.
    """

    n_samples: int | None = None
    epochs: float = 1.0
    usd_per_gpu_hour: float | None = None
    eval_samples: int | None = None
    eval_micro_batch: int = 8


@dataclass(frozen=True, slots=True)
class Scenario:
    """Every choice that changes memory or time.  The instruments answer it; ``warnings`` are combinations that people do run."""

    model: ModelSpec
    hardware: Hardware
    recipe: Recipe
    stack: Stack
    run: RunPlan = field(default_factory=RunPlan)
    assumptions: tuple[Assumption, ...] = ()
    warnings: tuple[str, ...] = ()
