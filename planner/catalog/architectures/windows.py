"""Which layers attend to a sliding window: ``layer_types`` lists and the older switches they replaced."""

from __future__ import annotations

from collections.abc import Sequence

from planner.catalog.architectures.config_fields import ConfigFields
from planner.errors import NotModelledError

FULL, SLIDING = "full_attention", "sliding_attention"


def layer_windows(
    fields: ConfigFields, n_layers: int, window: int | None, default_types: Sequence[str]
) -> list[int | None]:
    """Sliding window of each layer in tokens, ``None`` for full attention.

    A ``layer_types`` list in the config decides, as in Transformers 5;
    without one ``default_types`` does (one per layer).
    """
    types = fields.texts("layer_types") if fields.has("layer_types") else tuple(default_types)
    check_kinds(fields, types, n_layers, (FULL, SLIDING))
    return [window if kind == SLIDING else None for kind in types]


def check_kinds(
    fields: ConfigFields, kinds: Sequence[str], n_layers: int, known: Sequence[str], name: str = "layer_types"
) -> None:
    """Refuse ``kinds`` of layers that are not one for each layer, or are none of those ``known``.

    Raises:
        InputFileError: too few or too many.
        NotModelledError: another kind.
    """
    if len(kinds) != n_layers:
        raise fields.fail(f"{name} names {len(kinds)} layers, num_hidden_layers is {n_layers}")
    unknown = sorted(set(kinds) - set(known))
    if unknown:
        raise NotModelledError(
            f"{fields.where}: layers of type '{unknown[0][:40]}' are not modelled, only {' and '.join(known)}"
        )


def alternating_types(n_layers: int, period: int) -> list[str]:
    """Every ``period``-th layer attends fully, the others to the window (Gemma 2 and gpt-oss: 2, OLMo 3:
    4, Gemma 3: 6).
    """
    return [SLIDING if (index + 1) % period else FULL for index in range(n_layers)]


def window_field(fields: ConfigFields, class_default: int | None) -> int | None:
    """``sliding_window`` where an absent field means ``class_default`` but an explicit null means none."""
    return fields.optional_integer("sliding_window") if "sliding_window" in fields.data else class_default


def qwen_windows(fields: ConfigFields, n_layers: int) -> list[int | None]:
    """Qwen2 and Qwen3: off unless ``use_sliding_window``;
    then the layers from ``max_window_layers`` (28 when absent) on.
    """
    if not fields.flag("use_sliding_window", False):
        return layer_windows(fields, n_layers, None, [FULL] * n_layers)
    first = fields.count("max_window_layers", default=28)
    default_types = [SLIDING if index >= first else FULL for index in range(n_layers)]
    return layer_windows(fields, n_layers, window_field(fields, 4096), default_types)
