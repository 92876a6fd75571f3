"""A scenario with one setting changed, and what has to change with it: the same adaptations that the intake makes."""

from __future__ import annotations

from dataclasses import replace

from planner.domain.recipe import METHOD_ALIASES, Adapter, Number, Offload, Precision, Recipe, Sharding
from planner.domain.scenario import Scenario
from planner.errors import RefusedCombinationError
from planner.intake.kernels import GPU_ONLY_OPTIMIZERS
from planner.intake.rules import RULES, Case

_MIXED: dict[Precision, Precision] = {"bf16": "bf16-mixed", "fp16": "fp16-mixed"}


def with_recipe(scenario: Scenario, recipe: Recipe) -> Scenario:
    """The scenario with another recipe."""
    return replace(scenario, recipe=recipe)


def with_batch(scenario: Scenario, micro_batch: Number, grad_accum: Number) -> Scenario:
    """The scenario with other sizes of a micro-step and of a step."""
    batch = replace(scenario.recipe.batch, micro_batch=micro_batch, grad_accum=grad_accum)
    return with_recipe(scenario, replace(scenario.recipe, batch=batch))


def with_length(scenario: Scenario, seq_len: Number, tokens_per_sample: Number) -> Scenario:
    """The scenario with another length in tokens and another mean of real tokens per sample."""
    batch = replace(scenario.recipe.batch, seq_len=seq_len, tokens_per_sample=tokens_per_sample)
    return with_recipe(scenario, replace(scenario.recipe, batch=batch))


def with_rank(scenario: Scenario, rank: Number) -> Scenario:
    """The scenario with another LoRA rank; it must have adapters."""
    adapter = scenario.recipe.adapter
    if adapter is None:
        raise RefusedCombinationError("a full fine-tune has no LoRA rank to vary: leave the rank out, or use method lora")
    return with_recipe(scenario, replace(scenario.recipe, adapter=replace(adapter, rank=rank)))


def with_sharding(scenario: Scenario, sharding: Sharding, offload: Offload) -> Scenario:
    """The scenario under another sharding and offload.

    As in the intake, DeepSpeed turns pure 16-bit precision into mixed, and an optimizer that only steps on the GPU gives way to
    Adam when it is offloaded.
    """
    recipe = replace(scenario.recipe, sharding=sharding, offload=offload)
    if recipe.uses_deepspeed:
        precision = _MIXED.get(recipe.numerics.precision, recipe.numerics.precision)
        recipe = replace(recipe, numerics=replace(recipe.numerics, precision=precision))
    if recipe.offloads_optimizer and recipe.optimizer in GPU_ONLY_OPTIMIZERS:
        recipe = replace(recipe, optimizer="adamw_torch")
    return with_recipe(scenario, recipe)


def with_method(scenario: Scenario, alias: str) -> Scenario:
    """The scenario trained with ``lora`` or ``qlora``; adapters that it lacks are those that its stack makes by default.

    fp16 loss scaling refuses 16-bit trained weights, so adapters are then fp32, and the base, now frozen, can be 16-bit.
    """
    method, quantization, double_quant = METHOD_ALIASES[alias]
    recipe, numerics = scenario.recipe, scenario.recipe.numerics
    scales_loss = numerics.precision == "fp16-mixed" and not recipe.uses_deepspeed and not recipe.uses_fsdp
    adapter = recipe.adapter or _default_adapter(scenario, scales_loss=scales_loss)
    if recipe.method == "full" and scales_loss and numerics.load_dtype == "fp32":
        numerics = replace(numerics, load_dtype="fp16")
    numerics = replace(numerics, quantization=quantization or "none", double_quant=bool(double_quant))
    return with_recipe(scenario, replace(recipe, method=method, numerics=numerics, adapter=adapter))


def _default_adapter(scenario: Scenario, *, scales_loss: bool) -> Adapter:
    defaults = scenario.stack.defaults
    dtype = "fp32" if scales_loss else defaults.adapter_dtype
    return Adapter(defaults.lora_rank, defaults.lora_targets, defaults.lora_dropout, (), dtype)


def refusals(scenario: Scenario) -> dict[str, str]:
    """Message of every rule that refuses the scenario, by the rule's id."""
    case = Case(scenario, frozenset())
    return {rule.id: rule.message(case) for rule in RULES if rule.level == "refuse" and rule.applies(case)}


def warnings_about(scenario: Scenario) -> frozenset[str]:
    """Ids of the rules that warn about the scenario."""
    case = Case(scenario, frozenset())
    return frozenset(rule.id for rule in RULES if rule.level == "warn" and rule.applies(case))
