"""The table of GPU memory terms: what each is called, which formula gives it, and the phases it lives in."""

from __future__ import annotations

from planner.arrays import is_zero, maximum, where
from planner.domain.recipe import Number
from planner.domain.term import PHASES, Phase, Term, TermKind, TermName
from planner.memory import activations as act
from planner.memory import logits, optimizer, runtime, sharding, weights
from planner.memory.job import Job

ALL_PHASES: frozenset[Phase] = frozenset(PHASES)
_TRAINING: frozenset[Phase] = ALL_PHASES - {"load"}
_STEPS: frozenset[Phase] = frozenset({"forward", "loss", "backward", "optimizer_step", "forward_2", "loss_2", "backward_2"})
_AFTER_BACKWARD: frozenset[Phase] = frozenset({"optimizer_step"})
_AFTER_STEP: frozenset[Phase] = frozenset({"forward_2", "loss_2", "backward_2", "optimizer_step", "eval", "save"})
_FORWARD: frozenset[Phase] = frozenset({"forward", "forward_2"})
_LOSS: frozenset[Phase] = frozenset({"loss", "loss_2"})
_BACKWARD: frozenset[Phase] = frozenset({"backward", "backward_2"})


def tensor_terms(job: Job) -> tuple[Term, ...]:
    """Every term that lives in the allocator."""
    amounts = act.activations(job)
    resident = (*_weight_terms(job), *_state_terms(job))
    passes = (*_backward_terms(job, amounts), *_pass_terms(job, amounts), *_loss_terms(job))
    return (*resident, *passes, *_temporary_terms(job), *_sharding_terms(job), *_uncounted_terms(job, amounts))


def make_term(name: TermName, label: str, n_bytes: Number, phases: frozenset[Phase], formula: str, kind: TermKind) -> Term:
    """A term whose ``formula`` is ``module:function`` inside this package."""
    return Term(name, label, n_bytes, kind, phases, f"planner.memory.{formula}")


def _kind(shards: Number) -> TermKind:
    return "replicated" if isinstance(shards, int) and shards == 1 else "sharded"


def _weight_terms(job: Job) -> tuple[Term, ...]:
    """Weights and adapters: what is there from loading on."""
    gpu_weights = 0 if job.recipe.offloads_params else 1
    # k-bit matrices that the engine cannot divide are not its to offload either.
    gpu_base = 0 if job.recipe.offloads_params and job.recipe.divides_base else 1
    kind = _kind(job.weight_shards)
    adapters = gpu_weights * weights.adapter_bytes(job)
    return (
        make_term(
            "weights",
            "quantized weights",
            gpu_base * weights.quantized_weight_bytes(job),
            ALL_PHASES,
            "weights:quantized_weight_bytes",
            kind,
        ),
        make_term(
            "weights",
            "weights",
            gpu_weights * weights.unquantized_weight_bytes(job),
            ALL_PHASES,
            "weights:unquantized_weight_bytes",
            _kind(job.hardware.world_size) if job.recipe.sharding in ("zero3", "fsdp", "fsdp1", "hsdp") else "replicated",
        ),
        make_term(
            "quantization_constants",
            "quantization constants",
            gpu_base * weights.quantization_constant_bytes(job),
            ALL_PHASES,
            "weights:quantization_constant_bytes",
            kind,
        ),
        make_term("adapters", "LoRA adapters", adapters, _TRAINING, "weights:adapter_bytes", kind),
        make_term(
            "adapters",
            "modules to save",
            gpu_weights * weights.saved_module_bytes(job),
            _TRAINING,
            "weights:saved_module_bytes",
            kind,
        ),
    )


def _state_terms(job: Job) -> tuple[Term, ...]:
    """What training keeps beside the weights: masters, optimizer states, a workspace."""
    states = _kind(job.optimizer_shards)
    return (
        make_term(
            "master_weights",
            "fp32 master weights",
            optimizer.master_weight_bytes(job),
            _STEPS,
            "optimizer:master_weight_bytes",
            states,
        ),
        make_term(
            "optimizer_states",
            "optimizer states",
            optimizer.optimizer_state_bytes(job),
            _AFTER_STEP,
            "optimizer:optimizer_state_bytes",
            states,
        ),
        make_term(
            "other_temporaries",
            "cuBLAS workspace",
            runtime.cublas_workspace_bytes(job),
            _STEPS,
            "runtime:cublas_workspace_bytes",
            "replicated",
        ),
    )


def _pass_terms(job: Job, amounts: act.Activations) -> tuple[Term, ...]:
    """What the forward and backward passes of the blocks hold."""
    copies = weights.autocast_copy_bytes(job)
    # Without checkpointing the graph holds the copies until each layer has run backward.
    copied = _FORWARD | _LOSS if job.recipe.gradient_checkpointing else _FORWARD | _LOSS | _BACKWARD
    mask = act.attention_mask_bytes(job)
    formula = "activations:activations"
    return (
        make_term("saved_activations", "saved activations", amounts.kept, _FORWARD | _LOSS, formula, "transient"),
        make_term("block_recompute", "one block, forward", amounts.forward_extra, _FORWARD, formula, "transient"),
        make_term("block_recompute", "one block, backward", amounts.backward_extra, _BACKWARD, formula, "transient"),
        make_term("other_temporaries", "attention mask", mask, _FORWARD | _LOSS, "activations:attention_mask_bytes", "transient"),
        make_term("autocast_copies", "autocast weight copies", copies, copied, "weights:autocast_copy_bytes", "transient"),
    )


def _uncounted_terms(job: Job, amounts: act.Activations) -> tuple[Term, ...]:
    """What a calibration found beside the counted tensors; none of it without one, so that the physics stays as it is."""
    terms: tuple[Term, ...] = ()
    if not is_zero(job.coefficients.activation_share):
        formula = "activations:uncounted_activation_bytes"
        n_bytes = act.uncounted_activation_bytes(job, amounts)
        live = _FORWARD | _LOSS | _BACKWARD
        terms = (make_term("other_temporaries", "activations not in the ledger", n_bytes, live, formula, "transient"),)
    if not is_zero(job.coefficients.logits_extra_copies):
        formula, n_bytes = "logits:uncounted_logits_bytes", logits.uncounted_logits_bytes(job)
        terms = (*terms, make_term("logits_and_loss", "logits copies not in the switches", n_bytes, _LOSS, formula, "transient"))
    return terms


def _loss_terms(job: Job) -> tuple[Term, ...]:
    """Logits and what is made of them, in training and in evaluation."""
    head = logits.normhead_forward_bytes(job) + logits.head_dequant_bytes(job)
    forward = logits.logits_forward_bytes(job)
    backward = logits.logits_backward_bytes(job) + logits.normhead_backward_bytes(job)
    loss = maximum(forward, backward, logits.head_backward_bytes(job)) + head
    final_norm, formula = act.final_norm_bytes(job), "logits:logits_forward_bytes"
    evaluation: frozenset[Phase] = frozenset({"eval"})
    return (
        make_term("logits_and_loss", "final norm and head input", final_norm, _LOSS, "activations:final_norm_bytes", "transient"),
        make_term("logits_and_loss", "logits and loss", loss, _LOSS, formula, "transient"),
        make_term("logits_and_loss", "evaluation logits", forward + head, evaluation, formula, "transient"),
    )


def _temporary_terms(job: Job) -> tuple[Term, ...]:
    """Copies made by loading, by DDP and by the optimizer's step."""
    buckets = optimizer.ddp_bucket_bytes(job)
    in_step = optimizer.optimizer_temporary_bytes(job)
    outliers = weights.outlier_weight_bytes(job)
    loading, load = weights.quantized_load_extra_bytes(job), "weights:quantized_load_extra_bytes"
    return (
        make_term("gradient_buckets", "DDP buckets", buckets, _STEPS, "optimizer:ddp_bucket_bytes", "replicated"),
        make_term(
            "optimizer_temporaries",
            "optimizer temporaries",
            in_step,
            _AFTER_BACKWARD,
            "optimizer:optimizer_temporary_bytes",
            "transient",
        ),
        make_term("dequantization", "outlier columns", outliers, _STEPS, "weights:outlier_weight_bytes", "replicated"),
        make_term("dequantization", "16-bit copy while loading", loading, frozenset({"load"}), load, "transient"),
    )


def _backward_terms(job: Job, amounts: act.Activations) -> tuple[Term, ...]:
    """Gradients and what is still saved, in the passes.

    In a micro-step that starts without gradients, activations shrink while gradients grow, so its peak is at one end of backward.
    With accumulation, micro-steps after the first start with all gradients.
    """
    gradients = optimizer.gradient_bytes(job)
    accumulates = job.recipe.batch.grad_accum > 1
    at_start = amounts.kept >= amounts.one_block + gradients
    kept_first = where(at_start, amounts.kept, amounts.one_block)
    gradients_first = where(at_start, 0, gradients)
    # At the end of backward the last block is done, so only what exceeds it adds to the peak.
    tied = maximum(_tied_table_bytes(job) - amounts.one_block - amounts.backward_extra, 0)
    tied = where(at_start, 0, tied)
    passes_2: frozenset[Phase] = frozenset({"forward_2", "loss_2"})
    first: frozenset[Phase] = frozenset({"backward"})
    second: frozenset[Phase] = frozenset({"backward_2"})
    formula, kind = "optimizer:gradient_bytes", _kind(job.gradient_shards)
    in_step = optimizer.step_gradient_bytes(job)
    step_kind = _kind(job.optimizer_shards) if job.recipe.sharding == "zero1" else kind
    return (
        make_term("saved_activations", "saved, first backward", kept_first, first, "activations:activations", "transient"),
        make_term(
            "saved_activations",
            "saved, later backward",
            where(accumulates, amounts.kept, kept_first),
            second,
            "activations:activations",
            "transient",
        ),
        make_term("gradients", "gradients", in_step, _AFTER_BACKWARD, "optimizer:step_gradient_bytes", step_kind),
        make_term("gradients", "gradients, first backward", gradients_first, first, formula, "transient"),
        make_term(
            "gradients", "gradients, later backward", where(accumulates, gradients, gradients_first), second, formula, kind
        ),
        make_term("gradients", "accumulated gradients", where(accumulates, gradients, 0), passes_2, formula, kind),
        make_term("gradients", "gradient of the tied table", tied, _BACKWARD, "terms:_tied_table_bytes", "transient"),
    )


def _tied_table_bytes(job: Job) -> int:
    """Dense gradient of a trained table that is tied to the head, made at the end of backward beside the head's.

    Formula: vocabulary * hidden in the gradient's dtype.  Source: torch 2.13 derivatives.yaml, ``embedding`` (dense backward).
    """
    tied = job.model.tied and job.recipe.method == "full"
    return job.model.token_embedding.param_count * job.regime.gradient if tied else 0


def _sharding_terms(job: Job) -> tuple[Term, ...]:
    live = _FORWARD | _LOSS | _BACKWARD
    staged, staging = sharding.offload_staging_bytes(job), "sharding:offload_staging_bytes"
    return (
        make_term(
            "gradient_buckets",
            "ZeRO gradient buckets",
            sharding.gradient_bucket_bytes(job),
            _BACKWARD,
            "sharding:gradient_bucket_bytes",
            "transient",
        ),
        make_term("gradient_buckets", "staging of offloaded gradients", staged, _STEPS, staging, "replicated"),
        make_term(
            "gathered_parameters",
            "gathered parameters",
            sharding.gathered_parameter_bytes(job),
            live,
            "sharding:gathered_parameter_bytes",
            "transient",
        ),
        make_term(
            "gathered_parameters",
            "persistent small parameters",
            sharding.persistent_parameter_bytes(job),
            _STEPS,
            "sharding:persistent_parameter_bytes",
            "replicated",
        ),
        make_term(
            "gathered_parameters",
            "whole gradients of one block",
            sharding.fsdp_unsharded_gradient_bytes(job),
            _BACKWARD,
            "sharding:fsdp_unsharded_gradient_bytes",
            "transient",
        ),
    )


def driver_terms(job: Job) -> tuple[Term, ...]:
    """What the device holds outside the allocator."""
    return (
        make_term(
            "context", "CUDA context and kernels", runtime.context_bytes(job), ALL_PHASES, "runtime:context_bytes", "replicated"
        ),
        make_term("nccl", "NCCL buffers", runtime.nccl_bytes(job), ALL_PHASES, "runtime:nccl_bytes", "replicated"),
        make_term(
            "paged_optimizer_states",
            "paged optimizer states",
            optimizer.paged_state_bytes(job),
            _AFTER_STEP,
            "optimizer:paged_state_bytes",
            _kind(job.optimizer_shards),
        ),
    )
