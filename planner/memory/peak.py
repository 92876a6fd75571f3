"""The table of contents of GPU memory: every term with the phases it lives in, and the peak as a maximum over phases."""

from __future__ import annotations

from planner.arrays import is_zero, maximum, minimum, where
from planner.domain.prediction import MemoryPrediction, PhasePeak
from planner.domain.recipe import Number
from planner.domain.term import ALLOCATED_TERMS, DRIVER_TERMS, PHASES, Phase, Term, TermKind, TermName
from planner.memory import activations as act
from planner.memory import logits, optimizer, runtime, sharding, weights
from planner.memory.job import Job

_ALL: frozenset[Phase] = frozenset(PHASES)
_TRAINING: frozenset[Phase] = _ALL - {"load"}
_STEPS: frozenset[Phase] = frozenset({"forward", "loss", "backward", "optimizer_step", "forward_2", "loss_2", "backward_2"})
_AFTER_BACKWARD: frozenset[Phase] = frozenset({"optimizer_step"})
_AFTER_STEP: frozenset[Phase] = frozenset({"forward_2", "loss_2", "backward_2", "optimizer_step", "eval", "save"})
_FORWARD: frozenset[Phase] = frozenset({"forward", "forward_2"})
_LOSS: frozenset[Phase] = frozenset({"loss", "loss_2"})
_BACKWARD: frozenset[Phase] = frozenset({"backward", "backward_2"})


def predict_memory(job: Job) -> MemoryPrediction:
    """Terms, phase peaks and the three levels for one GPU."""
    terms = (*_persistent_terms(job), *_step_terms(job), *_sharding_terms(job))
    allocated = _sum_by_phase(terms, ALLOCATED_TERMS)
    allocated_peak = maximum(*allocated.values())
    slack = _reserved_peak(job, terms, allocated) - allocated_peak
    slack_term = _term("allocator_slack", "allocator slack", slack, _ALL, "runtime:allocator_slack_bytes", "transient")
    driver_terms = _driver_terms(job)
    outside: Number = sum(term.n_bytes for term in driver_terms)
    uncapped = allocated_peak + slack + outside
    limit = _limit_bytes(job)
    driver_peak = uncapped if limit is None else minimum(uncapped, limit)
    return MemoryPrediction(
        terms=(*terms, slack_term, *driver_terms),
        phases=tuple(PhasePeak(phase, amount, amount + slack, amount + slack + outside) for phase, amount in allocated.items()),
        limiting_phase=_limiting_phase(allocated),
        allocated_peak_bytes=allocated_peak,
        reserved_peak_bytes=minimum(allocated_peak + slack, maximum(allocated_peak, driver_peak - outside)),
        driver_peak_bytes=driver_peak,
        uncapped_driver_bytes=uncapped,
        must_have_bytes=allocated_peak + outside - optimizer.paged_state_bytes(job),
        limit_bytes=limit,
    )


def _reserved_peak(job: Job, terms: tuple[Term, ...], allocated: dict[Phase, Number]) -> Number:
    """Most bytes that the allocator reserves on an unlimited card.

    Pools are per stream: what ZeRO-3 gathers and reduces on its own streams cannot serve the main one, so those pools add up with the
    main pool's peak although they are not full at the same time.
    """
    side: Number = 0
    main = allocated
    if job.recipe.sharding == "zero3":
        side = sharding.gathered_parameter_bytes(job)
        gathered = _sum_by_phase(terms, frozenset({"gathered_parameters"}))
        main = {phase: amount - gathered[phase] for phase, amount in allocated.items()}
    pools = maximum(*main.values()) + side
    transient = pools - _resident_bytes(terms)
    passes = maximum(*_sum_by_phase(terms, _PASS_TERMS).values())
    in_step = runtime.reserved_in_step_bytes(job, allocated["optimizer_step"] + side, passes)
    return maximum(pools, in_step, *allocated.values()) + runtime.allocator_slack_bytes(job, maximum(transient, 0))


# What the passes themselves hold: these blocks are cached when the step begins.
_PASS_TERMS: frozenset[str] = frozenset({"saved_activations", "block_recompute", "logits_and_loss"})


def _limit_bytes(job: Job) -> int | None:
    hardware = job.hardware
    visible = hardware.gpu.visible_memory_bytes
    return None if visible is None else visible - hardware.gpu_reserved_bytes


def _limiting_phase(allocated: dict[Phase, Number]) -> Phase:
    """The phase with the highest peak; for arrays the one that is highest most often."""
    try:
        return max(allocated, key=lambda phase: float(allocated[phase]))
    except TypeError:
        import numpy as np

        return max(allocated, key=lambda phase: float(np.mean(allocated[phase])))


def _sum_by_phase(terms: tuple[Term, ...], names: frozenset[str]) -> dict[Phase, Number]:
    """Bytes alive in each phase, over the terms called ``names``."""
    totals: dict[Phase, Number] = dict.fromkeys(PHASES, 0)
    for term in terms:
        if term.name in names and not is_zero(term.n_bytes):
            for phase in term.phases:
                totals[phase] = totals[phase] + term.n_bytes
    return totals


def _resident_bytes(terms: tuple[Term, ...]) -> Number:
    """Bytes that never leave: they fill their segments once and do not fragment."""
    return sum(term.n_bytes for term in terms if term.kind != "transient")


def _term(name: TermName, label: str, n_bytes: Number, phases: frozenset[Phase], formula: str, kind: TermKind) -> Term:
    return Term(name, label, n_bytes, kind, phases, f"planner.memory.{formula}")


def _kind(shards: Number) -> TermKind:
    return "replicated" if isinstance(shards, int) and shards == 1 else "sharded"


def _persistent_terms(job: Job) -> tuple[Term, ...]:
    gpu_weights = 0 if job.recipe.offloads_params else 1
    kind = _kind(job.weight_shards)
    states = _kind(job.optimizer_shards)
    return (
        _term("weights", "quantized weights", gpu_weights * weights.quantized_weight_bytes(job), _ALL, "weights:quantized_weight_bytes", kind),
        _term(
            "weights",
            "weights",
            gpu_weights * weights.unquantized_weight_bytes(job),
            _ALL,
            "weights:unquantized_weight_bytes",
            _kind(job.hardware.world_size) if job.recipe.sharding in ("zero3", "fsdp", "fsdp1", "hsdp") else "replicated",
        ),
        _term(
            "quantization_constants",
            "quantization constants",
            gpu_weights * weights.quantization_constant_bytes(job),
            _ALL,
            "weights:quantization_constant_bytes",
            kind,
        ),
        _term("adapters", "LoRA adapters", gpu_weights * weights.adapter_bytes(job), _TRAINING, "weights:adapter_bytes", kind),
        _term("adapters", "modules to save", gpu_weights * weights.saved_module_bytes(job), _TRAINING, "weights:saved_module_bytes", kind),
        _term("master_weights", "fp32 master weights", optimizer.master_weight_bytes(job), _STEPS, "optimizer:master_weight_bytes", states),
        _term(
            "optimizer_states", "optimizer states", optimizer.optimizer_state_bytes(job), _AFTER_STEP, "optimizer:optimizer_state_bytes", states
        ),
        _term("other_temporaries", "cuBLAS workspace", runtime.cublas_workspace_bytes(job), _STEPS, "runtime:cublas_workspace_bytes", "replicated"),
    )


def _step_terms(job: Job) -> tuple[Term, ...]:
    amounts = act.activations(job)
    gradients = optimizer.gradient_bytes(job)
    copies = weights.autocast_copy_bytes(job)
    # First micro-step: activations shrink while gradients grow, so the peak is at the start or at the end of backward.
    at_start = amounts.kept >= amounts.one_block + gradients
    kept_first = where(at_start, amounts.kept, amounts.one_block)
    gradients_first = where(at_start, 0, gradients)
    mask = act.attention_mask_bytes(job)
    head = logits.normhead_forward_bytes(job) + logits.head_dequant_bytes(job)
    loss = maximum(logits.logits_forward_bytes(job), logits.logits_backward_bytes(job) + logits.normhead_backward_bytes(job)) + head
    first, second = frozenset({"backward"}), frozenset({"backward_2"})
    resident_gradients: frozenset[Phase] = frozenset({"optimizer_step", "forward_2", "loss_2", "backward_2"})
    kept_phases: frozenset[Phase] = _FORWARD | _LOSS | second
    formula = "activations:activations"
    return (
        _term("saved_activations", "saved activations", amounts.kept, kept_phases, formula, "transient"),
        _term("saved_activations", "saved activations, first backward", kept_first, first, formula, "transient"),
        _term("block_recompute", "one block, forward", amounts.forward_extra, _FORWARD, formula, "transient"),
        _term("block_recompute", "one block, backward", amounts.backward_extra, _BACKWARD, formula, "transient"),
        _term("logits_and_loss", "final norm and head input", act.final_norm_bytes(job), _LOSS, "activations:final_norm_bytes", "transient"),
        _term("logits_and_loss", "logits and loss", loss, _LOSS, "logits:logits_forward_bytes", "transient"),
        _term("logits_and_loss", "evaluation logits", logits.logits_forward_bytes(job) + head, frozenset({"eval"}), "logits:logits_forward_bytes", "transient"),
        _term("other_temporaries", "attention mask", mask, _FORWARD | _LOSS, "activations:attention_mask_bytes", "transient"),
        _term("autocast_copies", "autocast weight copies", copies, _FORWARD | _LOSS, "weights:autocast_copy_bytes", "transient"),
        _term("gradients", "gradients", gradients, resident_gradients, "optimizer:gradient_bytes", _kind(job.gradient_shards)),
        _term("gradients", "gradients, first backward", gradients_first, first, "optimizer:gradient_bytes", "transient"),
        _term("gradient_buckets", "DDP buckets", optimizer.ddp_bucket_bytes(job), _STEPS, "optimizer:ddp_bucket_bytes", "replicated"),
        _term(
            "optimizer_temporaries",
            "optimizer temporaries",
            optimizer.optimizer_temporary_bytes(job),
            _AFTER_BACKWARD,
            "optimizer:optimizer_temporary_bytes",
            "transient",
        ),
        _term("dequantization", "16-bit copy while loading", weights.quantized_load_extra_bytes(job), frozenset({"load"}), "weights:quantized_load_extra_bytes", "transient"),
    )


def _sharding_terms(job: Job) -> tuple[Term, ...]:
    live = _FORWARD | _LOSS | _BACKWARD
    return (
        _term("gradient_buckets", "ZeRO gradient buckets", sharding.gradient_bucket_bytes(job), _BACKWARD, "sharding:gradient_bucket_bytes", "transient"),
        _term("gathered_parameters", "gathered parameters", sharding.gathered_parameter_bytes(job), live, "sharding:gathered_parameter_bytes", "transient"),
        _term(
            "gathered_parameters",
            "persistent small parameters",
            sharding.persistent_parameter_bytes(job),
            _STEPS,
            "sharding:persistent_parameter_bytes",
            "replicated",
        ),
        _term(
            "gathered_parameters",
            "whole gradients of one block",
            sharding.fsdp_unsharded_gradient_bytes(job),
            _BACKWARD,
            "sharding:fsdp_unsharded_gradient_bytes",
            "transient",
        ),
    )


def _driver_terms(job: Job) -> tuple[Term, ...]:
    terms = (
        _term("context", "CUDA context and kernels", runtime.context_bytes(job), _ALL, "runtime:context_bytes", "replicated"),
        _term("nccl", "NCCL buffers", runtime.nccl_bytes(job), _ALL, "runtime:nccl_bytes", "replicated"),
        _term("libraries", "paged optimizer states", optimizer.paged_state_bytes(job), _AFTER_STEP, "optimizer:paged_state_bytes", "sharded"),
    )
    assert all(term.name in DRIVER_TERMS for term in terms)
    return terms
