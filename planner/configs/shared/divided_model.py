"""A model that Transformers divides over GPUs while it reads it (``distributed_config``).

Source: transformers 5.23 distributed/configuration_utils.py DistributedConfig, modeling_utils.py
from_pretrained.
"""

from __future__ import annotations

from planner.configs.said_by_file import Reading, Shards
from planner.configs.shared.keys import Keys

_EXPERTS = (
    "experts that Transformers divides over GPUs are not modelled; those of torchtitan are: "
    "--stack torchtitan@2025 --expert-parallel N"
)
_UNMODELLED = {
    "enable_expert_parallel": _EXPERTS,
    "fsdp_cpu_offload": "offload by Transformers' own FSDP2 is not modelled",
    "fsdp_mixed_precision": "mixed precision of Transformers' own FSDP2 is not modelled",
    "fsdp_plan": "a plan of one's own is not modelled; that of the model is",
    "ep_plan": _EXPERTS,
}
_DEGREES = {
    "dp_replicate_size": "copies of what Transformers' own FSDP2 divides",
    "pp_size": "a pipeline of Transformers",
}
# Those that from_pretrained takes beside it, of older versions.
_ALONE = ("tp_plan", "tp_size")


def read_divided_model(keys: Keys, reading: Reading) -> None:
    """Enter the degrees that matrices are divided by, and FSDP2 beside them.

    Raises:
        NotModelledError: anything else that may be divided, or that is not known.
    """
    for name in _ALONE:
        if keys.get(name) is not None:
            raise keys.not_modelled(name, "say distributed_config=DistributedConfig(tp_size=N) instead")
    part = keys.part("distributed_config")
    if part is None:
        return
    part.refuse_switched_on(_UNMODELLED)
    part.refuse_above_one({**_DEGREES, "ep_size": "a degree that experts are divided by"})
    if part.get("tp_plan") not in (None, "auto"):
        raise part.not_modelled("tp_plan", "a plan of one's own is not modelled; that of the model is")
    tensor, shards = part.count("tp_size"), part.count("fsdp_size") or 1
    if tensor is None and part.get("tp_plan") is not None:
        raise part.not_modelled(
            "tp_plan", "takes all GPUs that are left, which are not known here: say tp_size"
        )
    if shards > 1 and (tensor or 1) == 1:
        why = "Transformers' own FSDP2 is modelled beside matrices that are divided (tp_size) alone"
        raise part.not_modelled("fsdp_size", why)
    if (tensor or 1) > 1:
        _say(part, reading, (tensor or 1, shards))
    part.skip(("enable_sequence_parallel", "ep_implementation"))


def _say(part: Keys, reading: Reading, degrees: tuple[int, int]) -> None:
    tensor, shards = degrees
    if reading.value("sharding") not in (None, "none", "ddp"):
        why = f"beside sharding {reading.value('sharding')} a model that comes divided is not modelled"
        raise part.not_modelled("tp_size", why)
    where = part.where("tp_size")
    reading.said.pop("sharding", None)
    reading.say("tensor_parallel", tensor, where)
    if shards > 1:
        reading.say("sharding", "fsdp", part.where("fsdp_size"))
    reading.shards = Shards(shards, where)
