"""The table of GPU memory terms: what each is called, which formula gives it, and the phases it lives in."""

from __future__ import annotations

from planner.arrays import is_zero, maximum
from planner.domain.term import Phase, Term
from planner.memory import activations as act
from planner.memory import logits, optimizer, runtime, sharding, weights
from planner.memory.backward import backward_terms
from planner.memory.loss import LossBytes
from planner.memory.parts import Parts
from planner.memory.phases import (
    AFTER_BACKWARD,
    AFTER_STEP,
    ALL_PHASES,
    BACKWARD,
    FORWARD,
    LOSS,
    PASSES,
    STEPS,
    TRAINING,
    kind_of,
    make_term,
)
from planner.program.job import Job

GATHERED = "planner.memory.sharding:gathered_parameter_bytes"
TIED_TABLE = "planner.memory.moments:tied_table_bytes"
_LOAD: frozenset[Phase] = frozenset({"load"})
_FIRST_PASS: frozenset[Phase] = frozenset({"forward", "backward"})
_LATER_PASS: frozenset[Phase] = frozenset({"forward_2", "backward_2"})
_FIRST_LOSS: frozenset[Phase] = frozenset({"loss"})
_LATER_LOSS: frozenset[Phase] = frozenset({"loss_2"})
_LATER_PASSES: frozenset[Phase] = frozenset({"forward_2", "loss_2"})


def tensor_terms(job: Job, parts: Parts) -> tuple[Term, ...]:
    """Every term that lives in the allocator; ``parts``: those of ``job``."""
    amounts, in_loss = parts.activations, parts.loss
    return (
        *_weight_terms(job),
        *_state_terms(job),
        *backward_terms(job, amounts),
        *_pass_terms(job, amounts, in_loss),
        *_loss_terms(job, in_loss),
        *_temporary_terms(job),
        *_sharding_terms(job, parts),
        *_uncounted_terms(job, amounts),
    )


def _weight_terms(job: Job) -> tuple[Term, ...]:
    """Weights and adapters: what is there from loading on."""
    # k-bit matrices that the engine cannot divide are not its to offload either.
    gpu_base = 0 if job.recipe.offloads_params and job.recipe.divides_base else 1
    return (
        *make_term(
            "weights",
            "quantized weights",
            gpu_base * weights.quantized_weight_bytes(job),
            ALL_PHASES,
            "weights:quantized_weight_bytes",
            kind_of(job.weight_shards),
        ),
        *make_term(
            "weights",
            "weights",
            (0 if job.recipe.offloads_params else 1) * weights.unquantized_weight_bytes(job),
            ALL_PHASES,
            "weights:unquantized_weight_bytes",
            kind_of(job.hardware.world_size) if job.recipe.sharding.divides_weights else "replicated",
        ),
        *make_term(
            "quantization_constants",
            "quantization constants",
            weights.quantization_constant_bytes(job),
            ALL_PHASES,
            "weights:quantization_constant_bytes",
            "replicated",
        ),
        *_adapter_terms(job),
    )


def _adapter_terms(job: Job) -> tuple[Term, ...]:
    """LoRA matrices and copies of modules that are trained whole."""
    gpu_weights, kind = 0 if job.recipe.offloads_params else 1, kind_of(job.weight_shards)
    adapters = gpu_weights * weights.adapter_bytes(job)
    return (
        *make_term("adapters", "LoRA adapters", adapters, TRAINING, "weights:adapter_bytes", kind),
        *make_term(
            "adapters",
            "modules to save",
            gpu_weights * weights.saved_module_bytes(job),
            TRAINING,
            "weights:saved_module_bytes",
            kind,
        ),
    )


def _state_terms(job: Job) -> tuple[Term, ...]:
    """What training keeps beside the weights: masters, optimizer states, a workspace."""
    states = kind_of(job.optimizer_shards)
    return (
        *make_term(
            "master_weights",
            "fp32 master weights",
            optimizer.master_weight_bytes(job),
            STEPS,
            "optimizer:master_weight_bytes",
            states,
        ),
        *make_term(
            "optimizer_states",
            "optimizer states",
            optimizer.optimizer_state_bytes(job),
            AFTER_STEP,
            "optimizer:optimizer_state_bytes",
            states,
        ),
        *make_term(
            "other_temporaries",
            "cuBLAS workspace",
            runtime.cublas_workspace_bytes(job),
            STEPS,
            "runtime:cublas_workspace_bytes",
            "replicated",
        ),
    )


def _pass_terms(job: Job, amounts: act.Activations, in_loss: LossBytes) -> tuple[Term, ...]:
    """What the forward and backward passes of the blocks hold."""
    mask = act.attention_mask_bytes(job)
    mask_phases = PASSES if act.mask_is_held(job) else FORWARD
    formula = "activations:activations"
    embedded = act.embedding_saved_bytes(job)
    return (
        *make_term(
            "saved_activations",
            "embeddings",
            embedded,
            PASSES,
            "activations:embedding_saved_bytes",
            "transient",
        ),
        *make_term("saved_activations", "saved activations", amounts.kept, FORWARD | LOSS, formula, "transient"),
        *make_term("block_recompute", "one block, forward", amounts.forward_extra, FORWARD, formula, "transient"),
        *make_term("other_temporaries", "attention mask", mask, mask_phases, "activations:attention_mask_bytes", "transient"),
        *_copy_terms(job, in_loss),
    )


def _copy_terms(job: Job, in_loss: LossBytes) -> tuple[Term, ...]:
    """Autocast's copies of weights: its cache alone holds those of recomputed layers, the graph all others until backward."""
    label, formula = "autocast weight copies", "weights:autocast_copy_bytes"
    kept = weights.autocast_copy_bytes(job) - in_loss.cached
    return (
        *make_term("autocast_copies", label, in_loss.cached, FORWARD, formula, "transient"),
        *make_term("autocast_copies", label, in_loss.moment.copies, LOSS, "loss:loss_moment", "transient"),
        *make_term("autocast_copies", label, kept, PASSES, formula, "transient"),
    )


def _uncounted_terms(job: Job, amounts: act.Activations) -> tuple[Term, ...]:
    """What a calibration found beside the counted tensors; none of it without one, so that the physics stays as it is."""
    terms: tuple[Term, ...] = ()
    if not is_zero(job.coefficients.activation_share):
        formula = "activations:uncounted_activation_bytes"
        n_bytes = act.uncounted_activation_bytes(job, amounts)
        live = PASSES
        terms = make_term("other_temporaries", "other activations", n_bytes, live, formula, "transient")
    if not is_zero(job.coefficients.logits_extra_copies):
        formula, n_bytes = "logits:uncounted_logits_bytes", logits.uncounted_logits_bytes(job)
        terms = (*terms, *make_term("logits_and_loss", "other logits copies", n_bytes, LOSS, formula, "transient"))
    return terms


def _loss_terms(job: Job, in_loss: LossBytes) -> tuple[Term, ...]:
    """Logits and what is made of them, in training and in evaluation."""
    head = logits.normhead_forward_bytes(job) + logits.head_dequant_bytes(job)
    forward = logits.logits_forward_bytes(job)
    final_norm, formula = act.final_norm_bytes(job), "logits:logits_forward_bytes"
    evaluation: frozenset[Phase] = frozenset({"eval"})
    return (
        *make_term("logits_and_loss", "final norm and head input", final_norm, LOSS, "activations:final_norm_bytes", "transient"),
        *make_term("logits_and_loss", "logits and loss", in_loss.moment.logits + head, LOSS, "loss:loss_moment", "transient"),
        *make_term("logits_and_loss", "evaluation logits", forward + head, evaluation, formula, "transient"),
    )


def _temporary_terms(job: Job) -> tuple[Term, ...]:
    """Copies made by loading, by DDP and by the optimizer's step."""
    buckets = optimizer.ddp_bucket_bytes(job)
    in_step = optimizer.optimizer_temporary_bytes(job)
    outliers = weights.outlier_weight_bytes(job)
    buffer, expanding = weights.expanded_weight_bytes(job), "weights:expanded_weight_bytes"
    loading, load = weights.quantized_load_extra_bytes(job), "weights:quantized_load_extra_bytes"
    return (
        *make_term("gradient_buckets", "DDP buckets", buckets, STEPS, "optimizer:ddp_bucket_bytes", "replicated"),
        *make_term(
            "optimizer_temporaries",
            "optimizer temporaries",
            in_step,
            AFTER_BACKWARD,
            "optimizer:optimizer_temporary_bytes",
            "transient",
        ),
        *make_term("dequantization", "buffer for expanded weights", buffer, STEPS, expanding, "replicated"),
        *make_term("dequantization", "outlier columns", outliers, STEPS, "weights:outlier_weight_bytes", "replicated"),
        *make_term("dequantization", "16-bit copy while loading", loading, frozenset({"load"}), load, "transient"),
    )


def _sharding_terms(job: Job, parts: Parts) -> tuple[Term, ...]:
    return (
        *_bucket_terms(job, parts.loss),
        *_gathered_terms(job, parts),
        *make_term(
            "gathered_parameters",
            "persistent small parameters",
            sharding.persistent_parameter_bytes(job),
            STEPS,
            "sharding:persistent_parameter_bytes",
            "replicated",
        ),
        *make_term(
            "gathered_parameters",
            "whole gradients of one block",
            sharding.fsdp_unsharded_gradient_bytes(job),
            BACKWARD,
            "sharding:fsdp_unsharded_gradient_bytes",
            "transient",
        ),
    )


def _gathered_terms(job: Job, parts: Parts) -> tuple[Term, ...]:
    """Parameters that are whole: while they are loaded, in the first pass, and in later ones."""
    gathered, formula = parts.gathered, GATHERED.removeprefix("planner.memory.")
    received = parts.loss.beside(in_forward=sharding.received_buffer_bytes(job))
    receiving = "sharding:received_buffer_bytes"
    loaded, loading = sharding.loaded_parameter_bytes(job), "sharding:loaded_parameter_bytes"
    amounts = (
        ("gathered parameters, first pass", gathered.first, _FIRST_PASS),
        ("gathered parameters, first loss", gathered.first_loss, _FIRST_LOSS),
        ("gathered parameters, later passes", gathered.passes, _LATER_PASS),
        ("gathered parameters, later loss", gathered.loss, _LATER_LOSS),
    )
    return (
        *make_term("gathered_parameters", "parameter before it is divided", loaded, _LOAD, loading, "transient"),
        *make_term("gathered_parameters", "received buffer beside the logits", received, LOSS, receiving, "transient"),
        *(
            term
            for label, size, phases in amounts
            for term in make_term("gathered_parameters", label, size, phases, formula, "transient")
        ),
    )


def _bucket_terms(job: Job, in_loss: LossBytes) -> tuple[Term, ...]:
    """Memory through which gradients go on their way to the other processes or to the host."""
    staged, staging = sharding.offload_staging_bytes(job), "sharding:offload_staging_bytes"
    buckets, kept = sharding.gradient_bucket_bytes(job), sharding.kept_bucket_bytes(job)
    # Stage 3 makes its bucket once and for all, the others theirs anew in every backward.
    phases = STEPS if job.recipe.sharding.is_zero3 else BACKWARD
    early = in_loss.beside(in_backward=sharding.early_bucket_bytes(job))
    between, beside = "sharding:kept_bucket_bytes", "sharding:early_bucket_bytes"
    return (
        *make_term("gradient_buckets", "ZeRO gradient buckets", buckets, phases, "sharding:gradient_bucket_bytes", "transient"),
        *make_term("gradient_buckets", "ZeRO buckets beside the loss", early, _FIRST_LOSS, beside, "transient"),
        *make_term(
            "gradient_buckets", "ZeRO buckets beside the loss", maximum(early - kept, 0), _LATER_LOSS, beside, "transient"
        ),
        *make_term("gradient_buckets", "ZeRO-1 buckets between micro-steps", kept, _LATER_PASSES, between, "transient"),
        *make_term("gradient_buckets", "staging of offloaded gradients", staged, STEPS, staging, "replicated"),
    )


def driver_terms(job: Job) -> tuple[Term, ...]:
    """What the device holds outside the allocator."""
    return (
        *make_term(
            "context", "CUDA context and kernels", runtime.context_bytes(job), ALL_PHASES, "runtime:context_bytes", "replicated"
        ),
        *make_term("nccl", "NCCL buffers", runtime.nccl_bytes(job), ALL_PHASES, "runtime:nccl_bytes", "replicated"),
        *make_term(
            "paged_optimizer_states",
            "paged optimizer states",
            optimizer.paged_state_bytes(job),
            AFTER_STEP,
            "optimizer:paged_state_bytes",
            kind_of(job.optimizer_shards),
        ),
    )
