"""One process whose model is spread over several GPUs (``device_map``): what it goes with.

Source: transformers 5.23 trainer.py (``is_model_parallel``: no DataParallel, the model stays where it is);
integrations/accelerate.py check_and_set_device_map (not under ZeRO-3); accelerate 1.15 accelerator.py
prepare_model (a model with several devices beside processes is an error).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.domain.hardware import Hardware
from planner.domain.recipes.parallel import Parallel
from planner.domain.recipes.recipe import PREPACKED
from planner.domain.scenario import Scenario
from planner.errors import UnreadCombinationError, UsageError
from planner.intake.given.ledger import Ledger


def resolve_device_map(ledger: Ledger, hardware: Hardware, parallel: Parallel) -> Parallel:
    """All GPUs in turn, entered.

    Raises:
        UsageError: another way to divide the model beside it.
        UnreadCombinationError: several nodes, which no process has.
    """
    ledger.choose("device_map", "auto", "assumed")
    if parallel.divides or (ledger.request.get("expert_parallel") or 1) > 1:
        origin = ledger.request.values["device_map"].origin
        where, instead = f"{origin}: ", "start a process for each GPU (as NPROC_PER_NODE of ms-swift does)"
        if origin == "cli":
            where, instead = "", "leave device_map out"
        raise UsageError(
            f"{where}one process spreads the layers over its GPUs (device_map), so the model cannot be "
            f"divided otherwise, too: {instead}, or leave out the degrees of parallelism"
        )
    if hardware.nodes > 1:
        raise UnreadCombinationError(
            "device_map is one process, which has the GPUs of one node: leave nodes out"
        )
    return replace(parallel, pipeline=int(hardware.world_size), schedule="in_turn", microbatches=1)


def check_device_map(scenario: Scenario) -> None:
    """Whether this job was compared with the libraries.

    Raises:
        UnreadCombinationError: it was not, or they refuse it; says why.
    """
    reason = next(_unread(scenario), None)
    if reason is not None:
        gpus = scenario.recipe.parallel.pipeline
        raise UnreadCombinationError(
            f'device_map="auto" over {gpus} GPUs is not modelled {reason}; a process for each GPU is: '
            "accelerate launch, torchrun"
        )


def _unread(scenario: Scenario) -> Iterator[str]:
    recipe, stack = scenario.recipe, scenario.stack
    if recipe.sharding.communicates:
        yield f"with sharding {recipe.sharding.name}: it is one process, and that wants one for each GPU"
    if stack.device_map == "unread" or not stack.runs_trainer:
        yield f"on stack '{stack.id}', whose way to spread layers nobody read"
    if recipe.task not in ("sft", "pretrain"):
        yield f"for task {recipe.task}"
    if recipe.loss != "hf":
        yield f"with loss {recipe.loss}; hf is"
    if recipe.numerics.quantization in PREPACKED:
        yield f"for a base that comes packed ({recipe.numerics.quantization}); int8, nf4 and fp4 are"
    if recipe.offload != "none":
        yield f"with offload {recipe.offload}"
    if recipe.adapter is not None and recipe.adapter.saved_names:
        yield "with modules_to_save"
    if scenario.run.evaluates:
        yield "with evaluation"
    yield from _of_parts(scenario)


def _of_parts(scenario: Scenario) -> Iterator[str]:
    recipe, model = scenario.recipe, scenario.model
    if recipe.train_layers or recipe.optimizer_in_backward or recipe.optimizer == "badam":
        yield "where parts of the model are trained or updated by themselves"
    if model.vision is not None or model.extra_embeddings or model.extra_linears or model.remote_code:
        yield "for models that see, or have more than one table of tokens around their layers"
    if any(group.block.mixer is not None for group in model.groups):
        yield "for layers without attention"
