"""Terms under the names that people use, for the short report: the largest few, and all others as one."""

from __future__ import annotations

from planner.domain.prediction import Prediction
from planner.domain.term import TermName
from planner.report.prediction.subject import terms_at_peak

# Terms of one name are parts of the same thing.
_PARTS: dict[TermName, str] = {
    "weights": "weights",
    "quantization_constants": "weights",
    "adapters": "LoRA adapters",
    "master_weights": "fp32 master weights",
    "autocast_copies": "16-bit weight copies",
    "gradients": "gradients",
    "gradient_buckets": "gradients",
    "optimizer_states": "optimizer states",
    "optimizer_temporaries": "optimizer states",
    "paged_optimizer_states": "optimizer states",
    "saved_activations": "activations",
    "block_recompute": "activations",
    "logits_and_loss": "logits and loss",
    "kv_cache": "KV cache of generation",
    "vllm_awake": "vLLM while it generates",
    "dequantization": "dequantized weights",
    "gathered_parameters": "gathered parameters",
    "other_temporaries": "temporary buffers",
    "allocator_slack": "caching allocator",
    "context": "CUDA context",
    "nccl": "NCCL buffers",
    "vllm_engine": "vLLM beside the training",
}
_REST = "everything else"


def largest_parts(prediction: Prediction, count: int) -> tuple[tuple[str, float], ...]:
    """Names and bytes of the ``count`` largest parts of the peak, the largest first,
    and everything else as one; they add up to the peak.
    """
    sizes: dict[str, float] = {}
    for term in terms_at_peak(prediction):
        part = _PARTS[term.name]
        sizes[part] = sizes.get(part, 0.0) + float(term.n_bytes)
    ordered = sorted(sizes.items(), key=lambda each: -each[1])
    # One part that is left over is shown under its own name.
    shown, others = (ordered, []) if len(ordered) == count + 1 else (ordered[:count], ordered[count:])
    rest = [(_REST, sum(size for _, size in others))] if others else []
    return (*shown, *rest)
