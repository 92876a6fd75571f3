"""Axolotl's plugin of kernels for experts: ScatterMoE.

Source: axolotl 0.19.0 integrations/kernels/args.py KernelsArgs, plugin.py KernelsPlugin.pre_model_load.
"""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from planner.errors import show

_SWITCHES = {"scattermoe": "use_scattermoe", "sonicmoe": "use_sonicmoe"}
_NO_KERNELS = ("eager", "builtin")
_UNMODELLED = {
    "use_dsv4_kernels": "kernels of DeepSeek V4 are not modelled",
    "use_glm_dsa_kernels": "kernels of GLM's sparse attention are not modelled",
}


TERNARY = "use_onebitllms"


def read_kernels(keys: Keys, reading: Reading) -> None:
    """Enter whose kernels run the experts.  What is left unsaid of ``experts_implementation`` is ``eager``
    under this plugin.  Modes and backends for NVFP4 change nothing of another base.

    Raises:
        UsageError: settings that exclude each other.
        NotModelledError: other kernels than ScatterMoE's with all experts at once.
    """
    backend = _backend(keys)
    keys.refuse_switched_on(_UNMODELLED)
    if backend == "scattermoe":
        if keys.flag("moe_bnb_fast") is False:
            raise keys.not_modelled("moe_bnb_fast", "experts that are expanded in pieces are not modelled")
        reading.switch("mixture_code", "scattermoe", keys.where("plugins"))
        return
    if backend == "sonicmoe":
        raise keys.not_modelled("plugins", "SonicMoE's kernels are not modelled; use_scattermoe: true is")
    # Beside ternary weights mixtures are refused later, and without experts the plugin does nothing.
    if keys.text("experts_implementation") != "grouped_mm" and not keys.flag(TERNARY):
        raise keys.not_modelled(
            "plugins",
            "without use_scattermoe this plugin lets experts run one after the other, which is not modelled: "
            "take it out, or say experts_implementation: grouped_mm",
        )


def _backend(keys: Keys) -> str:
    """``scattermoe``, ``sonicmoe`` or neither."""
    on = [name for name, switch in _SWITCHES.items() if keys.flag(switch)]
    said = keys.text("expert_backend")
    if said is not None and said.lower() not in (*_SWITCHES, *_NO_KERNELS):
        raise keys.stops(
            "expert_backend", f"{show(said)} is none of Axolotl's: say scattermoe, sonicmoe or eager"
        )
    if len(on) > 1 or (said is not None and any(name != said.lower() for name in on)):
        raise keys.stops(_SWITCHES[on[0]], "Axolotl refuses it beside another backend; say one of them")
    return on[0] if on else (said or "").lower()
