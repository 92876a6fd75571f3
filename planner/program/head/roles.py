"""What a pass through the model is for, which decides what its head makes of the stream."""

from __future__ import annotations

from typing import Literal

Role = Literal["policy", "reference", "divergence", "compared", "prompt", "token", "score", "features"]
"""What a pass is for: the model that is trained, or as it was before, or (KTO) how far both are apart on
other completions.  Or logits that are compared with, word by word; or which tokens a generation reads; or the
scores of what was generated, or outputs of layers that score it.
"""
CACHING: tuple[Role, ...] = ("compared", "prompt", "token", "score")
"""Passes that keep keys and values: nobody tells a model that scores or is compared with not to.
Source: transformers 5.23 modeling_layers.py GenericForSequenceClassification (``use_cache``);
llamafactory 0.9.5 model/model_utils/kv_cache.py, train/sft/trainer.py compute_loss.
"""
