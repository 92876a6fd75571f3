"""torchtitan: which products of a model are in 8-bit floats, and how they are scaled.

Source: torchtitan e347b1e5e components/quantization/float8.py Float8LinearConverter, config/job_config.py;
7c3a1fac2 (2024-10) torchtitan/float8.py, which leaves the head alone.
"""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from planner.errors import show

_CONVERTERS = ("float8", "quantize.linear.float8")
_RECIPES = {"tensorwise": "tensorwise", "rowwise": "rowwise", "rowwise_with_gw_hp": "rowwise-gw-hp"}
_HEAD = "output"


def read_float8(keys: Keys, model: Keys, reading: Reading) -> None:
    """Enter how products are scaled, where a converter makes them 8-bit ones.

    Raises:
        NotModelledError: another converter, or other matrices than all of the layers.
    """
    quantize = keys.part("quantize")
    linear = quantize.part("linear") if quantize is not None else None
    part = (linear.part("float8") if linear is not None else None) or keys.part("float8")
    part = part or Keys(keys.path, {}, "float8.")
    names = [] if model.get("converters") is None else model.names("converters")
    others = [name for name in names if name not in _CONVERTERS]
    if others:
        raise model.not_modelled("converters", f"{show(others[0])} is not modelled; float8 is")
    old = part.flag("enable_float8_linear")
    if names or old:
        _read_recipe(part, reading, old=bool(old))
    part.skip(part.left_over_here())


def _read_recipe(part: Keys, reading: Reading, *, old: bool) -> None:
    """Raises: NotModelledError for a recipe that is not known."""
    part.refuse_switched_on({"emulate": "products that only look like 8-bit ones are not modelled"})
    left = [_HEAD] if old else part.names("filter_fqns") if part.has("filter_fqns") else []
    if list(left) != [_HEAD]:
        raise part.not_modelled(
            "filter_fqns", "fp8 is modelled where all matrices but the head ('output') have it"
        )
    recipe = part.text("recipe_name") or "tensorwise"
    if recipe not in _RECIPES:
        raise part.not_modelled("recipe_name", f"{show(recipe)} is not modelled; {', '.join(_RECIPES)} are")
    gathers = recipe == "tensorwise" and part.flag("enable_fsdp_float8_all_gather")
    place = "enable_float8_linear" if old else "recipe_name"
    reading.say("fp8", "tensorwise-gathered" if gathers else _RECIPES[recipe], part.where(place))
