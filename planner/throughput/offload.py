"""Transfers between GPU, host and NVMe, and the update on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

from planner.arrays import minimum
from planner.domain.hardware import server_of
from planner.domain.recipes.recipe import Number
from planner.program.host_copies import SENT, copies_to_host
from planner.throughput.communication import stored_param_bytes, trained_param_bytes
from planner.throughput.counted import unit_values
from planner.throughput.time_inputs import TimedJob

# Fused CPU Adam reads p, g, m, v (16 bytes), writes p, m, v (12) and a 16-bit copy (2) per parameter.
_CPU_ADAM_BYTES = 30
# fp32 master weight, momentum and variance: what NVMe offload reads and writes back in every step.
_STATE_BYTES = 12


@dataclass(frozen=True, slots=True)
class Transfers:
    """Bytes per step over one GPU's host link.  ``fetched``: weights on their way to a layer, which
    prefetching hides in part.  ``saved``: activations, which leave and return beside kernels.
    """

    fetched: Number
    exposed: Number
    saved: Number = 0


def transfers(job: TimedJob) -> Transfers:
    """Bytes that offloading moves over one GPU's PCIe link in a step.

    Formula: ``(2 P G + 2 P + 4 P_all G) / n``, with ``n`` GPUs and ``G`` micro-steps.  Gradients go to the
    host in each micro-step.  Updated 16-bit weights come back once, unless weights live on the host.  Host
    weights are fetched forward and again backward in each micro-step.  Of a second copy (hpZ) each GPU has a
    larger part, which it fetches each time but the first of what is trained.  Offloaded activations go out
    and back on a stream of their own, for which kernels do not wait until they read them.
    Source: ZeRO-Offload (arXiv 2101.06840) section 4; deepspeed ``runtime/zero/stage3.py``,
    ``partitioned_param_swapper.py``; torchtune 0.4.0 training/_activation_offloading.py OffloadActivations
    (``use_streams``), which TRL has, too; unsloth_zoo gradient_checkpointing.py UnslothCheckpointFunction
    (``EXTRA_STREAMS``).
    Ignored: Unsloth's checkpoints of 2024 and Axolotl's ``offload``, which copy on the stream of the kernels.
    """
    recipe = job.recipe
    micro_steps = recipe.batch.grad_accum
    exposed: Number = 0
    fetched: Number = 0
    saved: Number = 0
    if recipe.offloads_optimizer:
        share = job.own.trained * job.regime.gradient / job.world
        exposed = share * (micro_steps + (0 if recipe.offloads_params else 1))
    if recipe.offloads_params:
        fetched = 2 * micro_steps * stored_param_bytes(job) / job.world
        if recipe.parallel.hpz > 1:
            first = trained_param_bytes(job) / job.world
            fetched = first + (fetched - first) * job.world / recipe.parallel.hpz
    if recipe.offloads_activations:
        values = unit_values(job.scenario, job.micro)
        copies = copies_to_host(job.own, values, SENT)
        saved = 2 * micro_steps * sum(count * n_bytes for count, n_bytes in copies)
    return Transfers(fetched, exposed, saved)


def cpu_adam_seconds(job: TimedJob) -> Number:
    """Update of the parameters of one node on its CPU; seconds per step.

    Formula: trained parameters / nodes / rate.  The rate is the coefficient where the host is unknown, faster
    where the card comes on a board whose servers have faster memory than DDR4.  For a known host it is
    min(cores x rate per core, memory bandwidth / 30 bytes per parameter).  Outside DeepSpeed's engine
    weights, gradients and states of 16 bits move 14 bytes, and the update is bound by memory on many cores.
    Source: deepspeed ``csrc/adam/cpu_adam_impl.cpp``; rates in
    :class:`planner.domain.uncertainty.coefficients.Coefficients`.
    """
    if not job.recipe.offloads_optimizer:
        return 0.0
    host, coefficients = job.scenario.hardware.host, job.coefficients
    known: list[Number] = []
    if host.cores:
        known.append(host.cores * coefficients.cpu_adam_params_per_s_per_core)
    if host.memory_bandwidth_bytes_per_s:
        known.append(host.memory_bandwidth_bytes_per_s / _CPU_ADAM_BYTES)
    rate = (
        minimum(*known)
        if known
        else coefficients.cpu_adam_params_per_s * server_of(job.scenario.hardware.gpu).host_memory
    )
    return job.own.trained / job.scenario.hardware.nodes / rate * (_update_bytes(job) / _CPU_ADAM_BYTES)


def _update_bytes(job: TimedJob) -> float:
    """Bytes of host memory that the update of one parameter moves: weight, gradient and two states read,
    all but one written.

    Source: torch ``ATen/native/cpu/FusedAdamKernel.cpp``;
    DeepSpeed's own kernel keeps all four in fp32 and writes a 16-bit copy.
    """
    regime = job.regime
    return (
        _CPU_ADAM_BYTES
        if regime.engine == "deepspeed"
        else 2 * regime.trained + regime.gradient + 4 * regime.state
    )


def nvme_seconds(job: TimedJob) -> Number:
    """NVMe traffic of one node: optimizer state read and written once,
    weights read twice per micro-step; seconds per step.

    Source: ZeRO-Infinity (arXiv 2104.07857) section 6.2.
    """
    recipe = job.recipe
    if not recipe.offloads_to_nvme:
        return 0.0
    nodes = job.scenario.hardware.nodes
    moved: Number = 0
    if recipe.offloads_optimizer:
        moved = moved + 2 * _STATE_BYTES * job.own.trained / nodes
    if recipe.offloads_params:
        moved = moved + 2 * recipe.batch.grad_accum * stored_param_bytes(job) / nodes
    return moved / job.coefficients.nvme_bytes_per_s
