"""Bytes and seconds that GPUs exchange in one optimizer step."""

from __future__ import annotations

from planner.anatomy.packing import stored_bytes
from planner.arrays import maximum, minimum, where
from planner.domain.recipes.fp8 import GATHERED_FP8, keeps_fp8_weights
from planner.domain.recipes.recipe import DTYPE_BYTES, Number
from planner.domain.stack_values import ADAPTERS_APART
from planner.program.weights.float8 import in_float8
from planner.throughput.kernel_time import orthogonalized_params
from planner.throughput.rates import intra_node_bytes_per_s, talks_directly
from planner.throughput.terms import passes_aside
from planner.throughput.time_inputs import TimedJob
from planner.units import MEGA

# Executions of DeepSpeed's per-module hooks: before and after a module in each forward pass, and in backward.
HOOKS_PER_PASS = 2
# What the hooks of one FSDP unit take of the host in one pass, in hooks of DeepSpeed: 0.26 ms forward and
# 0.31 backward with FSDP1, 0.33 and 0.40 with FSDP2, of torch 2.13 on an AMD EPYC, torch's fake process group
# of two, smallest of 60 runs.
HOOKS_PER_UNIT = 4.5
# From one GPU of a ring across nodes to the next, as NCCL reckons for a broadcast by the protocol that it
# takes for tens of MB over many GPUs: nccl 2.14 to 2.30 src/graph/tuning.cc, ring, LL128, network.
_HOP_S = 4.0 / MEGA


def stored_param_bytes(job: TimedJob) -> Number:
    """Bytes of all weights of one replica as sharding moves them: quantised ones as stored,
    others in the compute dtype.

    k-bit matrices that the engine cannot divide are whole on every GPU and never move.
    Source: deepspeed ``runtime/zero/partition_parameters.py`` all_gather_coalesced;
    torch ``fully_shard`` (``param_dtype``).
    Ignored: that a tower without images is not gathered, 1.2 % of a step at the most.
    """
    own, regime = job.own, job.regime
    of_engine = {"native": regime.base, "deepspeed": regime.compute}
    width = of_engine.get(regime.engine, DTYPE_BYTES[job.recipe.numerics.compute_dtype])
    narrow = _float8_params(job)
    plain = own.base_params - own.packed.elements - narrow
    moved = (
        stored_bytes(job.recipe.numerics, own.packed) if regime.quantized and job.recipe.divides_base else 0
    )
    return plain * width + moved + narrow


def _sent_share(job: TimedJob) -> Number:
    """Part of the stored bytes that a gather sends: ZeRO++ sends a byte of each weight.

    Source: switch ``zero3_quantized``; deepspeed 0.19.8 ``runtime/zero/partition_parameters.py``
    CUDAQuantizer.  Ignored: a scale of four bytes for up to 8,000 weights.
    """
    quantizes = "weights" in job.scenario.stack.zero3_quantized
    return job.own.base_params / stored_param_bytes(job) if quantizes else 1


def _float8_params(job: TimedJob) -> int:
    """Weights that are gathered as one byte each."""
    numerics = job.recipe.numerics
    if numerics.fp8 != GATHERED_FP8 and not keeps_fp8_weights(numerics.fp8):
        return 0
    found = job.own.model.linears()
    return sum(count * linear.weight_count for linear, count in found if in_float8(numerics, linear))


def ring_fraction(world: Number) -> Number:
    """Part of a tensor that a GPU receives in a ring all-gather (or sends in a reduce-scatter):
    ``(n - 1) / n``.

    Source: nccl-tests ``doc/PERFORMANCE.md``.
    """
    return (world - 1) / world


def _moved_share(job: TimedJob) -> Number:
    """Part of what is gathered or reduced that a GPU receives: of experts that are divided over ``e`` GPUs
    already, FSDP2 divides the rest over as many times fewer.

    Source: torchtitan e347b1e5e distributed/parallel_dims.py build_mesh (``efsdp``).
    """
    world, experts = job.recipe.shards(job.scenario.hardware), job.own.expert_share
    if not experts:
        return ring_fraction(world)
    return (1 - experts) * ring_fraction(world) + experts * ring_fraction(_gpus_of_experts(job))


def _gpus_of_experts(job: TimedJob) -> Number:
    """GPUs that hold the same experts: those that divide other matrices have experts of their own."""
    parallel = job.recipe.parallel
    return job.recipe.shards(job.scenario.hardware) * parallel.tensor / parallel.expert_gpus


def gathered_bytes(job: TimedJob) -> Number:
    """Bytes that each GPU receives per step to have the whole weights:
    ZeRO-3 and FSDP gather all of them, frozen ones too.

    Formula: stored bytes x (n - 1) / n, once forward and once backward in every micro-step (``fsdp-grad-op``
    keeps them: once), and once in each pass without gradients beside it; recomputation shares the backward
    gather.  For each generation they are gathered once more, or handed to vLLM.  HSDP shards inside a node
    only.  With a second copy (hpZ) trained weights cross all GPUs once per step, and frozen ones never:
    :func:`second_copy_bytes`.
    Source: ZeRO-3 offload post (1.5 x DDP's volume), torch FSDP docs.  Ignored:
    persistent small tensors (below 0.1 %).
    """
    recipe = job.recipe
    if not recipe.sharding.gathers_weights:
        return 0
    world = recipe.shards(job.scenario.hardware)
    if recipe.parallel.hpz > 1:
        return _sent_share(job) * trained_param_bytes(job) * ring_fraction(world)
    return _gathers(job) * _sent_share(job) * stored_param_bytes(job) * _moved_share(job)


def _gathers(job: TimedJob) -> Number:
    """How often per step all weights are gathered."""
    recipe = job.recipe
    gathers = (2 if recipe.sharding.divides_weights else 1) + passes_aside(job)
    return gathers * _meetings(job) + recipe.generations_per_step


def _meetings(job: TimedJob) -> Number:
    """How often per step engines that meet in every micro-step do so: in a pipeline once for each round.

    Source: :mod:`planner.program.engines.fsdp.pipelined`.
    """
    stage, count = job.own.model.stage, job.recipe.batch.grad_accum
    return count if stage is None else count / stage.microbatches


def trained_param_bytes(job: TimedJob) -> Number:
    """Those of them that are trained, in the compute dtype.

    Source: as of :func:`stored_param_bytes`.
    """
    return minimum(job.own.trained * DTYPE_BYTES[job.recipe.numerics.compute_dtype], stored_param_bytes(job))


def second_copy_bytes(job: TimedJob) -> Number:
    """Bytes that each GPU receives per step from those that divide a second copy of the weights with it.

    Formula: all gathers of a step but the first one of what is trained, times ``(n - 1) / n``.
    Source: DeepSpeed 0.19.8 runtime/zero/partition_parameters.py all_gather_coalesced
    (``use_secondary_tensor``), stage3.py invalidate_secondary_tensor.
    """
    hpz = job.recipe.parallel.hpz
    if hpz == 1:
        return 0
    moved = _gathers(job) * stored_param_bytes(job) - trained_param_bytes(job)
    return _sent_share(job) * moved * ring_fraction(hpz)


def reduced_bytes(job: TimedJob) -> Number:
    """Bytes that each GPU sends per step to sum gradients,
    and to spread updated weights where those stay whole.

    Formula, with ``P`` trained parameters: DDP and ZeRO-0 all-reduce, and ZeRO-1 reduce-scatter + all-gather
    ``2 P (n - 1) / n`` once per step; ZeRO-2 reduces every micro-step and gathers once; ZeRO-3 and FSDP
    reduce every micro-step, or FSDP the last one only, where the loop says ``no_sync`` (switch
    ``fsdp_no_sync``).  ZeRO-1 all-reduces where it broadcasts weights, which are in :func:`update_bytes`, and
    what ZeRO++ sends in 4 bits is in :func:`quantized_bytes`.
    Source: ZeRO (arXiv 1910.02054) section 7; torch ``nn/parallel/distributed.py`` (no_sync); deepspeed
    ``stage_1_and_2.py``; accelerate 1.15 accelerator.py ``accumulate``.
    """
    recipe, regime = job.recipe, job.regime
    if not recipe.sharding.communicates or _quantizes_gradients(job):
        return 0
    once = job.own.trained * regime.gradient * _moved_share(job)
    if not recipe.sharding.reduces_each_micro_step:
        return 2 * once
    if recipe.sharding.is_zero12:
        return once * (recipe.batch.grad_accum + 1)
    return once * _reductions(job)


def _reductions(job: TimedJob) -> Number:
    """How often per step FSDP and ZeRO-3 reduce gradients."""
    reduces_once = job.recipe.sharding.reduces_last_only(job.scenario.stack.fsdp_no_sync)
    return 1 if reduces_once else _meetings(job)


def _quantizes_gradients(job: TimedJob) -> bool:
    return "gradients" in job.scenario.stack.zero3_quantized and job.scenario.hardware.nodes > 1


def quantized_bytes(job: TimedJob) -> tuple[Number, Number]:
    """Bytes that each GPU sends per step to sum gradients in 4 bits, inside of its node and to others.

    Formula: half a byte for each trained parameter to the GPUs of the node, which divide the sums, and these
    once more to GPUs with the same part on other nodes; in every micro-step.
    Source: deepspeed 0.19.8 ``runtime/comm/coalesced_collectives.py`` all_to_all_quant_reduce.
    Ignored: vectors, which go in 16 bits; scales; the kernels that quantise, on a stream of their own.
    """
    if not _quantizes_gradients(job):
        return 0, 0
    hardware = job.scenario.hardware
    sent = job.own.trained / 2 * _reductions(job)
    inside = sent * ring_fraction(hardware.gpus_per_node)
    return inside, sent / hardware.gpus_per_node * ring_fraction(hardware.nodes)


def replica_bytes(job: TimedJob) -> Number:
    """Bytes per step between the replicas of HSDP: an all-reduce of this GPU's gradient shard among copies,
    behind each reduction inside of one.

    Source: torch 2.13 ``distributed/fsdp/_fully_shard/_fsdp_collectives.py`` foreach_reduce,
    ``_fully_shard.py`` set_requires_gradient_sync; ``_runtime_utils.py`` _reduce_grad (FSDP1).
    """
    recipe, hardware = job.recipe, job.scenario.hardware
    if recipe.sharding.scope != "node":
        return 0
    shard = job.own.updated * job.regime.gradient
    return 2 * shard * ring_fraction(recipe.copies(hardware)) * _reductions(job)


def update_bytes(job: TimedJob) -> Number:
    """Bytes that each GPU receives per step for the update itself.

    Formula: ``(4 + 2) M (n - 1) / n`` over the elements ``M`` of the matrices of the layers where Muon
    orthogonalises whole matrices: gradients with momentum in fp32, and its part of the updates in bf16 from
    the first GPU, which sends all.  All trained weights in the compute dtype where ZeRO-1 broadcasts them.
    Source: switch ``muon``; :func:`planner.program.update.step_kernels.muon`; switch
    ``zero1_update``.
    """
    recipe, gpus = job.recipe, _broadcasting_gpus(job)
    if gpus is not None:
        return trained_param_bytes(job) * ring_fraction(gpus)
    if recipe.optimizer != "muon" or not recipe.sharding.dtensors:
        return 0
    elements = orthogonalized_params(job.scenario.model, job.scenario.stack)
    return (4 + 2) * elements * ring_fraction(recipe.shards(job.scenario.hardware))


def _broadcasting_gpus(job: TimedJob) -> Number | None:
    """How many GPUs broadcast to one another what they updated; ``None`` where none does."""
    how, hardware = job.scenario.stack.zero1_update, job.scenario.hardware
    if not job.recipe.sharding.is_zero1 or how == "gathered":
        return None
    gpus = job.recipe.shards(hardware)
    if hardware.world_size == 1:
        return None
    return gpus if how == "broadcast" else minimum(gpus, hardware.gpus_per_node)


def broadcasts(job: TimedJob) -> Number:
    """How often per step a GPU sends all others the weights that it updated: once for each GPU that owns
    any, which are no more than there are tensors.

    Source: InternLM/InternEvo fa7337b (2023-07-06) solver/optimizer/hybrid_zero_optim.py
    _partition_param_list (whole tensors), broadcast_params.
    """
    gpus = _broadcasting_gpus(job)
    return 0 if gpus is None else minimum(gpus, _owned_tensors(job))


def _owned_tensors(job: TimedJob) -> int:
    """Trained tensors where query, key and value are one matrix with one bias, whatever the model has.

    Source: InternLM/InternEvo fa7337b model/multi_head_attention.py MHA (``Wqkv``).
    """
    joined = 0
    for block, count in job.scenario.model.blocks():
        parts = [linear for linear in block.linears if linear.reads == "attn_in"]
        joined += count * sum(1 + linear.bias for linear in parts[1:])
    return job.trained_tensors - joined


def broadcast_latency_seconds(job: TimedJob) -> Number:
    """What the broadcasts of a step take beside their bytes; seconds.

    Formula: broadcasts x GPUs x time of one hop: each goes around a ring of all GPUs, one after the other.
    Source: nccl 2.14 to 2.30 src/graph/tuning.cc ncclTopoTuneModel (ncclFuncBroadcast: ``nsteps * lat`` with
    ``nsteps = nRanks``).
    Ignored: rings inside of a node, whose few short hops are a ten thousandth of a step.
    """
    gpus, hardware = _broadcasting_gpus(job), job.scenario.hardware
    if gpus is None:
        return 0
    return where(gpus <= hardware.gpus_per_node, 0, broadcasts(job) * gpus * _HOP_S)


def update_collective_seconds(job: TimedJob) -> Number:
    """What GPUs send for the update itself, one matrix or one GPU's weights after the other with nothing
    beside it; seconds.

    Source: torch 2.13 distributed/tensor/_redistribute.py (``full_tensor`` waits); InternLM/InternEvo as for
    :func:`broadcasts` (every handle is waited for).
    """
    return update_bytes(job) / update_bytes_per_s(job) + broadcast_latency_seconds(job)


def update_bytes_per_s(job: TimedJob) -> Number:
    """Sustained rate of the ring that sends what the update needs; bytes/s.

    Source: as of :func:`intra_node_bytes_per_s` where all are in one node, else the rate of the network.
    """
    gpus = _broadcasting_gpus(job)
    return job.rates.collective_bytes_per_s if gpus is None else _group_bytes_per_s(job, gpus)


def collective_seconds(job: TimedJob) -> Number:
    """All collectives of one step over the sustained rate of the slowest link in the ring; seconds,
    before any overlap.

    Source: nccl-tests ``doc/PERFORMANCE.md`` (time is bytes over bus bandwidth).
    Ignored: the latency of each collective (about 20 us; inside ``hook_s`` for ZeRO-3), but for broadcasts
    (:func:`broadcast_latency_seconds`).
    """
    moved = gathered_bytes(job) + reduced_bytes(job)
    inside, across = quantized_bytes(job)
    return (
        moved * _seconds_per_byte(job)
        + inside / intra_node_bytes_per_s(job.scenario.hardware, job.coefficients)
        + across / _replica_bytes_per_s(job)
        + replica_bytes(job) / _replica_bytes_per_s(job)
        + second_copy_bytes(job) / _group_bytes_per_s(job, job.recipe.parallel.hpz)
    )


def _shard_bytes_per_s(job: TimedJob) -> Number:
    """Rate of the ring that divides one copy: the links of a node, where a copy lies inside of one."""
    if job.recipe.sharding.scope != "node":
        return job.rates.collective_bytes_per_s
    return _group_bytes_per_s(job, _gpus_of_copy(job))


def _seconds_per_byte(job: TimedJob) -> Number:
    """Of gathers and reductions: rings of divided experts join GPUs that are apart by as many as divide them.

    Source: torchtitan e347b1e5e distributed/parallel_dims.py build_mesh (``ep`` are neighbours).
    """
    experts, hardware = job.own.expert_share, job.scenario.hardware
    plain = 1 / _shard_bytes_per_s(job)
    share = _moved_share(job)
    if not experts or not share:
        return plain
    world, parts = job.recipe.shards(hardware), job.recipe.parallel.expert_gpus
    of_experts = experts * ring_fraction(_gpus_of_experts(job)) / share
    inside = intra_node_bytes_per_s(hardware, job.coefficients)
    rings = minimum(parts, hardware.gpus_per_node)
    apart = minimum(job.rates.network_bytes_per_s / rings, inside)
    ring = where(world <= hardware.gpus_per_node, inside, apart)
    return (1 - of_experts) * plain + of_experts / ring


def _group_bytes_per_s(job: TimedJob, gpus: Number) -> Number:
    """Rate of a ring of so many GPUs, which are neighbours."""
    hardware = job.scenario.hardware
    return where(
        gpus <= hardware.gpus_per_node,
        intra_node_bytes_per_s(hardware, job.coefficients),
        job.rates.collective_bytes_per_s,
    )


def _replica_bytes_per_s(job: TimedJob) -> Number:
    """Rate of the ring that joins one shard of all copies: across nodes, each has a part of the network, as
    every GPU of a copy has such a ring.
    """
    hardware = job.scenario.hardware
    if hardware.nodes == 1:
        return intra_node_bytes_per_s(hardware, job.coefficients)
    rings = minimum(_gpus_of_copy(job), hardware.gpus_per_node)
    return minimum(job.rates.network_bytes_per_s / rings, intra_node_bytes_per_s(hardware, job.coefficients))


def _gpus_of_copy(job: TimedJob) -> Number:
    return job.scenario.hardware.world_size / job.recipe.copies(job.scenario.hardware)


def sharding_copy_seconds(job: TimedJob) -> Number:
    """Copies between collectives' buffers and weights or gradients, on the stream of the kernels;
    seconds per micro-step.

    FSDP2 copies every gathered weight out of the buffer (read, write; as often as it gathers), and every
    gradient into the buffer that is reduced (read in the compute dtype, written in that of the reduction).
    FSDP1 gathers in place and joins the gradients of a layer (read, write).
    Source: torch 2.13 ``fsdp/_fully_shard/_fsdp_collectives.py`` foreach_all_gather_copy_out,
    foreach_reduce_scatter_copy_in; ``fsdp/_flat_param.py`` (torch.split, whose backward is a cat).
    Ignored: copies on streams of their own (casts of shards; DeepSpeed's buckets),
    DeepSpeed's cat of weights fetched together.
    """
    recipe, regime = job.recipe, job.regime
    if not recipe.uses_fsdp:
        return 0.0
    width = min(DTYPE_BYTES[recipe.numerics.compute_dtype], regime.gradient)
    # Version 2 gathers into one buffer and copies each weight out of it.
    if recipe.sharding.dtensors:
        times = 2 if recipe.sharding.divides_weights else 1
        moved = times * 2 * stored_param_bytes(job) + job.own.trained * (width + regime.gradient)
    else:
        moved = 2 * job.own.trained * width
    return moved / job.rates.memory_bytes_per_s * _meetings(job) / recipe.batch.grad_accum


def gained_seconds(job: TimedJob, hidden_s: Number) -> Number:
    """What hiding ``hidden_s`` of collectives saves: less than all of it,
    as the kernels meanwhile take longer; seconds.

    Kernels of collectives hold multiprocessors and memory bandwidth (coefficient
    ``kernel_time_beside_collectives``) for as long as the bytes take over the links of a node, where it was
    measured.  Waiting for a network costs kernels nothing.  Over PCIe NCCL opens few channels and nobody
    measured the cost, so none is counted.
    Source: arXiv 2507.03114, abstract: mean over GPT and Llama models on four A100, H100,
    MI250 and MI210 each.
    Ignored: that a pipeline reduces behind its last micro-batch, 1.3 % of a step; that the slowdown differs
    by kernel and card (40 % at most there); transfers to the host, which copy engines do.
    """
    if not talks_directly(job.scenario.hardware):
        return hidden_s
    moved = gathered_bytes(job) + reduced_bytes(job) + second_copy_bytes(job) + sum(quantized_bytes(job))
    inside = moved / intra_node_bytes_per_s(job.scenario.hardware, job.coefficients)
    return hidden_s - (1 - 1 / job.coefficients.kernel_time_beside_collectives) * minimum(hidden_s, inside)


def overlapping_share(job: TimedJob) -> Number:
    """Share of collectives that hides behind the kernels at most:
    none under ZeRO stages 1 and 2 without ``overlap_comm``, nor under stage 0, which sums behind backward.

    FSDP knows the order of its layers and prefetches whole ones: only its ends show
    (:func:`_ends`).  ZeRO-3 prefetches a bucket smaller than a layer from hooks of modules, and DDP can hide
    its reduction behind backward only.
    Source: DeepSpeed 0.12-0.19 zero/stage_1_and_2.py average_tensor (a stream of its own only with
    ``overlap_comm``, else the kernels' own), switch ``zero12_overlap``; torch 2.13
    ``fsdp/_fully_shard/_fsdp_param_group.py``.
    """
    sharding = job.recipe.sharding
    if sharding.is_zero012 and not (sharding.is_zero12 and job.scenario.stack.zero12_overlap):
        return 0.0
    return 1 - _ends(job) if job.recipe.uses_fsdp else job.coefficients.comm_overlap


def _ends(job: TimedJob) -> Number:
    """Part of FSDP's collectives beside which no kernels run.

    Formula: all that is outside of the layers, and the first of them, gathered once per micro-step and
    reduced as often as gradients are, over all that is moved.  The root unit holds the tables, the head and
    the last norm; it is gathered before the first layer and reduced behind it, when backward has ended.
    Source: torch 2.13 ``distributed/fsdp/_runtime_utils.py`` _root_pre_forward and
    _post_backward_final_callback; ``fsdp/_fully_shard/_fsdp_param_group.py``, which prefetches the next layer
    and waits for the reduction of the last.
    Ignored: heads that recipes wrap as a unit of their own, and that layers may be of several sizes.
    """
    model = job.own.model
    in_layers = sum(block.param_count * count for block, count in model.blocks()) / model.param_count
    ends = 1 - in_layers * (1 - 1 / model.n_layers)
    gathered, reduced = gathered_bytes(job), reduced_bytes(job)
    times = (2 if job.recipe.sharding.divides_weights else 1) + passes_aside(job)
    return ends * (gathered / times + reduced) / maximum(gathered + reduced, 1.0)


def hook_seconds(job: TimedJob) -> Number:
    """Host time of sharding hooks per micro-step; seconds.

    ZeRO-3 runs Python before and after every module in every pass (fetch, trace, release).  ZeRO-1 and ZeRO-2
    run it once per trained tensor in backward, FSDP for each unit in every pass (``HOOKS_PER_UNIT``).
    Source: deepspeed ``runtime/zero/parameter_offload.py``, ``stage_1_and_2.py``; DeepSpeed#6649 (host
    overhead of hooks); torch 2.13 ``distributed/fsdp/_runtime_utils.py``, ``_fully_shard/_fsdp_state.py``.
    """
    recipe = job.recipe
    if recipe.sharding.is_zero3:
        passes = job.passes + 1 + passes_aside(job)
        return job.called_modules * HOOKS_PER_PASS * passes * job.coefficients.hook_s
    if recipe.sharding.is_zero12:
        return job.trained_tensors * job.coefficients.hook_s
    if recipe.uses_fsdp:
        units = job.scenario.model.n_layers
        apart = job.scenario.stack.fsdp2_units in ADAPTERS_APART
        if recipe.sharding.dtensors and recipe.adapter and apart:
            units = units + 2 * job.adapted_matrices
        return units * _unit_seconds(job) + waiting_hook_seconds(job)
    return 0.0


def waiting_hook_seconds(job: TimedJob) -> Number:
    """The part of :func:`hook_seconds` that kernels hardly hide,
    of units so small that the host waits; seconds per micro-step.

    FSDP1 lets the host run two gathers ahead of the kernels.  Between two adapters that are units of their
    own there is little for it to run ahead of.
    Source: torch 2.13 ``distributed/fsdp/_limiter_utils.py`` _FreeEventQueue; PEFT's
    ``fsdp_auto_wrap_policy``, switch ``fsdp1_wraps_adapters``.  Ignored: what the kernels of two units do
    hide.
    """
    first = job.recipe.uses_fsdp and not job.recipe.sharding.dtensors
    if not (first and job.recipe.adapter is not None and job.scenario.stack.fsdp1_wraps_adapters):
        return 0.0
    return 2 * job.adapted_matrices * _unit_seconds(job)


def _unit_seconds(job: TimedJob) -> Number:
    return (job.passes + 1) * HOOKS_PER_UNIT * job.coefficients.hook_s
