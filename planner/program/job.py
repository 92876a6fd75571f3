"""What programs and formulas read: the scenario with its dtype regime and its counts, worked out once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from planner.anatomy.divided import on_one_gpu
from planner.anatomy.packing import Matrices
from planner.anatomy.quantized_matrices import as_built
from planner.anatomy.regime import Regime, regime_of
from planner.domain.hardware import Hardware
from planner.domain.model import BlockSpec, ModelSpec
from planner.domain.recipes.recipe import Number, Packing, Recipe
from planner.domain.scenario import Scenario
from planner.domain.stack import Stack
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import NotModelledError
from planner.intake.tasks import takes_rows
from planner.program.ops.tensors import Unit
from planner.program.parameters import Parameters, parameters_of

_SEES_BOTH_WAYS = ("gemma3", "paligemma")
"""Whose tokens of an image attend to each other both ways; PaliGemma's, and those of its prompt."""


@dataclass(frozen=True)
class Job:
    """A scenario ready for the formulas.

    ``model``, ``recipe``, ``stack`` and ``hardware`` are the scenario's, the model as its stack builds it.
    ``process``: the one that is followed where processes differ (ZeRO-1 and 2), 0 or the last one, -1.
    """

    scenario: Scenario
    coefficients: Coefficients
    regime: Regime
    process: int = -1
    # Read hundreds of times for one estimate, so they are fields and no look-ups.
    model: ModelSpec = field(init=False)
    recipe: Recipe = field(init=False)
    stack: Stack = field(init=False)
    hardware: Hardware = field(init=False)

    def __post_init__(self) -> None:
        for name in ("model", "recipe", "stack", "hardware"):
            object.__setattr__(self, name, getattr(self.scenario, name))

    @cached_property
    def parameters(self) -> tuple[Parameters, ...]:
        """Every parameter of the model and of its adapters, equal ones counted together."""
        return parameters_of(self)

    def elements(self, each: Parameters) -> Number:
        """Elements of one parameter."""
        rank = self.recipe.adapter.rank if self.recipe.adapter else 0
        return each.weight.count * (rank if each.weight.unit is Unit.RANK else 1)

    @cached_property
    def base_params(self) -> int:
        """Parameters of the model itself."""
        return round(
            sum(each.count * each.weight.count for each in self.parameters if not each.weight.adapter)
        )

    @property
    def adapter_params(self) -> Number:
        """Parameters of adapters and of trained copies, also of those that get no gradient."""
        return sum(each.count * self.elements(each) for each in self.parameters if each.weight.adapter)

    @cached_property
    def trained(self) -> Number:
        """Parameters that are trained."""
        return sum(each.count * self.elements(each) for each in self.trained_parameters)

    @property
    def trained_parameters(self) -> tuple[Parameters, ...]:
        """Parameters of which there are states: under DeepSpeed also those that get no gradient, because it
        makes masters of whatever is to be trained.
        """
        engine = self.recipe.uses_deepspeed
        return tuple(
            each for each in self.parameters if each.weight.trained or (engine and each.weight.unread)
        )

    @property
    def trained_weight_bytes(self) -> Number:
        """Bytes of all trained parameters in their own dtypes."""
        return sum(each.count * self.elements(each) * each.element_bytes for each in self.trained_parameters)

    @cached_property
    def packed(self) -> Matrices:
        """What quantisers replace, counted together."""
        found = (each.weight.matrices.times(each.count) for each in self.parameters if each.weight.packed)
        return sum(found, Matrices(0, 0, 0, 0))

    @property
    def tokens(self) -> Number:
        """Padded tokens of one micro-batch on one GPU."""
        return self.recipe.batch.rows * self.recipe.batch.seq_len

    @property
    def weight_shards(self) -> Number:
        """Over how many processes weights are divided; 1: replicated."""
        divides = self.recipe.sharding.divides_weights and self.recipe.divides_base
        return self.recipe.shards(self.hardware) if divides else 1

    @property
    def optimizer_shards(self) -> Number:
        """The same of optimizer states."""
        return self.recipe.shards(self.hardware) if self.recipe.sharding.divides_optimizer else 1

    @cached_property
    def expert_share(self) -> float:
        """Share of this GPU's parameters, whole, that are experts; 0 where as many GPUs divide them as other
        matrices.
        """
        if self.model.expert_parts == self.recipe.parallel.tensor:
            return 0.0
        found = (
            count * linear.weight_count for linear, count in self.model.linears() if linear.group == "expert"
        )
        return sum(found) / self.base_params

    @property
    def updated(self) -> Number:
        """Trained parameters that one GPU updates; what is left of experts other numbers of GPUs share."""
        experts = self.expert_share * (self.model.expert_parts / self.recipe.parallel.tensor - 1)
        return self.trained * (1 + experts) / self.optimizer_shards

    @property
    def is_one(self) -> bool:
        """Whether this is one job, not a grid of them; its coefficients may be arrays all the same."""
        batch = self.recipe.batch
        sizes = batch.micro_batch, batch.seq_len, batch.tokens_per_sample, batch.grad_accum
        return all(isinstance(each, int | float) for each in sizes)

    def at_length(self, tokens: int) -> Job:
        """The same job with batches of ``tokens`` padded tokens per sample."""
        recipe = self.recipe
        batch = replace(recipe.batch, seq_len=tokens)
        return job_of(replace(self.scenario, recipe=replace(recipe, batch=batch)), self.coefficients)

    @property
    def single(self) -> bool:
        """Whether a micro-batch is one row: a sample, or a joined pair; in a grid: in all of it."""
        if self.stack.joins_rows(self.recipe):
            return True
        joined = self.recipe.batch.is_paired and self.stack.pair_logps == "joined"
        return self._has_rows(2 if joined else 1)

    @property
    def single_chosen(self) -> bool:
        """Whether the chosen sequences of a micro-batch are one row; in a grid: in all of it."""
        return self.recipe.batch.is_paired and self._has_rows(2)

    @property
    def rows_apart(self) -> int:
        """Rows of a micro-batch whose log-probabilities are taken one after the other; 1 where the batch is
        no matter.
        """
        recipe, stack = self.recipe, self.stack
        if not takes_rows(recipe, stack) or stack.joins_rows(recipe):
            return 1
        return int(recipe.batch.rows)

    @property
    def evaluates(self) -> bool:
        """Whether an evaluation is asked for; without one memory counts a pass like those of training."""
        return self.scenario.run.eval_micro_batch is not None

    def _has_rows(self, wanted: int) -> bool:
        equal: Any = self.recipe.batch.rows == wanted
        return equal if isinstance(equal, bool) else bool(equal.all())

    def needs_mask(self, block: BlockSpec) -> bool:
        """Whether SDPA gets a mask of an unpadded batch: the code always makes one, it comes with the batch,
        or the sequence reaches the block's window.

        ``is_causal`` cannot say a window.  In a grid: whether it does in any of its scenarios,
        as for padding.
        Source: transformers 5.23 masking_utils.py _ignore_causal_mask_sdpa
        (``kv_length < local_attention_size``), models/falcon/modeling_falcon.py FalconModel.forward
        (``allow_is_causal_skip=False``), models/gemma3/modeling_gemma3.py create_masks_for_vision_model,
        models/paligemma/modeling_paligemma.py PaliGemmaModel.forward (``block_sequence_ids``).
        """
        window, vision = block.attention.window_tokens, self.model.vision
        if self.recipe.attention != "sdpa" or self.stack.sdpa_mask != "bool":
            return self.recipe.attention == "sdpa" and self.stack.sdpa_mask == "given"
        if vision is not None and vision.code in _SEES_BOTH_WAYS and self.recipe.batch.images is not None:
            return True
        if window is None or block.attention.makes_mask:
            return block.attention.makes_mask
        reached: Any = self.recipe.batch.seq_len >= window
        return reached if isinstance(reached, bool) else bool(reached.any())


def job_of(scenario: Scenario, coefficients: Coefficients) -> Job:
    """The part of a scenario that one GPU has, with its dtypes.

    Raises:
        NotModelledError: a whole pipeline, whose groups have parts of their own
            (:func:`planner.anatomy.pipeline_stages.stages_of`).
    """
    if scenario.recipe.parallel.pipeline > 1:
        flag = "--device-map auto" if scenario.recipe.parallel.in_turn else "--pipeline-parallel"
        raise NotModelledError(
            f"solving, fits and traces do not divide layers over GPUs ({flag}); plan and check do"
        )
    scenario = on_one_gpu(replace(scenario, model=as_built(scenario.model, scenario.stack)))
    return Job(scenario, coefficients, regime_of(scenario))


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

    The model is loaded whole, or divided under ZeRO-3, and its weights are cast anew for each product:
    autocast caches nothing in inference mode.
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


def feature_job(job: Job) -> Job:
    """The job of the pass whose layers' outputs score completions: the model inside of PEFT's wrapper, so
    without autocast, its adapters switched off.

    Source: axolotl 0.19.0 core/trainers/ebft/trainer.py _feature_matching_reward, rewards.py
    extract_hidden_states; peft 0.20.0 peft_model.py disable_adapter.
    """
    return reference_job(generation_job(job))


def teacher_job(job: Job) -> Job | None:
    """The job of a teacher's pass; ``None`` without one.  Nobody freezes its weights.

    Source: trl 1.16.0 experimental/gkd/gkd_trainer.py GKDTrainer.__init__.
    """
    recipe, teacher = job.recipe, job.recipe.teacher
    if teacher is None:
        return None
    again = replace(recipe, method="full", adapter=None, task="sft", teacher=None)
    again = replace(again, gradient_checkpointing=False, train_layers=())
    return job_of(replace(job.scenario, model=teacher.model, recipe=again), job.coefficients)


def second_job(job: Job) -> Job | None:
    """The job of a second model that each micro-step asks: a teacher, or the model as it was before."""
    reference = reference_job(job) if job.recipe.has_reference_model else None
    return teacher_job(job) or reference


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
    if stack.pair_logps not in ("tiles", "shifted_rows", "fused_rows"):
        scenario = replace(scenario, recipe=replace(again, method="lora"))
    return replace(job, scenario=scenario, regime=regime)
