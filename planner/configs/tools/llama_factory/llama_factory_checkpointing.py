"""Gradient checkpointing in LLaMA-Factory, which is on unless its own key turns it off.

Source: llamafactory 0.9.5 model/model_utils/checkpointing.py, the same in 0.9.0.
"""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys

_OFF = "disable_gradient_checkpointing"
_TRAINERS = "gradient_checkpointing"
_OFFLOADS = "use_unsloth_gc"
_REENTRANT = "use_reentrant_gc"


def read_switch(keys: Keys, reading: Reading) -> None:
    """Whether layers are checkpointed, by LLaMA-Factory's own key."""
    off = keys.flag(_OFF)
    if off is not None:
        reading.say("gradient_checkpointing", not off, keys.where(_OFF))
        keys.skip((_TRAINERS,))


def drop_trainers_switch(keys: Keys, reading: Reading) -> None:
    """``gradient_checkpointing: false`` of the Trainer does not turn it off here."""
    is_off = reading.value("gradient_checkpointing") is False
    if is_off and keys.flag(_OFF) is None and keys.flag(_TRAINERS) is False:
        del reading.said["gradient_checkpointing"]
        reading.remark(keys.where(_TRAINERS), f"has no effect: only {_OFF} turns it off")


def read_manner(keys: Keys, reading: Reading) -> None:
    """How layers are checkpointed; to be read when the engine is known.

    ``use_unsloth_gc`` takes a function that runs forward without gradients and a backward pass inside of the
    backward pass, as reentrant checkpointing does, with the layer's input in pinned host RAM between them.
    FSDP2 turns reentrant checkpointing off, whatever the file says (lines 157-162), but not that function.

    Raises:
        NotModelledError: inputs of layers in host RAM beside what an engine has there.
    """
    reentrant = keys.flag(_REENTRANT)
    if keys.flag(_OFFLOADS) and not keys.flag(_OFF):
        where = keys.where(_OFFLOADS)
        if reading.value("offload") not in (None, "none"):
            raise keys.not_modelled(_OFFLOADS, "beside an engine that offloads it is not modelled")
        reading.say("offload", "activations", where, "inputs of layers lie in host RAM")
        reading.said.pop("checkpoint_reentrant", None)
        reading.say("checkpoint_reentrant", True, where, "Unsloth's way runs as reentrant checkpointing does")
    elif reading.sharding.dtensors:
        reading.said.pop("checkpoint_reentrant", None)
        place = "llamafactory 0.9.5 model/model_utils/checkpointing.py:157-162: off under FSDP2"
        reading.default("checkpoint_reentrant", False, place)
    elif reentrant is not None:
        reading.say("checkpoint_reentrant", reentrant, keys.where(_REENTRANT))
