"""What a combination rule is, and what it looks at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from planner.domain.hardware import GpuSpec, Hardware
from planner.domain.model import ModelSpec
from planner.domain.recipes.recipe import Adapter, Numerics, Recipe
from planner.domain.scenario import Scenario
from planner.domain.stack import Stack
from planner.intake.given.request import Given

Level = Literal["refuse", "not-modelled", "warn"]
"""``refuse``: it does not run.  ``not-modelled``: it may, and no formula covers it.  ``warn``: answered."""


@dataclass(frozen=True, slots=True)
class Case:
    """A resolved scenario and what was given, by field (a default is nobody's mistake)."""

    scenario: Scenario
    given: Mapping[str, Given]

    @property
    def model(self) -> ModelSpec:
        """The model."""
        return self.scenario.model

    @property
    def hardware(self) -> Hardware:
        """The hardware."""
        return self.scenario.hardware

    @property
    def gpu(self) -> GpuSpec:
        """One GPU."""
        return self.scenario.hardware.gpu

    @property
    def stack(self) -> Stack:
        """The software stack."""
        return self.scenario.stack

    @property
    def recipe(self) -> Recipe:
        """The recipe."""
        return self.scenario.recipe

    @property
    def numerics(self) -> Numerics:
        """The dtypes."""
        return self.scenario.recipe.numerics

    @property
    def adapter(self) -> Adapter | None:
        """The adapters, ``None`` in a full fine-tune."""
        return self.scenario.recipe.adapter

    @property
    def shards_weights(self) -> bool:
        """Whether weights are divided over processes: ZeRO-3 or FSDP."""
        return self.recipe.sharding.gathers_weights

    @property
    def scales_fp16_loss(self) -> bool:
        """Whether PyTorch's own fp16 loss scaling runs (DeepSpeed and FSDP keep fp32 masters instead)."""
        return (
            self.numerics.precision == "fp16-mixed"
            and not self.recipe.uses_deepspeed
            and not self.recipe.uses_fsdp
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """One combination that is refused or warned about.

    ``sentence`` is what documentation prints and what every message begins with;
    ``detail`` adds the numbers of the case at hand.
    """

    id: str
    sentence: str
    applies: Callable[[Case], bool]
    detail: Callable[[Case], str] | None = None
    level: Level = "refuse"

    def message(self, case: Case) -> str:
        """The sentence, with what it means here."""
        return f"{self.sentence} ({self.detail(case)})" if self.detail else self.sentence


refuse = partial(Rule, level="refuse")
not_modelled = partial(Rule, level="not-modelled")
warn = partial(Rule, level="warn")
