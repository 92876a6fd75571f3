"""Which jobs share a program: those whose steps have the same operators and differ in sizes alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from planner.domain.recipes.optimizers import OPTIMIZER_FACTS
from planner.domain.recipes.recipe import Recipe
from planner.domain.stack import Stack
from planner.intake.supported import lacks_flash2
from planner.intake.tasks import takes_rows
from planner.program.job import Job, job_of
from planner.program.load import reserves_free
from planner.program.parameters import JobByKey
from planner.program.request_stream import RequestStream
from planner.program.step import step_of
from planner.program.view import MASK_KEYS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Mask = npt.NDArray[np.bool_]


def asks_room(recipe: Recipe, stack: Stack) -> bool:
    """Whether a program depends on the size of the card: DeepSpeed's stages 1 and 2 flatten weights where it
    has room, vLLM wakes up to a share of it, and a loader may first take what is free of it.
    """
    sleeps = recipe.rollout is not None and recipe.rollout.vllm_sleeps
    return recipe.sharding.is_zero12 or sleeps or reserves_free(recipe, stack)


def program_of(job: Job) -> RequestStream:
    """The program of ``job``, which it may share with jobs of other sizes."""
    recipe, batch = job.recipe, job.recipe.batch
    # Buckets of gradients, parts of engines and states of 8-bit optimizers depend on a rank.
    by_rank = recipe.sharding.communicates or OPTIMIZER_FACTS[recipe.optimizer].depends_on_size
    rank = recipe.adapter.rank if recipe.adapter and by_rank else 0
    # Engines count the elements of parts.
    divides = recipe.sharding.engine != "native"
    gpus = (job.hardware.gpus_per_node, job.hardware.nodes) if divides else ()
    gpu = job.hardware.gpu
    card = lacks_flash2(gpu), gpu.visible_memory_bytes if asks_room(recipe, job.stack) else None
    flags = [
        *_flags(job, batch.micro_batch, batch.seq_len, batch.tokens_per_sample, batch.grad_accum),
        batch.images is None,
        job.evaluates,
    ]
    key = (job.model, job.stack, recipe.without_sizes, card, rank, gpus, job.process, *flags)
    return _program(JobByKey(key, job))


# One of a large model takes some five megabytes.
# A search over cards, or over counts of them, meets the same ones on each card and at each count.
@lru_cache(maxsize=256)
def _program(structure: JobByKey) -> RequestStream:
    return step_of(structure.job)


def _flags(job: Job, micro_batch: Any, length: Any, tokens: Any, accumulation: Any) -> list[Any]:
    """What sizes switch: one sample or pair (:attr:`Job.single`, :attr:`Job.single_chosen`), masks of
    padding and of each window, masks with slopes whose rows are padded, and gradients that are added.
    """
    flags = [(micro_batch == 1) | job.stack.joins_rows(job.recipe), accumulation > 1]
    if takes_rows(job.recipe, job.stack):
        flags.append(micro_batch)
    if job.recipe.sharding.is_fsdp1:
        flags.append(accumulation > 2)  # a micro-step in the middle
    if job.recipe.batch.padding != "packed":
        flags.append(tokens < length)
    if any(group.block.attention.has_sloped_mask for group in job.model.groups):
        flags.append(length % MASK_KEYS != 0)
    return [*flags, *(length >= window for window in job.model.windows)]


def alike(job: Job) -> Iterator[tuple[Mask, Job]]:
    """The parts of a grid whose jobs share a program, each with one job of it.

    Masks have the shape of the axes that they depend on.
    """
    import numpy as np

    batch = job.recipe.batch
    point = batch.micro_batch, batch.seq_len, batch.tokens_per_sample, batch.grad_accum
    sizes = [np.asarray(each, dtype=np.float64) for each in point]
    code: Any = np.zeros((), dtype=np.int64)
    for each in _flags(job, *sizes):
        known, place = np.unique(each, return_inverse=True)
        code = code * known.size + place.reshape(each.shape)
    shape = np.broadcast_shapes(code.shape, *(each.shape for each in sizes))
    for number in np.unique(code):
        mask = code == number
        first = np.unravel_index(int(np.argmax(np.broadcast_to(mask, shape))), shape)
        yield mask, _job_at(job, [float(np.broadcast_to(each, shape)[first]) for each in sizes])


def _job_at(job: Job, point: list[float]) -> Job:
    micro_batch, length, tokens, accumulation = point
    batch = replace(
        job.recipe.batch,
        micro_batch=int(micro_batch),
        seq_len=int(length),
        tokens_per_sample=tokens,
        grad_accum=int(accumulation),
    )
    return job_of(replace(job.scenario, recipe=replace(job.recipe, batch=batch)), job.coefficients)
