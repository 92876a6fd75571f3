"""GPUs that divide the experts of a mixture: which stack does, and which of its combinations were read.

Source: transformers 5.23 distributed/configuration_utils.py DistributedConfig (``ep_size``),
distributed/fsdp.py; torchtitan e347b1e5e distributed/parallel_dims.py, models/llama4/infra/parallelize.py,
models/{qwen3,deepseek_v3}/infra/parallelize.py; torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param.py
(parts along another dimension than the first are equal).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.domain.hardware import Hardware
from planner.domain.recipes.parallel import Parallel
from planner.domain.recipes.sharding import FSDP
from planner.domain.scenario import Scenario
from planner.errors import UsageError
from planner.intake.given.ledger import Ledger

MIXTURES = frozenset({"deepseek_v2", "deepseek_v3", "qwen3_moe"})
"""Architectures that torchtitan has with the mixture that was read."""
_PLANNED = frozenset({"gpt_oss", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe"})
"""Architectures of Transformers, whose plan sends rows to experts (``ep_dispatch_experts``)."""
_SPREAD = "tokens are taken to be spread evenly over the experts; a GPU whose experts get more needs more"


def resolve_experts(ledger: Ledger, hardware: Hardware, parallel: Parallel) -> Parallel:
    """Over how many GPUs experts are divided; entered where that is given.

    Raises:
        UsageError: not a part of the GPUs that divide one copy of the weights.
    """
    experts = int(ledger.request.get("expert_parallel") or 1)
    if experts == 1:
        return parallel
    ledger.choose("expert_parallel", experts, "assumed")
    ledger.remark("expert_parallel", _SPREAD)
    gpus = hardware.world_size // (parallel.replicas or 1)
    if gpus % experts:
        raise UsageError(
            f"expert_parallel {experts} needs groups of {experts} GPUs, and the job has {gpus}: "
            f"--gpu X:{experts}"
        )
    return replace(parallel, experts=experts)


def of_experts(scenario: Scenario) -> Iterator[str]:
    """Why a way to divide experts is not modelled."""
    recipe, stack, model = scenario.recipe, scenario.stack, scenario.model
    parallel = recipe.parallel
    if not model.is_moe:
        yield f"for '{model.id}', which has no experts: leave it out"
    by_trainer = _by_transformers(scenario)
    if not by_trainer and stack.mixture_code != "torchtitan-2025":
        yield f"on stack '{stack.id}'; it is on hf-trainer@5 (--sharding fsdp) and torchtitan@2025"
    if parallel.divides:
        yield "beside tensor, context and pipeline parallel"
    if not recipe.sharding.frees_blocks or (by_trainer and recipe.sharding is not FSDP):
        yield f"with sharding {recipe.sharding.name}; {'fsdp is' if by_trainer else 'fsdp and hsdp are'}"
    if recipe.loss != "hf":
        yield f"with loss {recipe.loss}; hf is"
    if scenario.run.evaluates:
        yield "with evaluation"
    yield from _of_sizes(scenario)


def _by_transformers(scenario: Scenario) -> bool:
    """Whether Transformers divides the model while it reads it."""
    stack = scenario.stack
    if stack.model_parallel != "features":
        return False
    return stack.runs_trainer and stack.fsdp2_casts == "never" and stack.mixture_code == "transformers"


def _of_sizes(scenario: Scenario) -> Iterator[str]:
    model, experts = scenario.model, scenario.recipe.parallel.experts
    mixtures = {group.block.mlp for group in model.groups if group.block.mlp.n_experts}
    known = _PLANNED if _by_transformers(scenario) else MIXTURES
    if model.architecture not in known or len(mixtures) != 1:
        yield f"for architecture '{model.architecture}'; {', '.join(sorted(known))} are"
        return
    (mlp,) = mixtures
    if mlp.n_experts % experts:
        yield f"for '{model.id}': its {mlp.n_experts} experts do not divide by {experts}"
        return
    gpus = int(scenario.recipe.shards(scenario.hardware))
    if gpus % experts:
        yield f"where {gpus} GPUs have one copy of the weights, which do not divide by {experts}"
        return
    shards = gpus // experts
    rows_divide = not (mlp.width % shards or model.hidden_size % shards)
    uneven = scenario.stack.model_code == "own" and not rows_divide
    if shards * experts > mlp.n_experts and uneven:
        yield (
            f"for '{model.id}' over {shards * experts} GPUs: the rows of an expert do not divide by "
            f"{shards}, which FSDP2 refuses, too"
        )
