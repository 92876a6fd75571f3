"""GPUs that share a batch: which stacks divide a model so, and which of their combinations were read.

Source: transformers 5.23 distributed/configuration_utils.py, distributed/utils.py
initialize_distributed_mesh, trainer.py (``dp_shard_size = model_dp_size``); accelerate 1.15
parallelism_config.py ``__post_init__`` and ``_validate_accelerator``; torchtitan 0.3.0
models/llama3/parallelize.py, models/qwen3/parallelize.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.domain.hardware import Hardware
from planner.domain.model import ModelSpec
from planner.domain.recipes.parallel import Parallel
from planner.domain.scenario import Scenario
from planner.errors import UnreadCombinationError, UsageError
from planner.intake.given.ledger import Ledger
from planner.intake.given.request import ScenarioRequest

FIELDS = ("tensor_parallel", "context_parallel")
# Models whose plan divides query, key, value, gate and up by outputs,
# and the two matrices behind them by inputs.
_PLANNED = frozenset(
    (
        "apertus",
        "arcee",
        "cohere",
        "cohere2",
        "ernie4_5",
        "exaone4",
        "gemma",
        "gemma2",
        "gemma3_text",
        "granite",
        "internlm3",
        "llama",
        "ministral",
        "ministral3",
        "mistral",
        "olmo",
        "qwen2",
        "qwen3",
        "seed_oss",
        "smollm3",
    )
)
_TITAN = frozenset({"llama", "qwen3"})
_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused")


def degrees(request: ScenarioRequest) -> Parallel:
    """What the request says."""
    return Parallel(*(int(request.get(name) or 1) for name in FIELDS))


def resolve_parallel(ledger: Ledger, hardware: Hardware) -> Parallel:
    """How many GPUs share a batch; entered where that is said.

    Raises:
        UsageError: more GPUs than there are, or not a part of them.
    """
    parallel = degrees(ledger.request)
    if parallel.divides:
        for name, degree in zip(FIELDS, (parallel.tensor, parallel.context), strict=True):
            ledger.choose(name, degree, "assumed")
        if hardware.world_size % parallel.gpus:
            raise UsageError(
                f"{hardware.world_size} GPUs cannot be divided into groups of {parallel.gpus}, which "
                f"tensor_parallel {parallel.tensor} x context_parallel {parallel.context} asks for"
            )
        if parallel.gpus > hardware.gpus_per_node:
            raise UnreadCombinationError(
                f"{parallel.gpus} GPUs that share a batch across nodes are not modelled; a node at most is"
            )
    return parallel


def check_parallel(scenario: Scenario) -> None:
    """Whether this way to divide a model was read.

    Raises:
        UnreadCombinationError: it was not, or the libraries refuse it; says why.
    """
    if scenario.recipe.parallel.divides:
        reasons = (*_of_job(scenario), *_of_model(scenario), *_of_stack(scenario))
        if reasons:
            raise UnreadCombinationError(f"{_asked(scenario.recipe.parallel)} is not modelled {reasons[0]}")


def _asked(parallel: Parallel) -> str:
    parts = {"tensor parallel": parallel.tensor, "context parallel": parallel.context}
    return " x ".join(f"{name} of {degree}" for name, degree in parts.items() if degree > 1)


def _of_job(scenario: Scenario) -> Iterator[str]:
    recipe = scenario.recipe
    if recipe.numerics.quantization != "none":
        yield f"over a base in {recipe.numerics.quantization}"
    if recipe.is_preference:
        yield f"for task {recipe.task}"
    if recipe.offloads_something:
        yield f"with offload {recipe.offload}"
    if recipe.optimizer not in _OPTIMIZERS:
        yield f"with optimizer {recipe.optimizer}; {' and '.join(_OPTIMIZERS)} are"
    exchanges = scenario.stack.model_parallel == "heads"
    if recipe.method == "lora" and not exchanges:
        yield "with adapters"
    if recipe.train_layers:
        yield "where only a part of the model is trained"
    if recipe.batch.is_padded or recipe.batch.lengths is not None:
        yield "for samples of their own lengths; packed ones are (--padding packed)"
    kernel, parts = ("flash2", 1) if exchanges else ("sdpa", 2)
    if recipe.parallel.context > 1 and recipe.attention != kernel:
        yield f"with attention {recipe.attention}; {kernel} is"
    if recipe.batch.seq_len % (parts * recipe.parallel.context):
        yield (
            f"for sequences of {recipe.batch.seq_len} tokens, which do not divide by "
            f"{parts * recipe.parallel.context}"
        )


def _of_model(scenario: Scenario) -> Iterator[str]:
    model, parallel = scenario.model, scenario.recipe.parallel
    known = _TITAN if scenario.stack.model_parallel == "tokens" else _PLANNED
    if model.architecture not in known:
        yield f"for architecture '{model.architecture}'; {', '.join(sorted(known))} are"
    elif model.vision is not None or model.is_moe:
        yield "for mixtures of experts and models that see"
    elif not _divides(model, parallel.tensor):
        yield (
            f"for '{model.id}': its heads or features do not divide by {parallel.tensor}, which the "
            "libraries refuse, too"
        )
    elif parallel.tensor > 1 and model.tied:
        yield "for models whose head is their token table"
    if scenario.stack.model_parallel == "heads" and not _divides_heads(model, parallel.context):
        yield f"for '{model.id}': its heads do not divide by {parallel.context}"
    windows = any(group.block.attention.window_tokens for group in model.groups)
    if parallel.context > 1 and windows:
        yield "for layers with a window, which Accelerate refuses, too"


def _of_stack(scenario: Scenario) -> Iterator[str]:
    recipe, stack, hardware = scenario.recipe, scenario.stack, scenario.hardware
    if stack.model_parallel == "unread":
        yield f"on stack '{stack.id}', of which nobody read how it divides a model"
    elif stack.model_parallel == "features":
        if recipe.parallel.context > 1:
            yield f"on stack '{stack.id}'; without --stack the answer is for one that has it"
        if hardware.world_size > recipe.parallel.tensor or recipe.sharding.communicates:
            yield (
                f"on stack '{stack.id}' beside other batches; without --stack the answer is for "
                "one that has it"
            )
        if recipe.loss != "hf":
            yield f"with loss {recipe.loss}"
    elif stack.model_parallel == "heads" and recipe.parallel.tensor > 1:
        yield f"on stack '{stack.id}', which divides sequences alone"
    elif recipe.sharding.name not in ("fsdp", "hsdp"):
        yield f"with sharding {recipe.sharding.name} on stack '{stack.id}', which has FSDP2 alone"


def _divides(model: ModelSpec, parts: int) -> bool:
    """Whether heads and feed-forward features divide evenly."""
    blocks = [group.block for group in model.groups]
    counts = [
        n for block in blocks for n in (block.attention.n_heads, block.attention.n_kv_heads, block.mlp.width)
    ]
    return all(n % parts == 0 for n in counts)


def _divides_heads(model: ModelSpec, parts: int) -> bool:
    """Whether every GPU gets as many heads of queries and of keys."""
    attentions = [group.block.attention for group in model.groups]
    return all(n % parts == 0 for spec in attentions for n in (spec.n_heads, spec.n_kv_heads))
