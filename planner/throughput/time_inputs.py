"""Everything a time term reads, resolved once per estimate."""

from __future__ import annotations

from dataclasses import dataclass

from planner.anatomy.adapted_matrices import adapted_linear_count
from planner.anatomy.regime import Regime
from planner.anatomy.trained_parts import recomputed_share
from planner.domain.recipes.recipe import Number, Recipe
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.program import job as program
from planner.program.ops.tensors import Unit
from planner.throughput.counted import by_structure, unit_values
from planner.throughput.rates import Rates, rates_of
from planner.throughput.tokens import MicroStep, micro_step, slowest_rank


@dataclass(frozen=True, slots=True)
class TimedJob:
    """A job of the step program with rates and tokens: of the GPU that the others wait for,
    and of all on average.
    """

    own: program.Job
    scenario: Scenario
    coefficients: Coefficients
    rates: Rates
    micro: MicroStep
    mean_micro: MicroStep

    @property
    def recipe(self) -> Recipe:
        """The recipe."""
        return self.scenario.recipe

    @property
    def regime(self) -> Regime:
        """The dtypes."""
        return self.own.regime

    @property
    def trained_tensors(self) -> int:
        """Tensors that the optimizer updates."""
        return sum(kind.count for kind in self.own.trained_parameters)

    @property
    def called_modules(self) -> Number:
        """Modules that one forward pass calls, each of which an engine may have hooks on."""
        return by_structure(self.scenario, self.micro, "training", lambda each: {"modules": each.modules})[
            "modules"
        ]

    @property
    def adapted_matrices(self) -> int:
        """Matrices that have an adapter."""
        adapter = self.recipe.adapter
        return adapted_linear_count(self.scenario.model, adapter.targets) if adapter else 0

    @property
    def world(self) -> Number:
        """GPUs in the job."""
        return self.scenario.hardware.world_size

    @property
    def passes(self) -> float:
        """Forward passes through the blocks per micro-step: 2 with checkpointing, less where only some
        layers are recomputed.
        """
        return 1 + recomputed_share(self.scenario.model, self.recipe, self.scenario.stack)

    @property
    def values(self) -> dict[Unit, Number]:
        """How many of each unit a micro-step has."""
        return unit_values(self.scenario, self.micro)


def job_of(
    scenario: Scenario, coefficients: Coefficients, known: program.Job | None = None
) -> TimedJob | None:
    """The job of a scenario, which the step program may have ``known``; ``None`` when the card's rates are
    unknown.
    """
    own = known or program.job_of(scenario, coefficients)
    scenario, recipe = own.scenario, own.recipe
    rates = rates_of(scenario, own.regime, coefficients)
    if rates is None:
        return None
    mean_micro = micro_step(recipe, coefficients, scenario.stack)
    return TimedJob(
        own=own,
        scenario=scenario,
        coefficients=coefficients,
        rates=rates,
        micro=slowest_rank(mean_micro, recipe, coefficients, scenario.hardware.world_size, scenario.stack),
        mean_micro=mean_micro,
    )
