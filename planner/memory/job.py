"""What every memory formula reads: the scenario with its dtype regime and its counts, worked out once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.anatomy.adapters import adapter_param_count, saved_module_params
from planner.anatomy.ledger import BlockView
from planner.anatomy.parameters import ParamCounts, param_counts
from planner.anatomy.regime import Regime, regime_of
from planner.domain.coefficients import Coefficients
from planner.domain.hardware import Hardware
from planner.domain.model import BlockSpec, ModelSpec
from planner.domain.recipe import Number, Recipe
from planner.domain.scenario import Scenario
from planner.domain.stack import Stack


@dataclass(frozen=True, slots=True)
class Job:
    """A scenario ready for the formulas.

    ``trained`` is the number of trained parameters, ``adapter_params`` those in LoRA matrices, ``saved_params`` those in
    ``modules_to_save`` copies.  ``tokens`` are padded tokens of one micro-batch on one GPU.  ``weight_shards``,
    ``gradient_shards`` and ``optimizer_shards`` are over how many processes each is divided (1: replicated).
    """

    scenario: Scenario
    coefficients: Coefficients
    regime: Regime
    counts: ParamCounts
    trained: Number
    adapter_params: Number
    saved_params: int
    tokens: Number
    weight_shards: Number
    gradient_shards: Number
    optimizer_shards: Number

    @property
    def trained_weight_bytes(self) -> Number:
        """Bytes of all trained tensors in their own dtypes: adapters in theirs, ``modules_to_save`` in that of table and head."""
        if self.recipe.method == "full":
            return self.counts.total * self.regime.trained
        return self.adapter_params * self.regime.adapter + self.saved_params * self.regime.outside

    @property
    def master_params(self) -> Number:
        """Trained parameters that have a separate fp32 master: 16-bit ones under DeepSpeed, all of them under ZeRO-3.

        Source: DeepSpeed 0.19 zero/stage3.py _create_fp32_partitions clones every partition, fp32 ones too.
        """
        if self.regime.engine != "deepspeed":
            return 0
        if self.recipe.sharding == "zero3":
            return self.trained
        if self.recipe.method == "full":
            return self.counts.total if self.regime.trained < 4 else 0
        adapters: Number = self.adapter_params if self.regime.adapter < 4 else 0
        return adapters + (self.saved_params if self.regime.outside < 4 else 0)

    @property
    def model(self) -> ModelSpec:
        """The model."""
        return self.scenario.model

    @property
    def recipe(self) -> Recipe:
        """The recipe."""
        return self.scenario.recipe

    @property
    def stack(self) -> Stack:
        """The software stack."""
        return self.scenario.stack

    @property
    def hardware(self) -> Hardware:
        """The hardware."""
        return self.scenario.hardware

    def view(self, block: BlockSpec) -> BlockView:
        """One of the model's blocks under this job."""
        masked = self.recipe.batch.is_padded or self.window_needs_mask(block)
        return BlockView(block, self.model.hidden_size, self.regime, self.recipe, self.stack, masked)

    def window_needs_mask(self, block: BlockSpec) -> bool:
        """Whether SDPA gets a mask because the sequence reaches the window of the block: ``is_causal`` cannot say that.

        In a grid: whether it does in any of its scenarios, as for padding.
        Source: transformers 5.23 masking_utils.py _ignore_causal_mask_sdpa (``kv_length < local_attention_size``).
        """
        window = block.attention.window_tokens
        if window is None or self.recipe.attention != "sdpa" or self.stack.sdpa_mask != "bool":
            return False
        reached: Any = self.recipe.batch.seq_len >= window
        return reached if isinstance(reached, bool) else bool(reached.any())


def job_of(scenario: Scenario, coefficients: Coefficients) -> Job:
    """Work out dtype regime, counts and shard counts of a scenario."""
    recipe, model = scenario.recipe, scenario.model
    counts = param_counts(model, scenario.stack.fused_experts)
    adapter_params: Number = adapter_param_count(model, recipe.adapter) if recipe.adapter else 0
    saved = saved_module_params(model, recipe.adapter.modules_to_save) if recipe.adapter else 0
    world = scenario.hardware.world_size
    return Job(
        scenario=scenario,
        coefficients=coefficients,
        regime=regime_of(scenario),
        counts=counts,
        trained=counts.total if recipe.method == "full" else adapter_params + saved,
        adapter_params=adapter_params,
        saved_params=saved,
        tokens=recipe.batch.micro_batch * recipe.batch.seq_len,
        weight_shards=_weight_shards(recipe, scenario.hardware, world),
        gradient_shards=world
        if recipe.sharding in ("zero2", "zero3", "fsdp", "fsdp1", "fsdp-grad-op")
        else _hybrid(recipe, scenario),
        optimizer_shards=world if recipe.sharding in _OPTIMIZER_SHARDED else _hybrid(recipe, scenario),
    )


_OPTIMIZER_SHARDED = ("zero1", "zero2", "zero3", "fsdp", "fsdp1", "fsdp-grad-op")


def _hybrid(recipe: Recipe, scenario: Scenario) -> Number:
    """HSDP shards inside a node and replicates across nodes; everything else not listed is replicated."""
    return scenario.hardware.gpus_per_node if recipe.sharding == "hsdp" else 1


def _weight_shards(recipe: Recipe, hardware: Hardware, world: Number) -> Number:
    """Over how many processes the base matrices are divided; k-bit ones that cannot be divided are replicated."""
    if not recipe.divides_base:
        return 1
    if recipe.sharding == "hsdp":
        return hardware.gpus_per_node
    return world if recipe.sharding in ("zero3", "fsdp", "fsdp1") else 1
