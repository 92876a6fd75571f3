"""Axolotl: over how many GPUs a model or each sequence is divided, and whether products are in 8 bits.

Source: axolotl 0.19.0 utils/schemas/validation.py check_context_parallel_size and validate_ring_attn_func,
core/trainers/base.py additional_accelerator_args.
"""

from __future__ import annotations

import math

from planner.configs.said_by_file import Alone, Reading, Shards
from planner.configs.shared.key_tables import texts_in
from planner.configs.shared.keys import Keys
from planner.configs.shared.trainer_arguments import read_sync
from planner.configs.tools.axolotl.axolotl_age import Age
from planner.errors import show

_REFUSED = texts_in("axolotl.toml", "unmodelled_parallel")
_SHARDS = "dp_shard_size"
_DIVIDED = ("tensor_parallel_size", "context_parallel_size", _SHARDS)
# The second name is the older one, which counts where the first is not given.
_CONTEXT = ("context_parallel_size", "sequence_parallel_degree")
_GATHERED_HEADS = "varlen_llama3"


def _needs_other_gpus(keys: Keys, reading: Reading) -> bool:
    """Whether degrees of the file multiply to a number of GPUs without which Axolotl stops; what it does on
    that many is not modelled.

    Experts that are divided need it where DeepEP is there, replicas where parts are said as well.
    Source: axolotl 067b021c8 (2026-07-24) integrations/expert_parallel/plugin.py _resolve_ep_group,
    utils/distributed.py _get_parallel_config_kwargs; torch 2.13 distributed/device_mesh.py init_device_mesh.
    """
    degrees = {name: keys.count(name) or 1 for name in (*_REFUSED, *_DIVIDED)}
    experts, replicas = degrees["expert_parallel_size"], degrees["dp_replicate_size"]
    if experts > 1 and any("expert_parallel" in plugin for plugin in keys.names("plugins")):
        name, what = "expert_parallel_size", f"an expert-parallel degree of {experts}"
        beside = " where DeepEP is installed"
    elif replicas > 1 and degrees[_SHARDS] > 1:
        name, what, beside = "dp_replicate_size", f"a degree of replicas of {replicas}", ""
    else:
        return False
    count = math.prod(degrees.values())
    degrees_said = " x ".join(each for each, degree in degrees.items() if degree > 1)
    reading.alone = Alone(
        keys.where(name),
        f"{degrees_said} is {count}, and{beside} Axolotl stops on another number of GPUs",
        f"{keys.where(name)}: {what} is not modelled; only 1 is",
        count=count,
    )
    return True


def read_parallel(keys: Keys, reading: Reading) -> None:
    """Enter over how many GPUs FSDP and a sequence are divided; what that goes with is checked later.

    Raises:
        InputFileError: a degree that is no count.
        NotModelledError: the model is divided as well, or attention runs otherwise than by gathered heads.
    """
    read_sync(keys, reading)
    if _needs_other_gpus(keys, reading):
        return
    keys.refuse_above_one(_REFUSED)
    if (shards := keys.count(_SHARDS) or 1) > 1:
        reading.shards = Shards(shards, keys.where(_SHARDS), copies=True)
    if keys.flag("fp8"):
        if keys.get("fp8_config"):
            raise keys.not_modelled("fp8_config", "a recipe of one's own for fp8 is not modelled")
        gathers = keys.flag("fp8_enable_fsdp_float8_all_gather")
        reading.say("fp8", "tensorwise-gathered" if gathers else "tensorwise", keys.where("fp8"))
    said = [(name, keys.count(name)) for name in _CONTEXT if keys.holds(name)]
    name, degree = next(((name, degree) for name, degree in said if degree), ("", 1))
    if degree < 2:
        return
    reading.say("context_parallel", degree, keys.where(name))
    way = keys.get("ring_attn_func")
    if way not in (None, _GATHERED_HEADS):
        raise keys.not_modelled("ring_attn_func", f"{show(way)} is not modelled; {_GATHERED_HEADS} is")
    keys.refuse_above_one({"heads_k_stride": "a stride over heads of keys"})


def divide_fp32(reading: Reading, age: Age) -> None:
    """Weights that are not packed are divided while the model loads, before a trainer fills in "auto", and
    DeepSpeed takes that for off: they stay in fp32, beside gradients in 16 bits.

    Source: axolotl 0.5.0 to 0.19.0 loaders/model.py _configure_zero3_memory_efficient_loading
    (utils/models.py until 0.9), and the maintainer in pull request 1466.
    """
    packed = reading.value("quantization") not in (None, "none")
    is_fp32 = reading.value("precision") == "fp32"
    if not reading.dtype_left_open or age.of_2023 or packed or is_fp32:
        return
    reading.switch("zero3_divides_fp32", True, reading.dtype_left_open)
    text = (
        "Axolotl divides the weights before it fills in auto, so they stay in fp32; "
        "bf16: {enabled: true}, as zero3_bf16.json says, has them in 16 bits"
    )
    reading.remark(reading.dtype_left_open, text)
