"""Gradient checkpointing in LLaMA-Factory, which is on unless its own key turns it off, and layers that it
skips.

Source: llamafactory 0.9.5 model/model_utils/checkpointing.py, the same in 0.9.0.
"""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from planner.configs.tools.llama_factory.llama_factory_age import is_of_0_7

_OFF = "disable_gradient_checkpointing"
_TRAINERS = "gradient_checkpointing"
_OFFLOADS = "use_unsloth_gc"
_REENTRANT = "use_reentrant_gc"


_DEPTHS = "mixture_of_depths"


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


def read_depths(keys: Keys, reading: Reading, *, old: bool) -> None:
    """Mixture of depths: a router for every other layer, which takes the arguments of Transformers 4.42.

    Such a layer takes all tokens but one in its first pass and fewer in each later one, down to an eighth.
    Reentrant checkpointing runs it again as a later pass, so the layers between decide the peak, and memory
    is that of the model without routers: each router has as many parameters as the model is wide, and one.

    Source: astramind-ai/Mixture-of-depths aff9e74 (1.1.8, its last) MoD/MoD.py MoD.forward (``capacity``),
    which takes seven arguments; since transformers 4.43.0 models/llama/modeling_llama.py hands over an eighth
    (``position_embeddings``).  MoD/modeling/automodeling.py imports TRANSFORMERS_CACHE, which 5 has not.
    llamafactory 0.7.1 model/patcher.py: ``use_reentrant`` is true.

    Raises:
        UsageError: with the Transformers of LLaMA-Factory 0.9.5, and with that of August 2024 and later where
            a Llama is converted.
        NotModelledError: with an older one, where the layers between do not decide alone.
    """
    kind = keys.get(_DEPTHS)
    if kind in (None, False):
        return
    llama = kind == "convert" and "llama" in str(keys.get("model_name_or_path") or "").lower()
    if old and not llama:
        raise keys.not_modelled(_DEPTHS, "mixture of depths is modelled for a Llama that is converted")
    if old and is_of_0_7(keys, reading):
        _count_whole_layers(keys, reading)
        return
    what = (
        "stops in its first step with Transformers 4.43 and later"
        if old
        else "cannot be imported beside Transformers 5, which LLaMA-Factory 0.9.5 runs"
    )
    raise keys.stops(_DEPTHS, f"mixture-of-depth 1.1.8 {what}: leave it out")


def _count_whole_layers(keys: Keys, reading: Reading) -> None:
    """Raises: NotModelledError where not each layer is run again whole, by itself, on every GPU."""
    apart = reading.value("checkpoint_reentrant") is False or reading.value("offload") not in (None, "none")
    if reading.value("gradient_checkpointing") is False or apart:
        raise keys.not_modelled(_DEPTHS, "mixture of depths is modelled with reentrant checkpointing only")
    if keys.text("finetuning_type") != "full" or reading.sharding.gathers_weights:
        raise keys.not_modelled(
            _DEPTHS, "mixture of depths is modelled for full fine-tuning with whole weights on each GPU"
        )
    reading.remark(
        keys.where(_DEPTHS),
        "memory is that of the layers without a router; time is counted without it, so it is too long: "
        "every other layer takes ever fewer tokens, down to an eighth",
    )
