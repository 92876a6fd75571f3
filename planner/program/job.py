"""What every memory formula reads: the scenario with its dtype regime and its counts, worked out once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
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
    ``model``, ``recipe``, ``stack`` and ``hardware`` are the scenario's.
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
    # Read hundreds of times for one estimate, so they are fields and no look-ups.
    model: ModelSpec = field(init=False)
    recipe: Recipe = field(init=False)
    stack: Stack = field(init=False)
    hardware: Hardware = field(init=False)

    def __post_init__(self) -> None:
        for name in ("model", "recipe", "stack", "hardware"):
            object.__setattr__(self, name, getattr(self.scenario, name))

    @property
    def is_one(self) -> bool:
        """Whether this is one job, not a grid of them; its coefficients may be arrays all the same."""
        batch, adapter, hardware = self.recipe.batch, self.recipe.adapter, self.hardware
        sizes = (batch.micro_batch, batch.seq_len, batch.tokens_per_sample, batch.grad_accum, hardware.gpus_per_node)
        return all(isinstance(each, int | float) for each in (*sizes, adapter.rank if adapter else 0))

    def at_length(self, tokens: int) -> Job:
        """The same job with batches of ``tokens`` padded tokens per sample."""
        recipe = self.recipe
        batch = replace(recipe.batch, seq_len=tokens)
        return job_of(replace(self.scenario, recipe=replace(recipe, batch=batch)), self.coefficients)

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
        if self.recipe.sharding.is_zero3:
            return self.trained
        if self.recipe.method == "full":
            return self.counts.total if self.regime.trained < 4 else 0
        adapters: Number = self.adapter_params if self.regime.adapter < 4 else 0
        return adapters + (self.saved_params if self.regime.outside < 4 else 0)

    @property
    def input_needs_gradient(self) -> bool:
        """Whether the first layer's input needs a gradient: the token table is trained, or checkpointing asks for one.

        Source: peft 0.21 and transformers 5.23 trainer.py call ``enable_input_require_grads`` with gradient checkpointing only.
        """
        adapter = self.recipe.adapter
        return adapter is None or bool(adapter.modules_to_save) or self.recipe.gradient_checkpointing

    def view(self, block: BlockSpec, *, is_first: bool = False) -> BlockView:
        """One of the model's blocks under this job."""
        masked = self.recipe.batch.is_padded or self.needs_mask(block)
        one: Any = self.recipe.batch.micro_batch == 1
        single = one if isinstance(one, bool) else bool(one.all())
        return BlockView(block, self.model.hidden_size, self.regime, self.recipe, self.stack, masked, is_first, single)

    def needs_mask(self, block: BlockSpec) -> bool:
        """Whether SDPA gets a mask of an unpadded batch: the code always makes one, or the sequence reaches the block's window.

        ``is_causal`` cannot say a window.  In a grid: whether it does in any of its scenarios, as for padding.
        Source: transformers 5.23 masking_utils.py _ignore_causal_mask_sdpa (``kv_length < local_attention_size``),
        models/falcon/modeling_falcon.py FalconModel.forward (``allow_is_causal_skip=False``).
        """
        window = block.attention.window_tokens
        if self.recipe.attention != "sdpa" or self.stack.sdpa_mask != "bool":
            return False
        if window is None or block.attention.makes_mask:
            return block.attention.makes_mask
        reached: Any = self.recipe.batch.seq_len >= window
        return reached if isinstance(reached, bool) else bool(reached.any())


def job_of(scenario: Scenario, coefficients: Coefficients) -> Job:
    """Work out dtype regime, counts and shard counts of a scenario."""
    recipe, model = scenario.recipe, scenario.model
    counts = param_counts(model, scenario.stack.skips_experts)
    adapter_params: Number = adapter_param_count(model, recipe.adapter) if recipe.adapter else 0
    saved = saved_module_params(model, recipe.adapter.modules_to_save) if recipe.adapter else 0
    sharding, shards = recipe.sharding, recipe.sharding.shards(scenario.hardware)
    return Job(
        scenario=scenario,
        coefficients=coefficients,
        regime=regime_of(scenario),
        counts=counts,
        trained=counts.total if recipe.method == "full" else adapter_params + saved,
        adapter_params=adapter_params,
        saved_params=saved,
        tokens=recipe.batch.micro_batch * recipe.batch.seq_len,
        weight_shards=shards if sharding.divides_weights and recipe.divides_base else 1,
        gradient_shards=shards if sharding.divides_gradients else 1,
        optimizer_shards=shards if sharding.divides_optimizer else 1,
    )
