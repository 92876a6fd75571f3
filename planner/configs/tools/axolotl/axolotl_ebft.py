"""Axolotl: completions that are scored by how the model's own layers see them beside right ones (``ebft``).

Source: axolotl 0.19.0 utils/schemas/config.py EBFTConfig, utils/schemas/validation.py EBFTValidationMixin,
core/trainers/ebft/__init__.py EBFTStrategy, trainer.py EBFTMixin and strided.py AxolotlStridedEBFTTrainer.
"""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys

_LAYERS = 3
"""Those at a quarter, a half and three quarters of the depth (``feature_layers``)."""
# What is pooled of features, and the sums that rewards and the loss are.
_HARMLESS = (
    *("mode", "embed_method", "use_whitening", "alignment_coef", "diversity_coef", "ce_coef"),
    *("adaptive_max_tokens", "gt_length_multiplier"),
)
# Of the other mode alone.
_STRIDED = (
    *("stride", "context_length", "generate_max_len", "n_samples_per_prompt", "temperature", "top_p"),
    *("rl_coef", "advantage_estimator", "min_completion_prefix"),
)


def read_features(keys: Keys, reading: Reading) -> None:
    """Enter how many layers score, where completions of prompts are scored so.

    Raises:
        UsageError: what Axolotl's validation refuses.
        NotModelledError: short completions at many places of a document.
    """
    if str(keys.get("rl") or "").lower() != "ebft":
        return
    part = keys.part("ebft")
    if part is None:
        raise keys.stops("rl", "Axolotl asks for a section ebft beside rl: ebft")
    if part.text("mode") == "strided":
        if keys.flag("torch_compile") and keys.get("gradient_checkpointing"):
            raise keys.stops(
                "torch_compile",
                "Axolotl refuses it beside gradient_checkpointing in ebft's strided mode; leave it out",
            )
        raise part.not_modelled(
            "mode",
            "strided completions, which the model writes at many places of a document, are not modelled; "
            "structured is read, and measure trace -- axolotl train runs them on one GPU (on several each "
            "process keeps a copy of the model on the next card)",
        )
    layers = part.get("feature_layers")
    n_layers = len(layers) if isinstance(layers, list) and layers else _LAYERS
    reading.switch("feature_layers", n_layers, part.where("feature_layers"))
    part.skip((*_HARMLESS, *_STRIDED))
