"""The part of a DeepSpeed configuration that divides state: ZeRO's stages, offload and buffers.

Keys and defaults: DeepSpeed 0.19.8 runtime/zero/config.py and offload_config.py.
"""

from __future__ import annotations

import math

from planner.configs.said_by_file import Reading
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.domain.origin import tool_default
from planner.units import TERA
from planner.words import words

TOOL = "DeepSpeed 0.19.8"
AUTO = "auto"
_MOST = TERA
_ZERO_HARMLESS = names_in("deepspeed.toml", "harmless_of_zero")
# DeepSpeed's own values (runtime/zero/config.py), which hold where a file leaves the key out.
_BUCKET = 500_000_000
_STAGE_3 = {
    "reduce_bucket_size": ("zero3_bucket_elements", _BUCKET),
    "stage3_prefetch_bucket_size": ("zero3_prefetch_elements", 50_000_000),
    "stage3_param_persistence_threshold": ("zero3_persistence_elements", 100_000),
    "stage3_max_live_parameters": ("zero3_live_elements", 1_000_000_000),
    "stage3_max_reuse_distance": ("zero3_reuse_elements", 1_000_000_000),
    "sub_group_size": ("zero3_sub_group_elements", 1_000_000_000),
}
_BY_HIDDEN_SIZE = tuple(_STAGE_3)[:3]
# Fields of stage 3 that files may write without the prefix (DeepSpeedZeroConfig is filled by name as well as
# by alias).
_SHORT = {
    name: f"stage3_{name}"
    for name in words(
        """
        prefetch_bucket_size param_persistence_threshold model_persistence_threshold max_live_parameters
        max_reuse_distance gather_16bit_weights_on_model_save module_granularity_threshold
        use_all_reduce_for_fetch_params allgather_sequential
        """
    )
}
_REMOVED = {
    "mics_shard_size": f"{TOOL} has removed MiCS and stops, and older ones stop at models that Transformers "
    "makes: leave it out; zero_hpz_partition_size keeps a copy of the weights in each node",
    "mics_hierarchical_params_gather": "",
    "zeropp_loco_param": f"{TOOL} has removed it and stops: leave it out",
}
"""Why a job with the key cannot run; nothing where the key alone changes nothing in older versions."""
_OFFLOADS = {
    ("none", "none"): "none",
    ("cpu", "none"): "optimizer",
    ("none", "cpu"): "params",
    ("cpu", "cpu"): "optimizer+params",
    ("nvme", "none"): "optimizer-nvme",
    ("none", "nvme"): "params-nvme",
    ("nvme", "nvme"): "optimizer+params-nvme",
}
_ZERO_UNMODELLED = texts_in("deepspeed.toml", "unmodelled_of_zero")
_STAGE_3_UNMODELLED = texts_in("deepspeed.toml", "unmodelled_of_stage_3")


def say_zero(keys: Keys, name: str, stage: object, reading: Reading) -> None:
    """Enter a stage of ZeRO; none is stage 0.

    Raises:
        InputFileError: no such stage.
    """
    stage = 0 if stage is None else stage
    if stage not in (0, 1, 2, 3) or isinstance(stage, bool):
        raise keys.wrong(name, "0, 1, 2 or 3", stage)
    reading.say("sharding", f"zero{stage}", keys.where(name))


def say_offload(keys: Keys, devices: tuple[str, str], stage: int, reading: Reading, name: str) -> None:
    """Enter where optimizer states and parameters lie.

    Below stage 3 nothing reads where parameters do (DeepSpeed 0.14.0 and 0.19.8 runtime/engine.py
    _configure_zero_optimizer).

    Raises:
        InputFileError: no such device.
        NotModelledError: a pair that no formula covers.
    """
    for device in devices:
        if device not in ("none", "cpu", "nvme"):
            raise keys.wrong(name, "none, cpu or nvme", device)
    if stage < 3 and devices[1] != "none":
        reading.remark(keys.where(name), f"parameters stay on the GPU, which ZeRO-{stage} does not offload")
        devices = (devices[0], "none")
    offload = _OFFLOADS.get(devices)
    if offload is None:
        raise keys.not_modelled(
            name, f"optimizer states on {devices[0]} with parameters on {devices[1]} are not modelled"
        )
    if offload != "none":
        reading.say("offload", offload, keys.where(name))


def read_zero(zero: Keys, reading: Reading) -> None:
    """Enter a table of ZeRO's settings."""
    zero.rename(_SHORT)
    zero.refuse_switched_on(_ZERO_UNMODELLED)
    _refuse_removed(zero, reading)
    _read_plus(zero, reading)
    states = _device(zero, reading, "offload_optimizer", "cpu_offload")
    params = _device(zero, reading, "offload_param", "cpu_offload_param")
    places = [
        name
        for name in ("offload_optimizer", "offload_param", "cpu_offload", "cpu_offload_param")
        if zero.has(name)
    ]
    stage = zero.get("stage")
    say_offload(
        zero, (states, params), 0 if stage is None else stage, reading, places[0] if places else "stage"
    )
    read_zero_buckets(zero, reading)
    if zero.has("stage3_model_persistence_threshold"):
        reading.remark(
            zero.where("stage3_model_persistence_threshold"), "is not taken over: no limit is counted"
        )
    zero.skip(("stage3_model_persistence_threshold",))
    zero.skip((*_ZERO_HARMLESS, *_STAGE_3_UNMODELLED))


def _refuse_removed(zero: Keys, reading: Reading) -> None:
    """MiCS, and error feedback for gradients of 4 bits, which DeepSpeed had once.

    Source: DeepSpeed 0.19.8 runtime/config.py _REMOVED_ZERO_CONFIG_KEYS; 0.9.3 to 0.19.5 runtime/zero/mics.py
    MiCS_Optimizer, which asserts that ``MiCS_Init`` made the model; transformers 4.37 to 5.23
    modeling_utils.py takes ``zero.Init``; accelerate#3442.
    """
    for name, why in _REMOVED.items():
        value = zero.get(name)
        if value is None:
            continue
        if why and not _is_off(value):
            raise zero.stops(name, why)
        reading.remark(
            zero.where(name), f"changes nothing, but {TOOL} stops where a file has it: leave it out"
        )


def _is_off(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value <= 0


def _read_plus(zero: Keys, reading: Reading) -> None:
    """ZeRO++: a second copy of the weights, and what is sent in 8 or 4 bits; of stage 3 alone.

    Raises:
        UsageError: DeepSpeed stops.
    """
    sent = [what for what in ("weights", "gradients") if zero.flag(f"zero_quantized_{what}")]
    frozen = zero.flag("zero_quantized_nontrainable_weights")
    copies = 0 if zero.get("zero_hpz_partition_size") == 0 else zero.count("zero_hpz_partition_size") or 0
    if zero.get("stage") != 3:
        for name in (
            *(f"zero_quantized_{what}" for what in sent),
            *(["zero_hpz_partition_size"] * (copies > 1)),
        ):
            reading.remark(zero.where(name), "is of stage 3, and other stages do not read it")
        return
    if copies > 1:
        reading.take(zero, {"zero_hpz_partition_size": "hpz"})
    if sent:
        reading.switch("zero3_quantized", "+".join(sent), zero.where(f"zero_quantized_{sent[0]}"))
    if frozen:
        reading.switch("zero3_quantizes_frozen", True, zero.where("zero_quantized_nontrainable_weights"))
    if "gradients" in sent and zero.flag("reduce_scatter") is False:
        raise zero.stops("reduce_scatter", "DeepSpeed stops at false beside zero_quantized_gradients")


def read_zero_buckets(zero: Keys, reading: Reading) -> None:
    """Enter the sizes of ZeRO's buffers.

    Raises:
        InputFileError: not a number of elements.
        NotModelledError: stages 1 and 2 without buckets.
    """
    stage = zero.get("stage")
    if stage == 3:
        zero.refuse_switched_on(_STAGE_3_UNMODELLED)
        _read_leaves(zero, reading)
        _read_stage_3(zero, reading)
    elif stage:
        _read_buckets(zero, reading)
    else:
        zero.skip((*_STAGE_3, "allgather_bucket_size", "overlap_comm"))
    zero.skip(("leaf_module",))


def _read_leaves(zero: Keys, reading: Reading) -> None:
    """Classes of modules that stage 3 gathers whole, in the place of DeepSpeed's own list.

    Source: DeepSpeed 0.19.8 runtime/zero/leaf_module_config.py.
    """
    part = zero.part("leaf_module")
    if part is None:
        return
    for name in ("names", "name_suffixes"):
        if part.get(name):
            raise part.not_modelled(name, "modules gathered whole are read by their classes: write classes")
    say_leaves(part, "classes", reading)


def say_leaves(keys: Keys, name: str, reading: Reading) -> None:
    """Enter the classes of modules that ZeRO-3 gathers whole."""
    if keys.has(name):
        reading.switch("zero3_leaves", "+".join(keys.names(name)) or "none", keys.where(name))


def _read_buckets(zero: Keys, reading: Reading) -> None:
    """Buckets of stages 1 and 2: ``auto`` is hidden size squared, which the switch writes as 0."""
    size = zero.get("reduce_bucket_size")
    elements = 0 if size == AUTO else _number(zero, "reduce_bucket_size") or _BUCKET
    place = zero.where("reduce_bucket_size") if zero.has("reduce_bucket_size") else tool_default(TOOL)
    reading.switch("zero12_bucket_elements", elements, place)
    gathered = _number(zero, "allgather_bucket_size")
    if gathered is not None and gathered > (elements or gathered):
        reading.remark(
            zero.where("allgather_bucket_size"),
            f"{gathered:,} is not taken over: reduce_bucket_size is counted for both",
        )
    overlap = None if zero.get("overlap_comm") == AUTO else zero.flag("overlap_comm")
    place = zero.where("overlap_comm") if overlap is not None else tool_default(TOOL)
    reading.switch("zero12_overlap", bool(overlap), place)
    if zero.flag("contiguous_gradients") is False:
        raise zero.not_modelled("contiguous_gradients", "gradients without buckets are not modelled")
    if zero.flag("reduce_scatter") is False:
        reading.remark(zero.where("reduce_scatter"), "false is not taken over: its copies are counted")
    zero.skip(_STAGE_3)


def _read_stage_3(zero: Keys, reading: Reading) -> None:
    """Sizes of stage 3: by hidden size where a file says ``auto``, else the file's number or DeepSpeed's
    own.
    """
    for name in ("contiguous_gradients", "reduce_scatter"):
        if zero.flag(name) is False:
            reading.remark(zero.where(name), "false is not taken over: under stage 3 its copies are counted")
    auto = [name for name in _BY_HIDDEN_SIZE if zero.get(name) == AUTO]
    reading.switch("zero_auto_buckets", bool(auto), zero.where(auto[0]) if auto else tool_default(TOOL))
    for name, (switch, usual) in _STAGE_3.items():
        number = usual if (said := _number(zero, name)) is None else said
        follows = name in _BY_HIDDEN_SIZE and bool(auto)
        if name not in auto and (follows or number != usual):
            reading.switch(switch, number, tool_default(TOOL) if said is None else zero.where(name))
    if zero.get("overlap_comm") is False:
        reading.switch("zero3_overlap", False, zero.where("overlap_comm"))
    if zero.flag("memory_efficient_linear") is False:
        reading.remark(
            zero.where("memory_efficient_linear"),
            "false is not taken over: DeepSpeed's own linear is counted, which keeps every input",
        )
    zero.skip(("allgather_bucket_size",))


def _number(zero: Keys, name: str) -> int | None:
    """A number of elements, which people also write as ``2e8``, or as ``1e14`` for no limit;
    ``None`` where it is not given or ``auto``.
    """
    value = zero.get(name)
    if value in (None, AUTO):
        return None
    try:
        number = (
            float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else -1.0
        )
    except (ValueError, OverflowError):
        number = -1.0
    if not 0 <= number < math.inf:
        raise zero.wrong(name, "a number of elements or auto", value)
    return int(min(number, _MOST))


def _device(zero: Keys, reading: Reading, name: str, old: str = "") -> str:
    """Where a part of the state lies: ``none``, ``cpu`` or ``nvme``."""
    if old and zero.flag(old):
        return "cpu"
    part = zero.part(name)
    if part is None:
        return "none"
    device = part.text("device") or "none"
    part.skip(words("nvme_path buffer_count buffer_size max_in_cpu fast_init pipeline_read pipeline_write"))
    if part.flag("pin_memory") is not None and device != "none":
        reading.switch("pins_offload", part.flag("pin_memory"), part.where("pin_memory"))
    ratio = part.get("ratio")
    if ratio not in (None, 1, 1.0):
        raise part.not_modelled("ratio", "offloading a part of the optimizer is not modelled")
    return device
