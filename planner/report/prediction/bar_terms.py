"""Terms under the names that people use, for the bar of the short report: the largest few,
and all others as one.
"""

from __future__ import annotations

from planner.domain.prediction import Prediction
from planner.domain.term import TermName
from planner.report.prediction.subject import terms_at_peak
from planner.report.render.layout import Segment

# Letter of the bar and name.  Terms of one name are parts of the same thing.
_PARTS: dict[TermName, tuple[str, str]] = {
    "weights": ("w", "weights"),
    "quantization_constants": ("w", "weights"),
    "adapters": ("r", "LoRA adapters"),
    "master_weights": ("m", "fp32 master weights"),
    "autocast_copies": ("y", "16-bit weight copies"),
    "gradients": ("g", "gradients"),
    "gradient_buckets": ("g", "gradients"),
    "optimizer_states": ("o", "optimizer states"),
    "optimizer_temporaries": ("o", "optimizer states"),
    "paged_optimizer_states": ("o", "optimizer states"),
    "saved_activations": ("a", "activations"),
    "block_recompute": ("a", "activations"),
    "logits_and_loss": ("l", "logits and loss"),
    "kv_cache": ("h", "KV cache of generation"),
    "dequantization": ("d", "dequantized weights"),
    "gathered_parameters": ("p", "gathered parameters"),
    "other_temporaries": ("t", "temporary buffers"),
    "allocator_slack": ("k", "caching allocator"),
    "context": ("c", "CUDA context"),
    "nccl": ("n", "NCCL buffers"),
    "vllm_engine": ("v", "vLLM beside the training"),
}
_REST = ("x", "everything else")


def largest_parts(prediction: Prediction, count: int) -> tuple[Segment, ...]:
    """The ``count`` largest parts of the peak, the largest first, and everything else as one;
    they add up to the peak.
    """
    sizes: dict[tuple[str, str], float] = {}
    for term in terms_at_peak(prediction):
        part = _PARTS[term.name]
        sizes[part] = sizes.get(part, 0.0) + float(term.n_bytes)
    ordered = sorted(sizes.items(), key=lambda each: -each[1])
    # One part that is left over is shown under its own name.
    shown, others = (ordered, []) if len(ordered) == count + 1 else (ordered[:count], ordered[count:])
    rest = [(_REST, sum(size for _, size in others))] if others else []
    return tuple(Segment(key, size, label) for (key, label), size in (*shown, *rest))
