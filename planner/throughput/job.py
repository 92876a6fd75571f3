"""Everything a time term reads, resolved once per estimate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from planner.anatomy.adapters import (
    AdaptedSums,
    RotationSums,
    adapted_linear_count,
    adapted_sums,
    adapted_widths,
    adapter_param_count,
    rotation_sums,
    saved_module_params,
)
from planner.anatomy.divided import on_one_gpu
from planner.anatomy.packing import stored_bytes
from planner.anatomy.parameters import ParamCounts, param_counts
from planner.anatomy.regime import Regime, regime_of
from planner.anatomy.trained import TrainedCounts, parts_of, passes_of_layers, trained_counts
from planner.anatomy.work import Macs, Work, WorkKey, rebuilt, work_key, work_of
from planner.domain.coefficients import Coefficients
from planner.domain.model import ModelSpec
from planner.domain.recipe import Attention, Number, Numerics, Recipe
from planner.domain.scenario import Scenario
from planner.domain.stack import Stack
from planner.throughput.operators import Operators, OperatorView, operators_of
from planner.throughput.rates import Rates, rates_of
from planner.throughput.tokens import MicroStep, micro_step, slowest_rank
from planner.throughput.traffic import ModelTraffic, TrafficView, logits_bytes, model_traffic, normhead_bytes


@dataclass(frozen=True, slots=True)
class Profile:
    """Sums over one model under one set of categorical settings; no number of the recipe is in it.

    ``adapter_widths``: LoRA parameters per unit of rank; ``adapted``: sums over adapted matrices;
    ``rotations``: over OFT's.  ``saved_params``: parameters of ``modules_to_save``.
    ``quantized_weight_bytes``: stored bytes of the quantised matrices.  ``int8``: MACs per token of int8
    matrices; of their input gradients only those that run in fp32.  ``passes``: forward passes through the
    blocks per micro-step: 2 with checkpointing, less where only some layers are recomputed.
    ``backward_share``: of the layers, those that backward runs through; ``trained_share``: those whose
    weights are trained.  ``own_trained``: trained parameters and tensors of the model.
    """

    work: Work
    traffic: ModelTraffic
    operators: Operators
    params: ParamCounts
    adapter_widths: int
    adapted: AdaptedSums
    rotations: RotationSums
    adapted_matrices: int
    saved_params: int
    logits_bytes: float
    normhead_bytes: float
    quantized_weight_bytes: float
    int8: Macs
    passes: float
    backward_share: float
    trained_share: float
    trains_head: bool
    own_trained: TrainedCounts


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """The categorical settings that a profile depends on."""

    stack: Stack
    regime: Regime
    work: WorkKey
    attention: Attention
    numerics: Numerics
    loss: str
    dropout: bool
    oft_block_size: int
    rebuilt_share: float


@dataclass(frozen=True, slots=True)
class Job:
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
        magnitudes = self.profile.adapted.outputs if self.recipe.adapter and self.recipe.adapter.dora else 0
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
    def backward_share(self) -> float:
        """Share of the layers that backward runs through."""
        return self.profile.backward_share

    @property
    def attention_passes(self) -> float:
        """Forward passes of attention's kernel, whose output a selective checkpoint keeps."""
        return 1.0 if self.recipe.checkpoint_policy == "selective-op" else self.passes


def job_of(scenario: Scenario, coefficients: Coefficients, known: Regime | None = None) -> Job | None:
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
        stack=scenario.stack,
        regime=regime,
        work=work_key(recipe, passes),
        attention=recipe.attention,
        numerics=recipe.numerics,
        loss=recipe.loss,
        dropout=bool(adapter and adapter.dropout > 0),
        oft_block_size=adapter.oft_block_size if adapter else 0,
        rebuilt_share=passes.rebuilt_share if passes else recipe.rebuilt_share(scenario.model.n_layers),
    )
    mean_micro = micro_step(recipe, coefficients, scenario.stack)
    return Job(
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
    view = TrafficView(key.regime, key.stack, targets, key.dropout, key.oft_block_size > 0)
    params = param_counts(model, key.stack.skips_experts)
    saved = saved_module_params(model, key.work.modules_to_save)
    passes = key.work.passes
    saves_head = any(name.rpartition(".")[2] == model.head.name for name in key.work.modules_to_save)
    head_trained = saves_head or (targets is None and (passes is None or "head" in passes.ends))
    backward = passes.backward_share if passes else 1.0
    return Profile(
        work=work_of(model, key.work) if passes else rebuilt(work_of(model, key.work), key.rebuilt_share),
        traffic=model_traffic(model, view),
        operators=operators_of(
            model, OperatorView(view, key.attention, key.numerics.quantization, key.rebuilt_share, backward)
        ),
        params=params,
        adapter_widths=adapted_widths(model, targets) if targets is not None else 0,
        adapted=adapted_sums(model, targets or ()),
        rotations=rotation_sums(model, targets or (), key.oft_block_size)
        if key.oft_block_size
        else RotationSums(0, 0),
        adapted_matrices=adapted_linear_count(model, targets) if targets is not None else 0,
        saved_params=saved,
        logits_bytes=logits_bytes(key.stack, key.loss, key.regime),
        normhead_bytes=normhead_bytes(model, trained=head_trained, width=key.regime.outside),
        quantized_weight_bytes=stored_bytes(key.numerics, params.packed),
        int8=_int8_macs(model, view) if key.numerics.quantization == "int8" else Macs(),
        passes=1 + key.rebuilt_share,
        backward_share=backward,
        trained_share=passes.trained_share if passes else float(targets is None),
        trains_head=head_trained,
        own_trained=trained_counts(model, passes.parts)
        if passes
        else TrainedCounts(params.total, params.tensors),
    )


def _int8_macs(model: ModelSpec, view: TrafficView) -> Macs:
    """MACs per token of int8 matrices; input gradients are counted where the matrix reads fp32."""
    total = Macs()
    for group in model.groups:
        for linear in group.block.linears:
            if view.quantized(linear):
                macs = group.count * linear.in_features * linear.out_features * linear.active_copies
                total = total + Macs(
                    forward=macs, input_gradient=macs if view.input_bytes(linear) == 4 else 0
                )
    return total
