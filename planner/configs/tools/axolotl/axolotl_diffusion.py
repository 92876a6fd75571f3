"""Axolotl's diffusion of text: some tokens are masked, and the model, which sees the whole row, names them.

Source: axolotl 067b021c8 (2026-07-24) integrations/diffusion/trainer.py DiffusionTrainer and utils.py
create_bidirectional_attention_mask, the same in 0.19.0 but for what the mask hides.
"""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from planner.configs.tools.axolotl.axolotl_age import Age

_PLUGIN = "axolotl.integrations.diffusion."


def read_diffusion(keys: Keys, reading: Reading, *, age: Age) -> None:
    """Enter the loss of the masked tokens: once in many steps nearly all of a row are.

    The model gets no labels, so losses that its own code fuses do nothing, and all layers get one mask.

    Raises:
        NotModelledError: versions before 0.14, attention that takes no such mask, and samples that are
            divided.
    """
    if not any(name.startswith(_PLUGIN) for name in keys.names("plugins")):
        return
    if not age.today:
        raise keys.not_modelled("plugins", "diffusion of Axolotl before 0.14 is not modelled")
    if reading.value("attention") not in (None, "sdpa"):
        raise keys.not_modelled("plugins", "diffusion is modelled for attn_implementation: sdpa alone")
    if (keys.count("context_parallel_size") or 1) > 1:
        raise keys.not_modelled("plugins", "diffusion of divided samples is not modelled")
    where = keys.where("plugins")
    reading.said.pop("loss", None)
    for name in ("loss_forward", "loss_backward", "cut_cross_entropy"):
        reading.switches.pop(name, None)
    reading.switch("loss_weights", "masked_tokens", where)
    reading.switch("packed_mask", "rows", where)
