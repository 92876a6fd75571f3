"""Everything a time term reads, resolved once per estimate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from planner.anatomy.adapters import (
    adapted_linear_count,
    adapted_widths,
    adapter_param_count,
    magnitude_count,
    saved_module_params,
)
from planner.anatomy.divided import on_one_gpu
from planner.anatomy.packing import stored_bytes
from planner.anatomy.parameters import ParamCounts, param_counts
from planner.anatomy.regime import Regime, regime_of
from planner.anatomy.trained import TrainedCounts, parts_of, passes_of_layers, trained_counts
from planner.anatomy.work import Work, WorkKey, rebuilt, work_key, work_of
from planner.domain.model import ModelSpec
from planner.domain.recipes.recipe import Number, Numerics, Recipe
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.ops.tensors import Unit
from planner.throughput.counted import unit_values
from planner.throughput.rates import Rates, rates_of
from planner.throughput.tokens import MicroStep, micro_step, slowest_rank


@dataclass(frozen=True, slots=True)
class Profile:
    """Sums over one model under one set of categorical settings; no number of the recipe is in it.

    ``adapter_widths``: LoRA parameters per unit of rank; ``magnitudes``: numbers that DoRA trains beside
    them.  ``saved_params``: parameters of ``modules_to_save``.  ``quantized_weight_bytes``: stored bytes of
    the quantised matrices.  ``passes``: forward passes through the blocks per micro-step: 2 with
    checkpointing, less where only some layers are recomputed.  ``own_trained``: trained parameters and
    tensors of the model.
    """

    work: Work
    params: ParamCounts
    adapter_widths: int
    magnitudes: int
    adapted_matrices: int
    saved_params: int
    quantized_weight_bytes: float
    passes: float
    own_trained: TrainedCounts


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """The categorical settings that a profile depends on."""

    skips_experts: bool
    work: WorkKey
    numerics: Numerics
    rebuilt_share: float


@dataclass(frozen=True, slots=True)
class TimedJob:
    """One scenario with its profile, rates and tokens: of the GPU that the others wait for,
    and of all on average.
    """

    scenario: Scenario
    coefficients: Coefficients
    regime: Regime
    profile: Profile
    rates: Rates
    micro: MicroStep
    mean_micro: MicroStep
    rank: Number

    @property
    def recipe(self) -> Recipe:
        """The recipe."""
        return self.scenario.recipe

    @property
    def work(self) -> Work:
        """Work counts of the model."""
        return self.profile.work

    @property
    def trained_params(self) -> Number:
        """Parameters that the optimizer updates: all of them, or adapters and modules to save."""
        if self.recipe.method == "full":
            return self._own_trained.params
        if self.recipe.adapter and self.recipe.adapter.oft_block_size:
            return adapter_param_count(self.scenario.model, self.recipe.adapter) + self.profile.saved_params
        magnitudes = self.profile.magnitudes if self.recipe.adapter and self.recipe.adapter.dora else 0
        return self.profile.adapter_widths * self.rank + self.profile.saved_params + magnitudes

    @property
    def trained_tensors(self) -> int:
        """Tensors that the optimizer updates (modules to save counted as one each)."""
        if self.recipe.method == "full":
            return self._own_trained.tensors
        saved = len(self.recipe.adapter.modules_to_save) if self.recipe.adapter else 0
        each = self.recipe.adapter.tensors_per_matrix if self.recipe.adapter else 2
        return each * self.profile.adapted_matrices + saved

    @property
    def _own_trained(self) -> TrainedCounts:
        """What a full fine-tune trains; of a model that sees, without its frozen parts."""
        model = self.scenario.model
        return (
            self.profile.own_trained
            if model.vision is None
            else trained_counts(model, parts_of(model, self.recipe))
        )

    @property
    def world(self) -> Number:
        """GPUs in the job."""
        hardware = self.scenario.hardware
        return hardware.gpus_per_node * hardware.nodes

    @property
    def passes(self) -> float:
        """Forward passes through the blocks per micro-step."""
        return self.profile.passes

    @property
    def values(self) -> dict[Unit, Number]:
        """How many of each unit a micro-step has."""
        return unit_values(self.scenario, self.micro)


def job_of(scenario: Scenario, coefficients: Coefficients, known: Regime | None = None) -> TimedJob | None:
    """The job of a scenario, whose regime may be ``known``, or ``None`` when the card's rates are unknown."""
    scenario = on_one_gpu(scenario)
    recipe, regime = scenario.recipe, known or regime_of(scenario)
    rates = rates_of(scenario, regime, coefficients)
    if rates is None:
        return None
    adapter = recipe.adapter
    partly = recipe.train_layers or "language_model" in recipe.frozen
    passes = passes_of_layers(scenario.model, recipe, scenario.stack) if partly and adapter is None else None
    key = ProfileKey(
        skips_experts=scenario.stack.skips_experts,
        work=work_key(recipe, passes),
        numerics=recipe.numerics,
        rebuilt_share=passes.rebuilt_share if passes else recipe.rebuilt_share(scenario.model.n_layers),
    )
    mean_micro = micro_step(recipe, coefficients, scenario.stack)
    return TimedJob(
        scenario=scenario,
        coefficients=coefficients,
        regime=regime,
        profile=profile_of(scenario.model, key),
        rates=rates,
        micro=slowest_rank(mean_micro, recipe, coefficients, scenario.hardware.world_size, scenario.stack),
        mean_micro=mean_micro,
        rank=adapter.rank if adapter else 0,
    )


@lru_cache(maxsize=256)
def profile_of(model: ModelSpec, key: ProfileKey) -> Profile:
    """Sums over ``model``; cached because walking the matrices takes longer than all formulas together."""
    targets = key.work.targets
    params = param_counts(model, key.skips_experts)
    passes = key.work.passes
    return Profile(
        work=work_of(model, key.work) if passes else rebuilt(work_of(model, key.work), key.rebuilt_share),
        params=params,
        adapter_widths=adapted_widths(model, targets) if targets is not None else 0,
        magnitudes=magnitude_count(model, targets or ()),
        adapted_matrices=adapted_linear_count(model, targets) if targets is not None else 0,
        saved_params=saved_module_params(model, key.work.modules_to_save),
        quantized_weight_bytes=stored_bytes(key.numerics, params.packed),
        passes=1 + key.rebuilt_share,
        own_trained=trained_counts(model, passes.parts)
        if passes
        else TrainedCounts(params.total, params.tensors),
    )
