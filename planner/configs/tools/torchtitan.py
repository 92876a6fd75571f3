"""A job file of torchtitan (TOML), as it read them up to 2026-02-23 (9810191bb),
when Python took their place.

Keys and defaults: torchtitan e347b1e5e (2026-02-15) config/job_config.py; older names as in its train_configs
of 2024-10 (7c3a1fac2), 2025-02 (57387af0e) and 2025-06 (d0ed9b423).  Models: models/llama3/__init__.py and
models/qwen3/__init__.py; models/deepseek_v3/__init__.py, whose flavors have the dimensions of the names
below.
"""

from __future__ import annotations

from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.said_by_file import Reading, Shards
from planner.configs.shared.evaluation import say_evaluation
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.configs.tools.torchtitan_models import EXPERT_DEGREES, FLAVORS, debug_shape, read_experts
from planner.configs.yaml_or_json import Document
from planner.domain.recipes.parallel import Schedule
from planner.errors import show
from planner.words import words

TOOL = "torchtitan e347b1e"
STACK = "torchtitan"
# Keys that no other tool has.
MARKS = frozenset({"activation_checkpoint", "parallelism", "fault_tolerance", "memory_estimation"})
_COMPILED, _COMPILED_WITHOUT_LOSS, _OLD = "torchtitan-compile", "torchtitan-compile@2024", "torchtitan@2024"
_LOSS_ALONE = "loss"
# What a compiled loss holds, as in the stack torchtitan-compile.
_COMPILED_LOSS = {"loss_forward": "compute", "loss_backward": "compute+compute_grad"}
_PLACE = "torchtitan e347b1e5e config/job_config.py"
_TABLES = ("model", "training", "optimizer", "parallelism", "experimental")
_COPIES = "data_parallel_replicate_degree"
_DATA_DEGREES = (_COPIES, "data_parallel_shard_degree", "data_parallel_degree")
_TENSOR = "tensor_parallel_degree"
_DEGREES = {
    "context_parallel_degree": "a context-parallel degree",
}
_PIPELINE = "pipeline_parallel_degree"
_SCHEDULES: dict[str, Schedule] = {"1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved"}
_PIPELINE_KEYS = names_in("torchtitan.toml", "pipeline")
_OPTIMIZERS = {"fused": "adamw_torch_fused", "foreach": "adamw_torch"}
# Tables about reports, data, checkpoints and settings of what is switched on elsewhere.
_HARMLESS = words("profiling metrics lr_scheduler checkpoint comm memory_estimation debug quantize mx")
_HARMLESS_TRAINING = names_in("torchtitan.toml", "harmless_of_training")
_UNMODELLED_OF_DEBUG = texts_in("torchtitan.toml", "unmodelled_of_debug")
_HARMLESS_PARALLELISM = (
    "context_parallel_load_balancer",
    "context_parallel_rotate_method",
    "enable_compiled_autograd",
)

_CONVERTERS = ("float8", "quantize.linear.float8")
_RECIPES = {"tensorwise": "tensorwise", "rowwise": "rowwise", "rowwise_with_gw_hp": "rowwise-gw-hp"}
_HEAD = "output"


def is_torchtitan(document: Document) -> bool:
    """Whether a TOML file has its tables; a file of plan's own has none."""
    tables = all(isinstance(document.table.get(name), dict) for name in ("training", "model"))
    return tables and document.path.suffix == ".toml"


def read_torchtitan(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what a job file of torchtitan says."""
    del beside
    tables = {name: keys.section(name) for name in _TABLES}
    training = tables["training"]
    _refuse_extensions(keys, tables["experimental"])
    for part in (training, keys.section("debug")):
        part.refuse_switched_on(_UNMODELLED_OF_DEBUG)
    old = training.has("warmup_steps") or any(
        training.has(f"data_parallel{end}") for end in ("_degree", "_shard_degree")
    )
    compiled = _read_compile(keys, training)
    _choose_stack(keys, reading, compiled, old=old)
    _read_model(keys, tables["model"], reading, old=old)
    read_experts(tables["model"], tables["parallelism"], reading)
    _read_float8(keys, tables["model"], reading)
    _read_training(training, reading)
    _read_validation(keys.section("validation"), reading)
    _read_optimizer(tables["optimizer"], reading, old=old)
    _read_checkpointing(keys, reading)
    _read_distribution(tables, reading)
    for name in _HARMLESS:
        keys.section(name).skip_rest()


def _refuse_extensions(keys: Keys, experimental: Keys) -> None:
    """Modules of one's own, and trainings whose loop is another one."""
    reasons = dict.fromkeys(
        ("custom_import", "custom_args_module", "custom_model_path"), "code of one's own is not modelled"
    )
    experimental.refuse_switched_on(reasons)
    job, faults = keys.section("job"), keys.section("fault_tolerance")
    job.refuse_switched_on({"custom_config_module": "a configuration of one's own is not modelled"})
    faults.refuse_switched_on({"enable": "training that tolerates faults is not modelled"})
    job.skip_rest()
    faults.skip_rest()


def _read_compile(keys: Keys, training: Keys) -> str:
    """Stack of a compiled job, empty where nothing is compiled;
    the loss was not compiled before 2025-04-02 (bbb1b616e).
    """
    part = keys.part("compile")
    if part is None:
        return _COMPILED_WITHOUT_LOSS if training.flag("compile") else ""
    on = part.flag("enable")
    part.skip(("backend",))
    components = ("model", "loss") if part.get("components") is None else part.names("components")
    if not on:
        return ""
    if part.get("backend") not in (None, "inductor"):
        raise part.not_modelled("backend", "backends other than inductor are not modelled")
    if "model" not in components:
        return _LOSS_ALONE if "loss" in components else ""
    return _COMPILED if "loss" in components else _COMPILED_WITHOUT_LOSS


def _choose_stack(keys: Keys, reading: Reading, compiled: str, *, old: bool) -> None:
    if compiled == _LOSS_ALONE:
        compiled = ""
        for name, tensors in _COMPILED_LOSS.items():
            reading.switch(name, tensors, keys.where("compile.components"))
    stack = compiled or (_OLD if old else STACK)
    if stack != STACK:
        reading.said.pop("stack", None)
        where = keys.where("compile" if compiled else "training.warmup_steps")
        reading.say("stack", stack, where, "compiled" if compiled else "a file of torchtitan of 2024")
    reading.default("loss", "hf", "torchtitan e347b1e5e components/loss.py: cross entropy over whole logits")
    reading.default("attention", "sdpa", "torchtitan e347b1e5e models/llama3/model/args.py: attn_type sdpa")
    reading.switch("mixture_code", "torchtitan-2025", keys.where("model"))


def _read_model(keys: Keys, part: Keys, reading: Reading, *, old: bool) -> None:
    """Raises: NotModelledError for a model or a norm that is not known."""
    name, flavor = part.text("name") or "llama3", part.text("flavor") or "debugmodel"
    model = FLAVORS.get(name, {}).get(flavor) or debug_shape(keys, name, flavor)
    if not model:
        known = "; ".join(f"{each}: {', '.join(flavors)}" for each, flavors in FLAVORS.items())
        raise part.not_modelled("flavor", f"{show(name)} {show(flavor)} is not modelled; these are: {known}")
    reading.say("model", model, part.where("flavor"))
    reading.default("method", "full", "torchtitan trains all weights")
    norm = part.text("norm_type")
    if norm not in (None, "rmsnorm", "fused_rmsnorm"):
        raise part.not_modelled("norm_type", f"norms '{show(norm)}' are not modelled; rmsnorm is")
    if norm == "fused_rmsnorm" and old:
        reading.switch("fused_norm", True, part.where("norm_type"))
    part.skip(
        ("hf_assets_path", "tokenizer_path", "print_after_conversion", "use_flex_attn", "attn_mask_type")
    )
    if part.get("use_flex_attn"):
        reading.remark(part.where("use_flex_attn"), "counted as torch's fused attention, which keeps as much")


def _read_training(part: Keys, reading: Reading) -> None:
    reading.take(part, {"local_batch_size": "batch", "batch_size": "batch", "seq_len": "seq"})
    reading.default("batch", 8, f"{_PLACE} Training.local_batch_size")
    reading.default("seq", 2048, f"{_PLACE} Training.seq_len")
    total = part.get("global_batch_size")
    if isinstance(total, int) and not isinstance(total, bool) and total > 0:
        reading.total_batch = (total, part.where("global_batch_size"))
    else:
        reading.default("grad_accum", 1, f"{_PLACE} Training.global_batch_size")
    dtype, mixed = part.text("dtype") or "float32", part.text("mixed_precision_param") or "bfloat16"
    for name, value in (("dtype", dtype), ("mixed_precision_param", mixed)):
        if value not in ("float32", "bfloat16"):
            raise part.wrong(name, "float32 or bfloat16", value)
    # Under FSDP2 it stands for what is gathered; weights in bf16 compute in it without.
    precision = "bf16" if dtype == "bfloat16" else "bf16-mixed" if mixed == "bfloat16" else "fp32"
    reading.say(
        "precision", precision, part.where("mixed_precision_param" if dtype == "float32" else "dtype")
    )
    reading.say("load_dtype", "bf16" if dtype == "bfloat16" else "fp32", part.where("dtype"))
    if part.flag("enable_cpu_offload"):
        reading.say("offload", "optimizer+params", part.where("enable_cpu_offload"), "FSDP offloads both")
    # A key of 2024-05 (14d422f0c config_manager.py); "" is off.
    part.refuse_switched_on({"fp8_linear": "fp8 of torchtitan before [float8] is not modelled"})
    part.skip(_HARMLESS_TRAINING)


def _read_validation(part: Keys, reading: Reading) -> None:
    """Batches of their own size and length (config/job_config.py Validation, components/validate.py)."""
    if part.flag("enable"):
        size, length = part.count("local_batch_size") or 8, part.count("seq_len") or 2048
        say_evaluation(reading, size, part.where("local_batch_size"), length)
    part.skip_rest()


def _read_optimizer(part: Keys, reading: Reading, *, old: bool) -> None:
    name = part.text("name") or "AdamW"
    if name not in ("Adam", "AdamW"):
        raise part.not_modelled("name", f"optimizer '{show(name)}' is not modelled; Adam and AdamW are")
    reason = "an optimizer that steps inside of the backward pass is not modelled"
    part.refuse_switched_on({"early_step_in_backward": reason})
    kind, fused = part.text("implementation"), part.flag("fused")
    if kind is not None and kind not in _OPTIMIZERS:
        raise part.not_modelled(
            "implementation", f"'{show(kind)}' is not modelled; {' and '.join(_OPTIMIZERS)} are"
        )
    if kind is not None:
        reading.say("optimizer", _OPTIMIZERS[kind], part.where("implementation"))
    elif fused is not None:
        reading.say("optimizer", "adamw_torch_fused" if fused else "adamw_torch", part.where("fused"))
    elif old:
        reading.default(
            "optimizer",
            "adamw_torch",
            "torchtitan 7c3a1fac2 (2024-10) config_manager.py: optimizer.fused is false",
        )
    part.skip(("lr", "beta1", "beta2", "eps", "weight_decay"))


def _read_checkpointing(keys: Keys, reading: Reading) -> None:
    """``activation_checkpoint``; without the table every second layer (mode selective, option 2)."""
    part = keys.section("activation_checkpoint")
    mode, option = part.text("mode") or "selective", str(part.get("selective_ac_option") or "2")
    where = part.where("mode")
    details = words(
        """
        early_stop preserve_rng_state determinism_check debug memory_budget visualize_memory_budget_pareto
        """
    )
    part.skip(details)
    forced = part.get("per_op_sac_force_recompute_mm_shapes_by_fqns")
    if forced and forced != ["moe.router.gate"]:
        raise part.not_modelled(
            "per_op_sac_force_recompute_mm_shapes_by_fqns",
            "products that are always made again are not modelled",
        )
    if mode not in ("none", "full", "selective"):
        raise part.not_modelled("mode", f"'{show(mode)}' is not modelled; none, full and selective are")
    reading.say("gradient_checkpointing", mode != "none", where)
    if mode == "none":
        return
    if mode == "selective" and option == "op":
        reading.say("checkpoint_policy", "selective-op", part.where("selective_ac_option"))
        return
    reading.say("checkpoint_policy", "full", where)
    if mode == "selective":
        if not option.isdecimal() or int(option) < 1:
            raise part.wrong("selective_ac_option", "op, or a whole number above zero", option)
        reading.say("checkpoint_every", int(option), part.where("selective_ac_option"))


def _read_distribution(tables: dict[str, Keys], reading: Reading) -> None:
    """FSDP2 over all GPUs, or DDP; files of 2024 have the degrees in ``training`` and ``experimental``."""
    parallelism, training = tables["parallelism"], tables["training"]
    for each in (parallelism, training, tables["experimental"]):
        each.refuse_above_one(_DEGREES if each is parallelism else _DEGREES | EXPERT_DEGREES)
        _read_tensor_degree(each, reading)
        _read_pipeline(each, training, reading)
        each.skip((*_DEGREES, *EXPERT_DEGREES, *_HARMLESS_PARALLELISM, *_DATA_DEGREES))
    part = (
        training
        if training.has("data_parallel_shard_degree") or training.has("data_parallel_degree")
        else parallelism
    )
    copies = part.get(_COPIES) or 1
    shards = part.get("data_parallel_shard_degree")
    shards = part.get("data_parallel_degree") if shards is None else shards
    pipeline = "pipeline_parallel" in reading.said
    reading.one_batch = (
        "fp32",
        "torchtitan e347b1e5e distributed/utils.py maybe_enable_amp: FSDP casts, or none",
    )
    never = _stays_whole(tables, pipeline=pipeline)
    where = part.where("data_parallel_shard_degree")
    if copies != 1 and shards == 1:
        reading.say("sharding", "ddp", part.where(_COPIES))
        return
    reading.shards = Shards(shards, where) if isinstance(shards, int) and shards > 1 else None
    # Reductions are in fp32 whatever is gathered: mixed_precision_reduce has no other value.
    reading.switch("fsdp_reduces_fp32", True, where)
    kind = "fsdp-grad-op" if never else "fsdp"
    if copies != 1:
        if never:
            raise part.not_modelled(
                _COPIES, "replicas of shards that stay whole after forward are not modelled"
            )
        reading.say("replicas", part.count(_COPIES), part.where(_COPIES))
        reading.say("sharding", "hsdp", part.where(_COPIES))
        return
    if reading.shards:
        reading.say("sharding", kind, where)
    elif shards != 1 and not pipeline:
        reading.several = (kind, f"{_PLACE} Parallelism.data_parallel_shard_degree: -1 means all GPUs")


def _stays_whole(tables: dict[str, Keys], *, pipeline: bool) -> bool:
    """Whether FSDP leaves weights whole after their forward; beside a pipeline it does so by default, too.

    The key stood in the table of training in 2025-02 (57387af0e).
    """
    part = tables["training" if tables["training"].holds("fsdp_reshard_after_forward") else "parallelism"]
    policy = part.text("fsdp_reshard_after_forward")
    if pipeline and policy == "always":
        raise part.not_modelled(
            "fsdp_reshard_after_forward",
            "weights that a pipeline gathers for each micro-batch are not modelled",
        )
    return pipeline or policy == "never"


def _read_pipeline(part: Keys, training: Keys, reading: Reading) -> None:
    """Layers over groups of GPUs; the batch of a file is that of all micro-batches of a round."""
    degree = part.count(_PIPELINE) or 1
    if degree > 1:
        reading.say("pipeline_parallel", degree, part.where(_PIPELINE))
        _read_schedule(part, reading)
        for name in ("pipeline_parallel_first_stage_less_layers", "pipeline_parallel_last_stage_less_layers"):
            if part.get(name) not in (None, 1):
                raise part.not_modelled(name, "stages are modelled whose ends count as one layer")
        size, found = part.count("pipeline_parallel_microbatch_size") or 1, training.count("local_batch_size")
        batch = found or training.count("batch_size") or 8
        if batch % size:
            raise part.wrong(
                "pipeline_parallel_microbatch_size", f"a divisor of local_batch_size {batch}", size
            )
        where = part.where("pipeline_parallel_microbatch_size")
        reading.said.pop("batch", None)
        reading.say("batch", size, where)
        reading.say("pipeline_microbatches", batch // size, where, "local_batch_size over it")
        if reading.total_batch is None:
            reading.said.pop("grad_accum", None)
            reading.say("grad_accum", batch // size, where)
    part.skip(_PIPELINE_KEYS)


def _read_schedule(part: Keys, reading: Reading) -> None:
    said = part.text("pipeline_parallel_schedule") or "1F1B"
    schedule = _SCHEDULES.get(said.lower())
    if schedule is None:
        raise part.not_modelled(
            "pipeline_parallel_schedule",
            f"'{show(said)}' is not modelled; 1F1B, GPipe and Interleaved1F1B are",
        )
    reading.say("pipeline_schedule", schedule, part.where("pipeline_parallel_schedule"))
    reason = "stages of one's own are not modelled"
    part.refuse_switched_on(
        dict.fromkeys(
            (
                "pipeline_parallel_schedule_csv",
                "pipeline_parallel_layers_per_stage",
                "pipeline_parallel_split_points",
                "module_fqns_per_model_part",
            ),
            reason,
        )
    )


def _read_tensor_degree(part: Keys, reading: Reading) -> None:
    """Matrices over several GPUs, with the stream over their tokens and a loss over divided logits."""
    degree = part.count(_TENSOR) or 1
    if degree > 1:
        reading.say("tensor_parallel", degree, part.where(_TENSOR))
        # models/llama3/infra/parallelize.py apply_tp: the table is a DTensor, until 0.3.
        reading.switch("whole_table_gradient", True, part.where(_TENSOR))
        part.refuse_switched_on(
            {
                "disable_loss_parallel": "a loss over whole logits beside tensor parallelism is not modelled",
                "enable_async_tensor_parallel": "products that send while they run are not modelled",
            }
        )
    part.skip(("disable_loss_parallel", "enable_async_tensor_parallel"))


def _read_float8(keys: Keys, model: Keys, reading: Reading) -> None:
    """Enter how products are scaled, where a converter makes them 8-bit ones.

    Source: torchtitan e347b1e5e components/quantization/float8.py Float8LinearConverter and
    config/job_config.py; 7c3a1fac2 (2024-10) torchtitan/float8.py, which leaves the head alone.

    Raises:
        NotModelledError: another converter, or other matrices than all of the layers.
    """
    part = keys.section("quantize").section("linear").part("float8") or keys.section("float8")
    names = [] if model.get("converters") is None else model.names("converters")
    others = [name for name in names if name not in _CONVERTERS]
    if others:
        raise model.not_modelled("converters", f"{show(others[0])} is not modelled; float8 is")
    old = part.flag("enable_float8_linear")
    if names or old:
        _read_recipe(part, reading, old=bool(old))
    part.skip_rest()


def _read_recipe(part: Keys, reading: Reading, *, old: bool) -> None:
    """Raises: NotModelledError for a recipe that is not known."""
    part.refuse_switched_on({"emulate": "products that only look like 8-bit ones are not modelled"})
    left = [_HEAD] if old else part.names("filter_fqns") if part.has("filter_fqns") else []
    if list(left) != [_HEAD]:
        raise part.not_modelled(
            "filter_fqns", "fp8 is modelled where all matrices but the head ('output') have it"
        )
    recipe = part.text("recipe_name") or "tensorwise"
    if recipe not in _RECIPES:
        raise part.not_modelled("recipe_name", f"{show(recipe)} is not modelled; {', '.join(_RECIPES)} are")
    gathers = recipe == "tensorwise" and part.flag("enable_fsdp_float8_all_gather")
    place = "enable_float8_linear" if old else "recipe_name"
    reading.say("fp8", "tensorwise-gathered" if gathers else _RECIPES[recipe], part.where(place))
