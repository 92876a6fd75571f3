"""How a training of ms-swift is started, by the variables of its environment, and which engine runs it.

Sources: ms-swift 4.6.0 swift/cli/main.py get_torchrun_args, swift/utils/env.py is_mp and is_dist,
swift/arguments/sft_args.py _init_deepspeed and _init_fsdp; the same in 3.12.6.
"""

from __future__ import annotations

import re
from pathlib import Path

from planner.configs.launchers.fsdp_keys import Beside, referred
from planner.configs.said_by_file import IMAGES_UNSAID, Alone, Reading
from planner.configs.shared.allocator_variable import ALLOCATOR_VARIABLES, counted_variable, say_allocator
from planner.configs.shared.checkpoints import sees_images
from planner.configs.shared.key_tables import texts_in
from planner.configs.shared.keys import Keys, is_left_open
from planner.configs.shared.stock import stock_engine
from planner.configs.shared.trainer_arguments import (
    read_distribution,
    read_files,
    read_given_launch,
)
from planner.configs.yaml_or_json import Document, read_document
from planner.errors import UsageError, show

_PROCESSES, _NODES, _VISIBLE = "NPROC_PER_NODE", "NNODES", "CUDA_VISIBLE_DEVICES"
_SPREADS = (
    "each of several processes spreads the layers over GPUs of its own (device_map), which is not modelled: "
    "NPROC_PER_NODE starts a process for each GPU"
)
_ONE_PROCESS = "ms-swift 4.6.0 swift/model/utils.py get_default_device_map: auto in one process"
_PIXELS = ("MAX_PIXELS", "IMAGE_MAX_TOKEN_NUM")
_QWEN = re.compile(r"qwen(2|3)(?:[._]\d)?(?:-?vl|[._]\d)", re.IGNORECASE)
_FILES = (".yaml", ".yml", ".json")
_OWN_PRESET = "say the table or the path of a file"
PARTS_BY_NAME = texts_in("ms-swift.toml", "parts_by_name")


def read_processes(keys: Keys, reading: Reading, beside: Beside) -> bool:
    """Processes and machines, where no launcher beside the arguments says them; whether a launcher gives each
    process its rank.  A file without them is taken as started with a process for each GPU of the job, a
    command as it stands.

    Raises:
        UsageError: GPUs that the processes cannot share alike.
        NotModelledError: several GPUs for each process.
    """
    env = keys.section("ENV")
    _read_allocator(env, reading)
    _read_pixels(_with_model_kwargs(keys, env), reading)
    per_node, nodes = env.count(_PROCESSES), _nodes(env, reading)
    visible = _visible(env)
    if per_node is None and nodes is None:
        if beside.accelerate is not None:
            return _leave_to_launcher(env, reading, beside.accelerate, visible)
        if visible:
            return _with_visible(env, reading, visible)
        if keys.path.suffix in _FILES:
            if keys.has("device_map"):
                reading.say("device_map", "auto", keys.where("device_map"), "one process has all GPUs")
            else:
                text = "counted as started with NPROC_PER_NODE, a process for each GPU"
                reading.remark(str(keys.path), text)
            env.skip_rest()
            return False
        _start_alone(reading, "ms-swift 4.6.0 swift/cli/main.py: no NPROC_PER_NODE")
    else:
        _say_processes(env, reading, (per_node or 1, nodes or 1), visible)
    env.skip_rest()
    return "device_map" not in reading.said


def _nodes(env: Keys, reading: Reading) -> int | None:
    """How many machines a variable says; one where only the job's own shell knows it, which is said."""
    written = str(env.as_written(_NODES))
    if not is_left_open(written):
        return env.count(_NODES)
    where = env.where(_NODES)
    reading.remark(where, f"{show(written)} is not set here: one is counted, unless --nodes says more")
    return 1


def read_megatron_processes(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Processes and machines of ``megatron``, which starts them by torchrun, be there one; a file is taken as
    started with a process for each GPU of the job.

    Source: ms-swift 4.6.0 swift/cli/_megatron/main.py.
    """
    env = keys.section("ENV")
    _read_allocator(env, reading)
    per_node, nodes = env.count(_PROCESSES), _nodes(env, reading)
    if per_node is not None or nodes is not None:
        _say_processes(env, reading, (per_node or 1, nodes or 1), _visible(env))
    elif keys.path.suffix not in _FILES:
        reading.default("gpus", 1, "ms-swift 4.6.0 swift/cli/_megatron/main.py: no NPROC_PER_NODE")
    read_given_launch(reading, beside)
    env.skip_rest()


def _leave_to_launcher(env: Keys, reading: Reading, launch: Path, visible: int | None) -> bool:
    """The launch is read after the trainer's arguments; one without a kind of distribution starts one process
    without a rank (accelerate 1.15.0 commands/launch.py simple_launcher).
    """
    table = read_document(launch).table
    started, nodes = table.get("num_processes"), table.get("num_machines") or 1
    if visible is not None and isinstance(started, int) and 1 < started < visible * nodes:
        raise env.not_modelled(_VISIBLE, _SPREADS)
    has_ranks = str(table.get("distributed_type") or "NO").upper() != "NO"
    if not has_ranks or table.get("num_processes") == 1:
        _start_alone(reading, "its launcher starts one process")
    env.skip_rest()
    return has_ranks


def _with_visible(env: Keys, reading: Reading, visible: int) -> bool:
    """One process, which uses the GPUs that it sees, whatever the machine has."""
    where = env.where(_VISIBLE)
    reading.say("gpus", visible, where)
    reading.alone = Alone(where, sees=visible)
    if visible > 1:
        reading.say("device_map", "auto", where, _ONE_PROCESS)
    env.skip_rest()
    return False


def _start_alone(reading: Reading, why: str) -> None:
    """One process, which spreads the layers where it sees several GPUs."""
    reading.default("gpus", 1, why)
    reading.default("device_map", "auto", _ONE_PROCESS)


def _say_processes(env: Keys, reading: Reading, counts: tuple[int, int], visible: int | None) -> None:
    per_node, nodes = counts
    if visible is not None and visible % per_node:
        raise env.stops(_VISIBLE, f"{visible} GPUs cannot be shared alike by {per_node} processes")
    if visible is not None and visible > per_node and str(env.get("SWIFT_SINGLE_DEVICE_MODE")) != "1":
        raise env.not_modelled(_VISIBLE, _SPREADS)
    reading.say("gpus", per_node, env.where(_PROCESSES))
    if nodes > 1:
        reading.say("nodes", nodes, env.where(_NODES))


def _visible(env: Keys) -> int | None:
    """How many GPUs the processes of a machine see; ``None`` where nothing says it."""
    said = env.get(_VISIBLE)
    if said is None:
        return None
    named = [each.strip() for each in str(said).strip().removesuffix(",").split(",")]
    if not all(named) or any(each.startswith("-") for each in named) or len(set(named)) < len(named):
        raise UsageError(f"{env.where(_VISIBLE)}: '{show(said)}' must name each GPU that is seen, and once")
    return len(named)


def _read_allocator(env: Keys, reading: Reading) -> None:
    if name := counted_variable(env.get):
        say_allocator(str(env.get(name)), env.where(name), reading)
    env.skip(ALLOCATOR_VARIABLES)


def _with_model_kwargs(keys: Keys, env: Keys) -> Keys:
    """``model_kwargs`` in the place of variables, which it sets where it says something of images.

    Source: ms-swift 4.6.0 swift/arguments/base_args/base_args.py _init_model_kwargs.
    """
    said = keys.get("model_kwargs")
    named = {str(name).upper(): value for name, value in said.items()} if isinstance(said, dict) else {}
    return env if named.keys().isdisjoint(_PIXELS) else Keys(keys.path, named, "model_kwargs.")


def _read_pixels(env: Keys, reading: Reading) -> None:
    """The largest image, by variables that Qwen's towers alone have.

    Source: ms-swift 3.12.6 and 4.6.0 model/models/qwen.py compat_qwen_vl_utils: so many patches of pixels a
    token as the processor merges.
    """
    pixels, tokens = map(env.count, _PIXELS)
    name = _PIXELS[tokens is not None]
    family = _QWEN.search(str(reading.value("model")))
    if pixels is None and tokens is None:
        return
    if family is None:
        reading.remark(env.where(name), "images are not counted by it: say --image-size")
        return
    if sees_images(str(reading.value("model"))):
        reading.said.pop("images_per_sample", None)
        reading.say("images_per_sample", 1, env.where(name), IMAGES_UNSAID)
    side_of_token = 28 if family[1] == "2" else 32
    most = (pixels or 0) if tokens is None else tokens * side_of_token**2
    reading.limit_images(most, env.where(name), side_of_token)


def read_engine(keys: Keys, reading: Reading, beside: Beside, *, ranks: bool) -> None:
    """Enter DeepSpeed or FSDP; under neither, processes that have ranks checkpoint in the way that is not
    reentrant, be there one of them.
    """
    keys.refuse_above_one({"deepspeed_autotp_size": "a tensor-parallel degree"})
    _read_fsdp(keys, reading)
    read_files(keys, reading, beside, _preset(keys, "deepspeed"))
    _read_second_copy(keys, reading)
    if reading.sharding.engine == "native" and "gpus" in reading.said and ranks:
        place = "ms-swift 4.6.0 swift/trainers/mixin.py _fix_gradient_checkpointing: under torchrun"
        reading.default("checkpoint_reentrant", False, place)
        if reading.value("gpus") * (reading.value("nodes") or 1) > 1:
            reading.default("sharding", "ddp", "ms-swift 4.6.0 swift/cli/main.py: torchrun without an engine")


def _read_second_copy(keys: Keys, reading: Reading) -> None:
    """``zero_hpz_partition_size`` takes the place of the one of DeepSpeed's file.

    Source: ms-swift 4.6.0 swift/arguments/sft_args.py _init_deepspeed.
    """
    name = "zero_hpz_partition_size"
    count = 0 if keys.get(name) == 0 else keys.count(name)
    if count is None:
        return
    if not reading.sharding.is_zero3:
        reading.remark(keys.where(name), "is of ZeRO-3, and no other engine reads it")
        return
    reading.said.pop("hpz", None)
    if count > 1:
        reading.take(keys, {name: "hpz"})


def _preset(keys: Keys, name: str) -> Document | None:
    """The engine's file that ms-swift ships under this name."""
    said = keys.get(name)
    return stock_engine(said) if isinstance(said, str) else None


def _read_fsdp(keys: Keys, reading: Reading) -> None:
    """A preset, or a file with ``fsdp`` and ``fsdp_config``; where FSDP checkpoints itself,
    the Trainer does not, and never in the reentrant way.
    """
    if keys.get("fsdp") in (None, "", False):
        return
    preset = _preset(keys, "fsdp")
    if preset is None and isinstance(keys.get("fsdp"), dict):
        preset = Document(keys.path, keys.get("fsdp"))
    elif preset is None:
        preset = referred(keys, "fsdp", _OWN_PRESET, reading)
    part = Keys.of(Document(preset.path, {"fsdp": "full_shard auto_wrap", **preset.table}))
    config = preset.table.get("fsdp_config")
    if isinstance(config, dict) and config.get("activation_checkpointing"):
        place = "accelerate 1.15.0 accelerator.py:1983: NO_REENTRANT"
        reading.said.pop("checkpoint_reentrant", None)
        reading.default("checkpoint_reentrant", False, place)
    read_distribution(part, reading, Beside())
    part.skip(name for name in part.left_over_here() if name.startswith("_"))
    reading.finish(part)
