"""vLLM on the same card: what it takes all the time, or while it is awake.

Source: vllm v1/worker/gpu_worker.py determine_available_memory, sleep, wake_up; trl 1.16.0
generation/vllm_generation.py sync_weights (``empty_cache``, ``wake_up``), generate; ms-swift 4.6.0
rlhf_trainers/rollout_mixin.py _fast_infer (``aggressive_empty_cache``).
"""

from __future__ import annotations

from planner.domain.recipes.recipe import Number
from planner.domain.term import TermName
from planner.program.job import Job
from planner.program.ops.tensors import Unit
from planner.program.request_stream import RequestStream
from planner.units import GIB

_TERM: TermName = "vllm_awake"
# What stays where it sleeps, of one GPU: 19.51 of 19.78 GiB came back of a share of a 72B model
# (vllm-project/vllm#17117), and a process of its own kept 774 MiB with its context (NVIDIA-NeMo/RL#223).
_ASLEEP_BYTES = 0.27 * GIB


def share_bytes(job: Job) -> Number:
    """What vLLM takes while it is awake: weights of its own, and a cache that fills its share of the card.

    Formula: ``--vllm-memory`` x memory of the card.  Source: vllm v1/worker/gpu_worker.py
    determine_available_memory: ``requested_memory`` (total memory x gpu_memory_utilization) less
    ``non_kv_cache_memory``, without what was there before.
    Ignored: graphs that it records beyond its share; vLLM up to 0.8 counted what was there before,
    and took that much less.
    """
    rollout, visible = job.recipe.rollout, job.hardware.gpu.visible_memory_bytes
    if rollout is None or rollout.generator != "vllm" or visible is None:
        return 0
    return rollout.vllm_share * visible


def standing_bytes(job: Job) -> Number:
    """What of it stands all the time: all, or what sleeping leaves."""
    rollout = job.recipe.rollout
    if rollout is None or not rollout.vllm_sleeps:
        return share_bytes(job)
    return min(_ASLEEP_BYTES, share_bytes(job))


def wake(stream: RequestStream, job: Job, part: str) -> int | None:
    """Wake the ``weights`` or the ``cache`` up, for which trainers give cached blocks back; the slot of what
    is taken, ``None`` where vLLM does not sleep.

    Ignored: that vLLM's memory is no part of what torch reserves, of which it counts here.
    """
    rollout = job.recipe.rollout
    if rollout is None or not rollout.vllm_sleeps:
        return None
    rest = float(share_bytes(job) - standing_bytes(job))
    weights = min(rollout.vllm_weight_bytes(job.model.param_count), rest)
    stream.empty_cache()
    n_bytes = weights if part == "weights" else rest - weights
    return stream.allocate(Unit.ONE, n_bytes, _TERM, ("generation", "vLLM", f"wake_up {part}"))


def put_to_sleep(stream: RequestStream, *slots: int | None) -> None:
    """Its memory goes back to the driver."""
    stream.free(*slots)
    if any(slot is not None for slot in slots):
        stream.empty_cache()
