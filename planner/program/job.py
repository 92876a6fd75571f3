"""What programs and formulas read: the scenario with its dtype regime and its counts, worked out once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from planner.anatomy.adapters import adapter_param_count, saved_module_params
from planner.anatomy.divided import on_one_gpu
from planner.anatomy.parameters import ParamCounts, as_built, param_counts
from planner.anatomy.regime import Regime, regime_of
from planner.anatomy.trained import parts_of, trained_counts
from planner.domain.hardware import Hardware
from planner.domain.model import BlockSpec, ModelSpec
from planner.domain.recipes.recipe import Number, Packing, Recipe
from planner.domain.scenario import Scenario
from planner.domain.stack import Stack
from planner.domain.uncertainty.coefficients import Coefficients


@dataclass(frozen=True, slots=True)
class Job:
    """A scenario ready for the formulas.

    ``trained`` is the number of trained parameters, ``adapter_params`` those in LoRA matrices,
    ``saved_params`` those in ``modules_to_save`` copies.  ``tokens`` are padded tokens of one micro-batch on
    one GPU.  ``weight_shards`` and ``optimizer_shards`` are over how many processes each is divided (1:
    replicated).  ``model``, ``recipe``, ``stack`` and ``hardware`` are the scenario's, the model as its stack
    builds it.
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
        sizes = (
            batch.micro_batch,
            batch.seq_len,
            batch.tokens_per_sample,
            batch.grad_accum,
            hardware.gpus_per_node,
        )
        return all(isinstance(each, int | float) for each in (*sizes, adapter.rank if adapter else 0))

    def at_length(self, tokens: int) -> Job:
        """The same job with batches of ``tokens`` padded tokens per sample."""
        recipe = self.recipe
        batch = replace(recipe.batch, seq_len=tokens)
        return job_of(replace(self.scenario, recipe=replace(recipe, batch=batch)), self.coefficients)

    @property
    def trained_weight_bytes(self) -> Number:
        """Bytes of all trained tensors in their own dtypes: adapters in theirs,
        ``modules_to_save`` in that of table and head.
        """
        if self.recipe.method == "full":
            return self.trained * self.regime.trained
        return self.adapter_params * self.regime.adapter + self.saved_params * self.regime.outside

    @property
    def single(self) -> bool:
        """Whether a micro-batch is one row: a sample, or a joined pair; in a grid: in all of it."""
        joined = self.recipe.batch.is_paired and self.stack.pair_logps == "joined"
        one: Any = self.recipe.batch.rows == (2 if joined else 1)
        return one if isinstance(one, bool) else bool(one.all())

    def needs_mask(self, block: BlockSpec) -> bool:
        """Whether SDPA gets a mask of an unpadded batch: the code always makes one, it comes with the batch,
        or the sequence reaches the block's window.

        ``is_causal`` cannot say a window.  In a grid: whether it does in any of its scenarios,
        as for padding.
        Source: transformers 5.23 masking_utils.py _ignore_causal_mask_sdpa
        (``kv_length < local_attention_size``), models/falcon/modeling_falcon.py FalconModel.forward
        (``allow_is_causal_skip=False``), models/gemma3/modeling_gemma3.py create_masks_for_vision_model.
        """
        window, vision = block.attention.window_tokens, self.model.vision
        if self.recipe.attention != "sdpa" or self.stack.sdpa_mask != "bool":
            return self.recipe.attention == "sdpa" and self.stack.sdpa_mask == "given"
        if vision is not None and vision.code == "gemma3" and self.recipe.batch.images is not None:
            return True  # the tokens of an image attend to each other both ways
        if window is None or block.attention.makes_mask:
            return block.attention.makes_mask
        reached: Any = self.recipe.batch.seq_len >= window
        return reached if isinstance(reached, bool) else bool(reached.any())


def _own_trained(scenario: Scenario, counts: ParamCounts) -> int:
    """Trained parameters of the model itself in a full fine-tune."""
    if not scenario.recipe.train_layers and scenario.model.vision is None:
        return counts.total
    return trained_counts(scenario.model, parts_of(scenario.model, scenario.recipe)).params


def job_of(scenario: Scenario, coefficients: Coefficients) -> Job:
    """Work out dtype regime, counts and shard counts of a scenario."""
    scenario = on_one_gpu(replace(scenario, model=as_built(scenario.model, scenario.stack)))
    recipe, model = scenario.recipe, scenario.model
    counts = param_counts(model, scenario.stack.skips_experts)
    adapter_params: Number = adapter_param_count(model, recipe.adapter) if recipe.adapter else 0
    saved = saved_module_params(model, recipe.adapter.modules_to_save) if recipe.adapter else 0
    sharding, shards = recipe.sharding, recipe.shards(scenario.hardware)
    return Job(
        scenario=scenario,
        coefficients=coefficients,
        regime=regime_of(scenario),
        counts=counts,
        trained=_own_trained(scenario, counts) if recipe.method == "full" else adapter_params + saved,
        adapter_params=adapter_params,
        saved_params=saved,
        tokens=recipe.batch.rows * recipe.batch.seq_len,
        weight_shards=shards if sharding.divides_weights and recipe.divides_base else 1,
        optimizer_shards=shards if sharding.divides_optimizer else 1,
    )


def generation_job(job: Job) -> Job:
    """The job of the passes that generate: with adapters they run without autocast,
    in the dtype of the weights.

    Accelerate lays autocast around the forward of the model with adapters;
    PEFT's ``generate`` calls that of the model inside.
    Source: accelerate 1.15 accelerator.py prepare_model, unwrap_model; peft 0.21 peft_model.py
    PeftModelForCausalLM.generate.
    """
    recipe = job.recipe
    if recipe.adapter is None or not recipe.numerics.mixed or recipe.uses_deepspeed:
        return job
    numerics = replace(recipe.numerics, precision=recipe.numerics.load_dtype)
    scenario = replace(job.scenario, recipe=replace(recipe, numerics=numerics))
    return replace(job, scenario=scenario, regime=regime_of(scenario))


def reward_job(job: Job) -> Job | None:
    """The job of the pass that scores what was generated; ``None`` where no model does.

    The model is loaded whole, and its weights are cast anew for each product: autocast caches nothing in
    inference mode.
    Source: trl 1.16.0 trainer/grpo_trainer.py GRPOTrainer.__init__ (``reward_funcs``), _calculate_rewards;
    accelerate 1.15 accelerator.py prepare_model (``evaluation_mode``).
    """
    recipe = job.recipe
    if recipe.rollout is None or recipe.rollout.reward is None:
        return None
    reward = recipe.rollout.reward
    numerics = replace(recipe.numerics, load_dtype=reward.load_dtype, quantization="none", packing=Packing())
    again = replace(recipe, method="full", adapter=None, numerics=numerics, task="reward", rollout=None)
    again = replace(again, gradient_checkpointing=False, loss="hf", train_layers=())
    made = job_of(replace(job.scenario, model=reward.model, recipe=again), job.coefficients)
    frozen = replace(made.scenario, recipe=replace(made.recipe, method="lora"))
    return replace(made, scenario=frozen)


def reference_job(job: Job) -> Job:
    """The job of the passes of the model as it was before: its adapters are switched off,
    or it is a second model.

    A second model is loaded as the first one is, and no stack widens it.  TRL leaves its weights trainable
    from 0.29 on, which autocast's cache looks at; those before, and LLaMA-Factory, freeze it.
    Source: trl 0.15.2 models/modeling_base.py create_reference_model, 1.16.0 trainer/dpo_trainer.py;
    hiyouga/LLaMA-Factory (commit ff6d4d12) train/trainer_utils.py create_ref_model, model/loader.py.
    """
    recipe, stack = job.recipe, job.stack
    again = replace(recipe, adapter=None, gradient_checkpointing=False)
    if not recipe.has_reference_model:
        return replace(job, scenario=replace(job.scenario, recipe=again))
    stack = replace(stack, trainable_fp32=False)
    scenario = replace(job.scenario, recipe=again, stack=stack)
    regime = regime_of(scenario)
    if stack.pair_logps not in ("tiles", "shifted_rows"):
        scenario = replace(scenario, recipe=replace(again, method="lora"))
    return replace(job, scenario=scenario, regime=regime)
