"""Axolotl: matrices that are rounded as if quantised (``qat``).

Source: axolotl 0.19.0 utils/schemas/quantization.py QATConfig, utils/quantization.py get_quantization_config,
_make_qat_config; torchao 0.17.0 quantization/qat/fake_quantize_config.py _infer_fake_quantize_configs.
"""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from planner.configs.tools.axolotl.axolotl_plugins import TERNARY
from planner.errors import show

_GROUP = 32
_NVFP4 = (
    "Axolotl 0.19.0 stops at nvfp4, because torchao 0.17.0 rounds nothing for NVFP4WeightOnlyConfig; int8 "
    "with int4 weights is modelled"
)


def _read_ternary(keys: Keys, reading: Reading) -> None:
    """Weights of three values, by onebitllms (utils/schemas/validation.py check_onebitllms_lora)."""
    if keys.get("adapter"):
        raise keys.stops(TERNARY, "Axolotl refuses it beside adapters")
    reading.say("qat", "ternary", keys.where(TERNARY))


def read_qat(keys: Keys, reading: Reading) -> None:
    """Enter what inputs and weights are rounded to.

    Raises:
        UsageError: what Axolotl stops at.
        NotModelledError: other numbers than int8 for inputs with int4 for weights, and mxfp4 for both.
    """
    if keys.flag(TERNARY):
        _read_ternary(keys, reading)
    part = keys.part("qat")
    if part is None:
        return
    weights, inputs = part.text("weight_dtype") or "int8", part.text("activation_dtype") or "none"
    if weights == "nvfp4":
        raise part.stops("weight_dtype", _NVFP4)
    if weights == "mxfp4" and part.count("group_size") not in (None, _GROUP):
        raise part.stops("group_size", f"Axolotl takes mxfp4 in groups of {_GROUP} alone")
    # For weights in mxfp4 inputs are, whatever the file says of them.
    kind = "mxfp4" if weights == "mxfp4" else "int8-int4"
    if kind != "mxfp4" and (inputs, weights) != ("int8", "int4"):
        raise part.not_modelled(
            "weight_dtype",
            f"inputs in {show(inputs)} with weights in {show(weights)} are not modelled; int8 with int4 is, "
            "and so is mxfp4",
        )
    part.refuse_switched_on({"quantize_embedding": "a rounded token table is not modelled"})
    reading.say("qat", kind, keys.where("qat"))
    reading.take(part, {"group_size": "qat_group"})
    if not part.has("group_size"):
        reading.say("qat_group", _GROUP, keys.where("qat"), "the default of group_size")
    # Steps before which nothing is rounded take less.
    part.skip(("fake_quant_after_n_steps",))
