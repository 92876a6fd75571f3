"""A configuration of ``accelerate launch`` (YAML), beside a trainer's.

Keys and defaults: Accelerate 1.15.0 commands/config/config_args.py ``ClusterConfig`` and utils/launch.py.
"""

from __future__ import annotations

from planner.configs.launchers.deepspeed_json import read_deepspeed, swap_for_cpu_adam
from planner.configs.launchers.fsdp_keys import DEEPSPEED_FILE, Beside, FsdpKeys, read_fsdp, referred
from planner.configs.launchers.launch import LAUNCH_LINE, OPEN_NODES, VISIBLE
from planner.configs.launchers.zero import read_zero_buckets, say_leaves, say_offload, say_zero
from planner.configs.said_by_file import Reading, Shards
from planner.configs.shared.kernels import read_attention
from planner.configs.shared.key_tables import names_in
from planner.configs.shared.keys import Keys, is_left_open
from planner.errors import UsageError, show

TOOL = "Accelerate 1.15.0"
MARKS = frozenset({"distributed_type", "compute_environment"})
_FSDP_VERSION = 1
_COMPILED = "compilation is not counted: memory and time are those without it"
_ZERO_STAGE = 2
_DEGREES = {"tp_size": "tensor_parallel", "cp_size": "context_parallel", "sp_size": "context_parallel"}
# Who divides a sequence: torch over FSDP2's mesh, or DeepSpeed.
# Source: accelerate 1.15 accelerator.py _prepare_cp and _prepare_deepspeed.
_DIVIDER = {"cp_size": "FSDP", "sp_size": "DEEPSPEED"}

# Source: accelerate 1.15 accelerator.py _prepare_tp, which skips a model without DTensors; transformers 5.23
# distributed/utils.py initialize_distributed_mesh, which needs all GPUs in one mesh.
_WHOLE = (
    "divides no matrix itself, and beside FSDP a model that comes divided is not modelled; where the script "
    "loads it with DistributedConfig(tp_size=, fsdp_size=): --tensor-parallel N --sharding fsdp, no such file"
)

_HARMLESS = names_in("accelerate.toml", "harmless")
_KINDS = ("NO", "MULTI_GPU", "DEEPSPEED", "FSDP")

_DEEPSPEED_HARMLESS = names_in("accelerate.toml", "harmless_of_deepspeed")


def read_accelerate(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what a configuration of Accelerate says;
    what a trainer has said before wins where both may say it.
    """
    said = keys.get("distributed_type")
    # YAML reads a bare NO as false.
    kind = "NO" if said in (None, False) else str(said).upper()
    if kind not in _KINDS:
        raise keys.not_modelled("distributed_type", f"{show(kind)} is not modelled; {', '.join(_KINDS)} are")
    keys.refuse_switched_on(
        {
            "use_cpu": "training on a CPU is not modelled by this file: say --gpu cpu",
            "kt_config": "KTransformers' settings are read from LLaMA-Factory's own file alone",
        }
    )
    if str(keys.get("dynamo_backend") or "no").lower() != "no":
        reading.remark(keys.where("dynamo_backend"), _COMPILED)
    dynamo = keys.part("dynamo_config")
    if dynamo is not None:
        dynamo.skip(
            ("dynamo_mode", "dynamo_use_dynamic", "dynamo_use_fullgraph", "dynamo_use_regional_compilation")
        )
        if str(dynamo.get("dynamo_backend") or "no").lower() != "no":
            reading.remark(dynamo.where("dynamo_backend"), _COMPILED)
    read_counts(keys, reading, kind)
    _read_precision(keys, reading)
    fsdp, deepspeed = keys.section("fsdp_config"), keys.section("deepspeed_config")
    if kind == "FSDP":
        read_fsdp(fsdp, reading, FsdpKeys(_FSDP_VERSION, where=keys.where("distributed_type")))
    elif kind == "DEEPSPEED":
        _read_deepspeed(deepspeed, reading, beside)
        if reading.value("sharding") == "zero3":
            # accelerate 1.15 accelerator.py _prepare_deepspeed: set_moe_leaf_modules.
            say_leaves(deepspeed, "deepspeed_moe_layer_cls_names", reading)
    _read_parallelism(keys, reading, kind)
    keys.skip(_HARMLESS)
    # Tables of another kind of distribution say nothing about this job.
    for name, part in (("FSDP", fsdp), ("DEEPSPEED", deepspeed)):
        if kind != name:
            part.skip_rest()
    keys.section("fp8_config").skip_rest()


def _left_to_the_shell(keys: Keys, reading: Reading) -> bool:
    """Whether a command leaves its number of processes to a variable that only its shell knows; how many GPUs
    there are has to be given then.  The number of nodes that it leaves so is said, too.
    """
    if nodes := keys.as_written(OPEN_NODES):
        reading.remark(
            keys.where("--nnodes"), f"{show(nodes)} is not set here: one is counted, unless --nodes says more"
        )
    value = show(str(keys.as_written("num_processes")))
    if not (keys.path.name.endswith(LAUNCH_LINE) and is_left_open(value)):
        return False
    reading.needs["gpus"] = (
        f"{keys.path}: key 'num_processes' holds the placeholder {value}: fill it in first, or say how many "
        "GPUs a node has with --gpu X:n"
    )
    reading.remark(keys.where("num_processes"), f"{value} is not set here: the GPUs of --gpu are counted")
    return True


def read_counts(keys: Keys, reading: Reading, kind: str) -> None:
    """Machines and processes; without a kind of distribution one process is started (commands/launch.py
    ``simple_launcher``).
    """
    nodes = keys.count("num_machines") or 1
    if nodes > 1:
        reading.say("nodes", nodes, keys.where("num_machines"))
    if _left_to_the_shell(keys, reading):
        return
    processes = keys.count("num_processes")
    if processes is None and not (kind == "NO" and keys.has("distributed_type")):
        return
    if processes is None or kind == "NO":
        name = VISIBLE if keys.has(VISIBLE) else "gpu_ids"
        ids = str(keys.get(name) or "all")
        sees = 0 if ids == "all" else len(ids.split(","))
        by_command = keys.path.name.endswith(LAUNCH_LINE)
        unseen = "its command starts one process" if by_command else keys.where("distributed_type")
        place = keys.where(name) if sees else unseen
        reading.say("gpus", sees or 1, place)
        reading.one_process = (place, sees)
        return
    if processes % nodes:
        raise UsageError(
            f"{keys.where('num_processes')} is {processes}, which {nodes} machines cannot share alike"
        )
    where, before = keys.where("num_processes"), reading.said.get("gpus")
    if before is not None and before.value != processes // nodes:
        # An option, as which TRL hands its own key on (trl 1.16.0 cli/commands/training.py).
        reading.remark(where, f"the number of processes is that of {before.origin}")
        return
    reading.say("gpus", processes // nodes, where)


def _read_precision(keys: Keys, reading: Reading) -> None:
    """``mixed_precision``: a trainer's own bf16 or fp16 wins (Transformers 5.23
    training_args.py:1614-1618).
    """
    value = keys.get("mixed_precision")
    name = "no" if value in (None, False) else str(value).lower()
    before = reading.said.get("precision")
    if name == "fp8" and _read_te(keys, reading, default=before is None):
        return
    if name == "no" or (before is not None and before.value == f"{name}-mixed"):
        return
    if before is not None:
        reading.remark(
            keys.where("mixed_precision"),
            f"{show(name)} has no effect beside {before.value}: {before.origin}",
        )
        return
    if name == "fp8":
        _read_fp8(keys, reading)
        return
    if name not in ("bf16", "fp16"):
        raise keys.not_modelled("mixed_precision", f"{show(name)} is not modelled; bf16, fp16 and fp8 are")
    reading.say("precision", f"{name}-mixed", keys.where("mixed_precision"))


def _backend(keys: Keys) -> tuple[Keys, str, str]:
    """What is named to compute in fp8, by a table of the file or by an option, and where."""
    part = keys.section("fp8_config")
    return (
        (part, "backend", part.text("backend") or "AO")
        if part.has("backend")
        else (keys, "fp8_backend", keys.text("fp8_backend") or "AO")
    )


def _read_te(keys: Keys, reading: Reading, *, default: bool) -> bool:
    """Transformer Engine, which computes in fp8 beside a trainer's own bf16, too: Accelerate asks the
    variable that the launcher sets.  Then the recipe is the default one.  ``default``: whether no trainer
    says a precision of its own.

    Source: accelerate 1.15 accelerator.py fp8_backend (``ACCELERATE_FP8_BACKEND``), prepare,
    utils/dataclasses.py FP8BackendType (capitals), TERecipeKwargs, utils/launch.py setup_fp8_env.
    """
    part, place, backend = _backend(keys)
    if backend.upper() != "TE":
        return False
    if backend != "TE":
        raise part.stops(place, f"Accelerate stops at {show(backend)}, as it knows TE in capitals")
    if "true" in str(part.get("override_linear_precision")).lower():
        why = "products in 16 bits beside those in 8 (override_linear_precision) are not modelled"
        raise part.not_modelled("override_linear_precision", why)
    blocks = default and part.flag("use_mxfp8_block_scaling")
    reading.say("fp8", "te-mxfp8" if blocks else "te-delayed", part.where(place))
    if default:
        reading.say("precision", "bf16-mixed", keys.where("mixed_precision"))
    return True


def _read_fp8(keys: Keys, reading: Reading) -> None:
    """``fp8`` is bf16 with products of torchao, which Accelerate takes before others where none is named.

    Source: accelerate 1.15 accelerator.py ``__init__``, utils/dataclasses.py AORecipeKwargs and
    set_mixed_precision, utils/modeling.py get_mixed_precision_context_manager.
    """
    part = keys.section("fp8_config")
    of, place, backend = _backend(keys)
    if backend.upper() not in ("AO", "TORCHAO"):
        why = f"training in fp8 by {show(backend)} is not modelled; AO (torchao) and TE are"
        raise of.not_modelled(place, why)
    gathers = part.flag("enable_fsdp_float8_all_gather") is not False
    reading.say("precision", "bf16-mixed", keys.where("mixed_precision"))
    reading.say("fp8", "tensorwise-gathered" if gathers else "tensorwise", keys.where("mixed_precision"))


def _read_parallelism(keys: Keys, reading: Reading, kind: str) -> None:
    """``parallelism_config``: the degrees that the model and each sequence are divided by;
    what else they go with is checked later.
    """
    part = keys.part("parallelism_config")
    if part is None:
        return
    for name in part.left_over_here():
        end = next((end for end in _DEGREES if name.endswith(end)), "")
        degree = part.count(name) if end else None
        if degree is not None and degree > 1:
            if kind != _DIVIDER.get(end, kind):
                raise part.not_modelled(name, f"needs distributed_type {_DIVIDER[end]}, and it is {kind}")
            if end == "tp_size" and kind == "FSDP":
                raise part.not_modelled(name, _WHOLE)
            reading.say(_DEGREES[end], degree, part.where(name))
            _read_kernel(part, name.removesuffix("sp_size") + "sp_attn_implementation", reading)
        elif name.endswith("cp_comm_strategy") and part.text(name) not in (None, "allgather"):
            raise part.not_modelled(name, "keys that go from GPU to GPU are not modelled; allgather is")
        elif name.endswith("replicate_size") and (part.count(name) or 1) > 1:
            _read_replicas(part, name, reading)
        elif name.endswith("shard_size") and (shards := part.count(name) or 1) > 1:
            reading.shards = Shards(shards, part.where(name))
    part.skip_rest()


def _read_kernel(part: Keys, name: str, reading: Reading) -> None:
    """The attention of a model whose sequences are divided, which DeepSpeed asks to be that of the script.

    Source: deepspeed 0.19.8 runtime/sequence_parallel/ulysses_sp.py register_with_transformers.
    """
    if reading.value("attention") is None:
        read_attention(part, name, reading)


def _read_replicas(part: Keys, name: str, reading: Reading) -> None:
    """Copies of FSDP2's shards.  Source: accelerate 1.15 utils/fsdp_utils.py fsdp2_prepare_model, whose mesh
    is ``fsdp_dim_names``.
    """
    kind = reading.value("sharding")
    if kind != "fsdp":
        raise part.not_modelled(name, f"replicas beside sharding {kind or 'none'} are not modelled; FSDP2 is")
    reading.said.pop("sharding")
    reading.say("sharding", "hsdp", part.where(name))
    reading.say("replicas", part.count(name), part.where(name))


def _read_deepspeed(keys: Keys, reading: Reading, beside: Beside) -> None:
    """DeepSpeed by a file of its own, else by the few keys that Accelerate has for it."""
    keys.skip(_DEEPSPEED_HARMLESS)
    if keys.flag("zero3_init_flag") is False:
        reading.switch("zero3_init_flag", False, keys.where("zero3_init_flag"))
    if keys.has("deepspeed_config_file"):
        if beside.deepspeed is None:
            document = referred(keys, "deepspeed_config_file", DEEPSPEED_FILE, reading)
            part = Keys.of(document)
            read_deepspeed(part, reading)
            reading.finish(part)
        return
    if beside.deepspeed is not None:
        return
    said = keys.get("zero_stage")
    stage = 0 if said == 0 and said is not False else keys.count("zero_stage") or _ZERO_STAGE
    say_zero(keys, "zero_stage", stage, reading)
    # Accelerate writes no key of buckets (utils/dataclasses.py:1303-1321), so those of DeepSpeed hold.
    read_zero_buckets(Keys(keys.path, {"stage": stage}), reading)
    states = keys.text("offload_optimizer_device") or "none"
    params = keys.text("offload_param_device") or "none"
    places = [name for name in ("offload_optimizer_device", "offload_param_device") if keys.has(name)]
    say_offload(keys, (states, params), stage, reading, places[0] if places else "zero_stage")
    if states != "none":
        swap_for_cpu_adam(reading, keys.where(places[0]))
    keys.skip(("offload_optimizer_nvme_path", "offload_param_nvme_path"))
    steps = keys.get("gradient_accumulation_steps")
    if steps not in (None, "auto") and reading.value("grad_accum") is None:
        reading.say(
            "grad_accum", keys.count("gradient_accumulation_steps"), keys.where("gradient_accumulation_steps")
        )
