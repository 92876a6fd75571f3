"""A model that Transformers divides over GPUs while it reads it (``distributed_config``).

Source: transformers 5.23 distributed/configuration_utils.py DistributedConfig, modeling_utils.py
from_pretrained.
"""

from __future__ import annotations

from planner.configs.said_by_file import Reading, Shards
from planner.configs.shared.keys import Keys

_PLAN = "a plan of one's own is not modelled; that of the model is"
_UNMODELLED = {
    "fsdp_cpu_offload": "offload by Transformers' own FSDP2 is not modelled",
    "fsdp_mixed_precision": "mixed precision of Transformers' own FSDP2 is not modelled",
    "fsdp_plan": _PLAN,
    "ep_plan": _PLAN,
}
_DEGREES = {
    "dp_replicate_size": "copies of what Transformers' own FSDP2 divides",
    "pp_size": "a pipeline of Transformers",
}
_READ = (
    *("tp_size", "tp_plan", "fsdp_size", "ep_size", "ep_implementation", "enable_expert_parallel"),
    # Not wired up yet.
    "enable_sequence_parallel",
)
# Those that from_pretrained takes beside it, of older versions.
_ALONE = ("tp_plan", "tp_size")


def read_divided_model(keys: Keys, reading: Reading) -> None:
    """Enter the degrees that matrices or experts are divided by, and FSDP2 beside them.

    Raises:
        NotModelledError: anything else that may be divided.
        UsageError: what Transformers itself refuses.
    """
    for name in _ALONE:
        if keys.get(name) is not None:
            raise keys.not_modelled(name, "say distributed_config=DistributedConfig(tp_size=N) instead")
    part = keys.part("distributed_config")
    if part is None:
        return
    _refuse_others(part)
    tensor, shards = part.count("tp_size"), part.count("fsdp_size") or 1
    if tensor is None and part.get("tp_plan") is not None:
        raise part.not_modelled(
            "tp_plan", "takes all GPUs that are left, which are not known here: say tp_size"
        )
    experts = _experts(part, tensor or 1, shards)
    if (tensor or 1) > 1:
        _say(part, reading, "tensor_parallel", (tensor or 1, shards))
    elif experts > 1:
        _say(part, reading, "expert_parallel", (experts, shards))
    elif shards > 1:
        beside = "divided matrices (tp_size) or experts (ep_size)"
        raise part.not_modelled("fsdp_size", f"Transformers' own FSDP2 is modelled beside {beside} alone")


def _refuse_others(part: Keys) -> None:
    """What is not modelled, and what is no argument at all."""
    for name in part.left_over_here():
        if name not in {*_UNMODELLED, *_DEGREES, *_READ}:
            raise part.stops(name, "DistributedConfig of Transformers 5.23 has no such argument")
    part.refuse_switched_on(_UNMODELLED)
    part.refuse_above_one(_DEGREES)
    if part.get("tp_plan") not in (None, "auto"):
        raise part.not_modelled("tp_plan", _PLAN)


def _experts(part: Keys, tensor: int, shards: int) -> int:
    """GPUs that divide the experts of each layer, each with a batch of its own.

    Source: transformers 5.23 distributed/configuration_utils.py _resolve_parallelism, _validate_mesh_config;
    distributed/mixin.py _resolve_parallel_plans, which finds no plan where the old flag stands alone;
    distributed/expert_parallel.py EPImplementationInterface.
    """
    experts, way = part.count("ep_size"), part.text("ep_implementation") or "auto"
    if experts is None and part.flag("enable_expert_parallel") and tensor > 1:
        raise part.stops("enable_expert_parallel", "Transformers 5.23 stops at it: say ep_size")
    part.skip(_READ)
    if experts is None or experts == 1:
        return 1
    gpus = shards * tensor
    if experts % tensor or gpus % experts:
        raise part.stops("ep_size", f"Transformers wants a multiple of tp_size that divides {gpus} GPUs")
    if way not in ("auto", "all_to_all"):
        raise part.not_modelled("ep_implementation", "only auto and all_to_all are modelled")
    if tensor > 1:
        raise part.not_modelled("ep_size", "beside divided matrices it is not modelled: leave tp_size out")
    return experts


def _say(part: Keys, reading: Reading, name: str, degrees: tuple[int, int]) -> None:
    degree, shards = degrees
    key = "tp_size" if name == "tensor_parallel" else "ep_size"
    if reading.value("sharding") not in (None, "none", "ddp"):
        why = f"beside sharding {reading.value('sharding')} a model that comes divided is not modelled"
        raise part.not_modelled(key, why)
    where = part.where(key)
    reading.said.pop("sharding", None)
    reading.say(name, degree, where)
    if shards > 1:
        reading.say("sharding", "fsdp", part.where("fsdp_size"))
    reading.shards = Shards(shards, where)
