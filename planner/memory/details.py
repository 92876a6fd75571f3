"""The numbers behind each memory term, as text; worked out only when somebody asks how a term came about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.anatomy.block import block_bytes
from planner.arrays import maximum
from planner.domain.model import BlockGroup
from planner.domain.prediction import HostPrediction, MemoryPrediction
from planner.domain.recipe import Number
from planner.memory import cache, lengths, pools, runtime, score_cache, sharding
from planner.program.job import Job
from planner.units import format_bytes, format_count


def with_memory_details(job: Job, memory: MemoryPrediction) -> MemoryPrediction:
    """``memory`` with the numbers of each formula in ``Term.detail``."""
    terms = tuple(replace(term, detail=_detail(job, term.formula, term.label)) for term in memory.terms)
    return replace(memory, terms=terms)


def with_host_details(job: Job, host: HostPrediction) -> HostPrediction:
    """``host`` with the numbers of each formula in ``HostTerm.detail``, where a term has none of its own."""
    terms = tuple(replace(term, detail=term.detail or _detail(job, term.formula, term.name)) for term in host.terms)
    return replace(host, terms=terms)


def _detail(job: Job, formula: str, label: str) -> str:
    write = _DETAILS.get(formula.removeprefix("planner.memory."))
    return write(job, label) if write else ""


def _quantized(job: Job, _: str) -> str:
    return f"{format_count(job.counts.quantizable)} weights in {job.recipe.numerics.quantization}{_over(job.weight_shards)}"


def _outliers(job: Job, _: str) -> str:
    return (
        f"{format_count(job.counts.quantizable)} weights x {job.coefficients.int8_outlier_fraction:.2%} of columns, input's dtype"
    )


def _unquantized(job: Job, _: str) -> str:
    counts, regime = job.counts, job.regime
    inside = (0 if regime.quantized else counts.quantizable) + counts.fused_experts + counts.block_rest
    outside = counts.tables + counts.head
    return (
        f"{format_count(inside)} in blocks x {regime.base} B + {format_count(outside)} in tables and head x {regime.outside} B "
        f"+ {format_count(counts.norms)} in norms x {regime.norm_weight} B{_over(job.hardware.world_size, job.weight_shards)}"
    )


def _adapters(job: Job, _: str) -> str:
    return f"{format_count(float(job.adapter_params))} adapter parameters x {job.regime.adapter} B"


def _saved_modules(job: Job, _: str) -> str:
    return f"{format_count(job.saved_params)} parameters x {job.regime.outside} B"


def _gradients(job: Job, _: str) -> str:
    size = format_bytes(float(job.trained_weight_bytes))
    return f"{format_count(float(job.trained))} trained parameters, {size}{_over(job.gradient_shards)}"


def _step_gradients(job: Job, _: str) -> str:
    shards = job.optimizer_shards if job.recipe.sharding.is_zero1 else job.gradient_shards
    return f"{format_count(float(job.trained))} trained parameters{_over(shards)}"


def _masters(job: Job, _: str) -> str:
    return f"{format_count(float(job.master_params))} parameters x 4 B{_over(job.optimizer_shards)}"


def _states(job: Job, _: str) -> str:
    return f"{job.recipe.optimizer} over {format_count(float(job.trained))} parameters{_over(job.optimizer_shards)}"


def _activations(job: Job, _: str) -> str:
    tokens, length = float(job.tokens), job.recipe.batch.seq_len
    groups = ", ".join(_group_activations(job, group, tokens, length) for group in job.model.groups)
    unit = "the inputs of its parts are" if job.stack.checkpoints_parts else "its input is"
    how = f"{unit} kept, the rest rebuilt" if job.recipe.gradient_checkpointing else "all of it is kept"
    how = f"in every {job.recipe.checkpoint_every}. layer {how}, in the others all" if job.recipe.rebuilds_some else how
    return f"{tokens:.0f} tokens; {groups}; {how}"


def _group_activations(job: Job, group: BlockGroup, tokens: float, length: Number) -> str:
    """What one of the equal blocks saves: by token, and whatever the tokens (expanded or copied weights)."""
    view = job.view(group.block)
    block = block_bytes(view, job.tokens, length)
    # No tokens leave what is fixed.
    fixed = float(block_bytes(view, 0, length).saved)
    saved, entered = (float(block.saved) - fixed) / tokens, float(block.boundary) / tokens
    besides = f" and {format_bytes(fixed)} whatever the tokens" if fixed else ""
    return (
        f"{group.count} blocks that each save {saved:.0f} B per token{besides} (input {entered:.0f}), "
        f"peak in backward {format_bytes(float(block.backward_peak))}"
    )


def _loss_moment(job: Job, label: str) -> str:
    return _adapters(job, label) if label == "autocast weight copies" else _logits(job, label)


def _logits(job: Job, _: str) -> str:
    forward, backward = " + ".join(job.stack.loss_forward), " + ".join(job.stack.loss_backward)
    size = f"{float(job.tokens):.0f} tokens x {job.model.vocab_size} logits"
    return f"{size}; forward {forward}; backward {backward}; loss {job.recipe.loss}"


def _context(job: Job, _: str) -> str:
    coefficients, gpu = job.coefficients, job.hardware.gpu
    known = runtime.resident_threads(job) is not None
    card = f"{gpu.multiprocessors} multiprocessors" if known else "those of the card are unknown: as an A100"
    threads = f"{runtime.counted_threads(job):,} threads ({card}) x thread_memory_bytes {coefficients.thread_memory_bytes:.0f} B"
    return f"{threads} + context_bytes {format_bytes(coefficients.context_bytes)}, {coefficients.name}"


def _coefficient(name: str) -> Callable[[Job, str], str]:
    def write(job: Job, _: str) -> str:
        value, unit = getattr(job.coefficients, name), job.coefficients.prior_of(name).unit
        amount = format_bytes(value) if unit == "bytes" else f"{value:.4g} {unit}"
        return f"coefficient {name} = {amount}, {job.coefficients.name}"

    return write


def _pinned(job: Job, _: str) -> str:
    return f"{format_count(float(job.trained / job.optimizer_shards))} parameters per process, {_pinning(job)}"


def _pinning(job: Job) -> str:
    return "pinned, rounded to powers of two" if job.stack.pins_offload else "not pinned"


def _rounding(job: Job) -> str:
    return f"rounded to powers of two{' where host RAM has room' if job.stack.pins_if_room else ''}"


def _slack(job: Job, _: str) -> str:
    """The leftovers of the loss's moment are those of the first micro-step; which phase decides is in the list of phases."""
    parts = {
        "side streams": runtime.side_stream_bytes(job)
        + pools.gather_pool_bytes(job, sharding.gathered_parameter_bytes(job))
        + pools.gradient_pool_bytes(job),
        "what early buckets leave of the logits' block": maximum(cache.bucket_leftover_bytes(job), 0),
        "stranded 16-bit logits in the loss": cache.stranded_logits_bytes(job),
        "blocks of scores of no use in backward": score_cache.stranded_scores_bytes(job),
        "weights' blocks from before they were flattened": cache.flattened_leftover_bytes(job),
        "small blocks of the step": cache.small_pool_leftover_bytes(job),
        "orphaned segments after loading": cache.orphaned_bytes(job),
    }
    named = "".join(f", {format_bytes(float(size))} of {name}" for name, size in parts.items() if float(size) >= 1)
    fraction = f"coefficient slack_fraction = {job.coefficients.slack_fraction:.4g} of transient bytes"
    return f"{fraction}, and what is idle at the peak: one layer's forward blocks in the loss{named}; {job.coefficients.name}"


def _lengths(job: Job, _: str) -> str:
    found, share = lengths.records(job), job.coefficients.length_cache_share
    sizes = f"{float(found.total):.2f} longest batches on average (one deviation {float(found.squares) ** 0.5:.2f})"
    return f"coefficient length_cache_share = {share:.4g} of the logits of {sizes}, less what activations take; the order decides"


def _bucket(job: Job, _: str) -> str:
    return (
        f"{sharding.bucket_count(job)} x {format_count(sharding.reduce_bucket_elements(job))} elements x {job.regime.gradient} B"
    )


def _gathered(job: Job, label: str) -> str:
    gathered = sharding.gathered_parameter_bytes(job)
    if "first" in label:
        n_bytes = gathered.first_loss if "loss" in label else gathered.first
    else:
        n_bytes = gathered.loss if "loss" in label else gathered.passes
    return f"{format_count(float(n_bytes) / job.regime.compute)} parameters x {job.regime.compute} B"


def _offloaded_params(job: Job, _: str) -> str:
    partition = format_count(float(job.counts.total / job.hardware.world_size))
    return f"{partition} parameters per process x {job.regime.compute} B, each tensor by itself, {_pinning(job)}"


def _over(*shards: object) -> str:
    sharded = [shard for shard in shards if isinstance(shard, int) and shard > 1]
    return f" / {sharded[0]} processes" if len(sharded) == len(shards) else ""


_DETAILS: dict[str, Callable[[Job, str], str]] = {
    "weights:quantized_weight_bytes": _quantized,
    "weights:outlier_weight_bytes": _outliers,
    "weights:expanded_weight_bytes": lambda job, _: (
        f"{format_count(job.counts.largest_quantizable)} elements x {job.regime.compute} B and their scales"
    ),
    "weights:quantization_constant_bytes": _quantized,
    "weights:unquantized_weight_bytes": _unquantized,
    "weights:adapter_bytes": _adapters,
    "weights:autocast_copy_bytes": _adapters,
    "weights:saved_module_bytes": _saved_modules,
    "optimizer:gradient_bytes": _gradients,
    "optimizer:step_gradient_bytes": _step_gradients,
    "optimizer:ddp_bucket_bytes": _gradients,
    "optimizer:master_weight_bytes": _masters,
    "optimizer:optimizer_state_bytes": _states,
    "optimizer:paged_state_bytes": _states,
    "optimizer:optimizer_temporary_bytes": _states,
    "activations:activations": _activations,
    "activations:final_norm_bytes": lambda job, _: f"{float(job.tokens):.0f} tokens x {job.model.hidden_size} features",
    "activations:embedding_saved_bytes": lambda job, _: f"{float(job.tokens):.0f} tokens x {job.model.hidden_size} features",
    "activations:attention_mask_bytes": lambda job, _: (
        f"{job.recipe.batch.micro_batch} x {job.recipe.batch.seq_len} x {job.recipe.batch.seq_len}"
    ),
    "logits:logits_forward_bytes": _logits,
    "loss:loss_moment": _loss_moment,
    "logits:uncounted_logits_bytes": _coefficient("logits_extra_copies"),
    "activations:uncounted_activation_bytes": _coefficient("activation_share"),
    "moments:tied_table_bytes": lambda job, _: f"{format_count(job.model.token_embedding.param_count)} x {job.regime.gradient} B",
    "runtime:context_bytes": _context,
    "runtime:nccl_bytes": _coefficient("nccl_bytes"),
    "cache:idle_by_phase": _slack,
    "lengths:length_cache": _lengths,
    "runtime:cublas_workspace_bytes": lambda job, _: f"compute capability {job.hardware.gpu.compute_capability or 'unknown'}",
    "weights:quantized_load_extra_bytes": lambda job, _: f"{format_count(job.counts.largest_quantizable)} elements x 2 B",
    "sharding:gradient_bucket_bytes": _bucket,
    "sharding:early_bucket_bytes": _bucket,
    "sharding:kept_bucket_bytes": _bucket,
    "sharding:offload_staging_bytes": lambda job, _: f"largest trained tensor x {job.regime.gradient} B",
    "sharding:gathered_parameter_bytes": _gathered,
    "sharding:received_buffer_bytes": lambda job, _: "the head" if not job.model.tied else "the last block",
    "sharding:loaded_parameter_bytes": lambda job, _: f"largest parameter x {job.regime.compute} B",
    "sharding:persistent_parameter_bytes": lambda job, _: (
        f"{format_count(job.counts.norms + job.counts.block_rest)} parameters x {job.regime.compute} B"
    ),
    "sharding:fsdp_unsharded_gradient_bytes": lambda job, _: (
        f"at most 2 x {format_count(job.counts.block_largest)} parameters x {job.regime.compute} B"
    ),
    "host:process_baseline_bytes": _coefficient("host_process_bytes"),
    "host:offloaded_optimizer_bytes": _pinned,
    "host:offloaded_gradient_bytes": _pinned,
    "host:upload_buffer_bytes": _pinned,
    "host:offloaded_parameter_bytes": _offloaded_params,
    "host:pinned_cache_bytes": lambda *_: "trained parts one by one, rounded to powers of two",
    "host:offloaded_activation_bytes": lambda job, _: f"{job.model.n_layers} block inputs, {_rounding(job)}",
    "host:paged_host_bytes": _states,
}
