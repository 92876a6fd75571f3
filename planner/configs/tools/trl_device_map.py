"""Layers spread over the GPUs of one process, as a file of TRL asks the loader for."""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from planner.errors import REFUSED_BY_TOOL, UsageError

_SPREADS = ("auto", "balanced", "balanced_low_0", "sequential")


def read_device_map(keys: Keys, reading: Reading, *, old: bool) -> None:
    """Today's TRL spreads the layers in one process without a launcher, be the key there or not, and takes
    that back where there is a process for each GPU.  An older one hands the key on as it is.

    Source: trl 0.26.2 and 1.16.0 trainer/utils.py create_model_from_path (``auto`` is the default),
    trainer/sft_trainer.py, dpo_trainer.py and grpo_trainer.py (``device_map`` under MULTI_GPU and DEEPSPEED);
    accelerate 1.15 state.py (PartialState says MULTI_GPU under FSDP, too) and accelerator.py prepare_model
    (an error in any distributed mode).

    Raises:
        UsageError: Accelerate refuses it, or no field has such a map.
    """
    init = keys.get("model_init_kwargs")
    value = init.get("device_map") if isinstance(init, dict) else None
    if not isinstance(value, str) or value not in _SPREADS:
        return
    where = f"{keys.where('model_init_kwargs')}.device_map"
    several = (reading.value("gpus") or 1) * (reading.value("nodes") or 1) > 1
    has_ranks = several or reading.sharding.communicates
    if has_ranks and old:
        raise UsageError(
            f"{where}: Accelerate refuses to train a model with a device_map beside several processes: leave "
            f"it out [{REFUSED_BY_TOOL}]"
        )
    if has_ranks:
        reading.remark(where, "TRL takes it back where there is a process for each GPU")
    elif old:
        reading.say("device_map", value, where, "one process spreads the layers over its GPUs")
    else:
        reading.remark(
            where,
            "several GPUs are counted as a process for each, where TRL takes it back: one process without a "
            "launcher spreads the layers over them, which --device-map auto counts",
        )
