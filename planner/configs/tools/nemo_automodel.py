"""A recipe of NeMo AutoModel (YAML) that fine-tunes a language model of Transformers under FSDP2.

Keys: NVIDIA-NeMo/Automodel 36044ad3d (2026-08-22, 0.5.0) nemo_automodel/recipes/llm/train_ft.py,
components/distributed/config.py, components/_peft/lora.py,
_transformers/auto_model.py.
"""

from __future__ import annotations

from planner.catalog.models import ModelEntry, entry_named_in
from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.said_by_file import Reading
from planner.configs.shared.checkpoints import remark_on_own_code
from planner.configs.shared.evaluation import say_evaluation
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.configs.tools.nemo_automodel_vision import SEEING_FAMILIES, read_seeing
from planner.configs.yaml_or_json import Document
from planner.domain.recipes.recipe import TARGET_PATTERN
from planner.errors import show
from planner.words import words

TOOL = "NeMo AutoModel 0.5.0"
STACK = "automodel"
MARKS = frozenset({"step_scheduler", "dist_env", "packed_sequence", "freeze_config"})
_TARGET = "_target_"
_BF16 = "bfloat16"
_PLACE = "nemo-automodel 0.5.0"
_RECIPE = "TrainFinetuneRecipeForNextTokenPrediction"
# recipes/llm/benchmark.py: the same step in a loop that only drops gradients later, before the next forward.
_RECIPES = (_RECIPE, "BenchmarkingRecipeForNextTokenPrediction")
_SEEING_RECIPE, _SEEING_MODEL = "FinetuneRecipeForVLM", "NeMoAutoModelForImageTextToText"
_MODEL = "NeMoAutoModelForCausalLM"
_NAME = "pretrained_model_name_or_path"
# components/models/{llama,qwen2,qwen3}/model.py, of the same layers (the gate in plain torch), run in place
# of the classes of Transformers unless force_hf is true.
_OWN = ("llama", "qwen2", "qwen3")
# components/models/qwen3/model.py takes these from Transformers.
_PLAIN_NORMS = ("qwen3",)
# The others it has no class for, and takes that of Transformers.
_FAMILIES = (
    *_OWN,
    *words("mistral phi phi3 olmo2 granite glm seed_oss gemma gemma2 gemma3_text cohere2"),
)
# Names under which configurations have the number of experts.
_EXPERTS = frozenset(words("num_experts num_local_experts n_routed_experts"))
_DIVIDED_BY_TORCHTITAN = ("qwen3_moe", "deepseek_v3")
_OPTIMIZERS = {
    "torch.optim.Adam": ("adamw_torch", "adamw_torch_fused"),
    "torch.optim.AdamW": ("adamw_torch", "adamw_torch_fused"),
}
_LOSS, _FUSED_LOSS = "MaskedCrossEntropy", "FusedLinearCrossEntropy"
# Which a switch makes cut cross entropy.
_CUT = "liger"
# The tokenizer then takes no ``max_length``; components/datasets/llm: all data sets leave it at one of these.
_UNCUT = (None, False, "do_not_truncate")
# components/models/common/utils.py BackendConfig, of which dense classes read the norm and the rotary kernel;
# ``attn`` is for packed rows.  Both norms are one kernel that keeps its input.
_BACKENDS = {
    "attn": ("sdpa",),
    "linear": ("torch",),
    "rms_norm": ("torch", "torch_fp32"),
    "rope": ("torch",),
}
_ATTENTION = {None: "sdpa", "sdpa": "sdpa", "eager": "eager", "flash_attention_2": "flash2"}
_UNMODELLED = texts_in("nemo-automodel.toml", "unmodelled")
_UNMODELLED_OF_TEXT = texts_in("nemo-automodel.toml", "unmodelled_of_text")
_DEGREES = texts_in("nemo-automodel.toml", "degrees")
_TRUST, _CHANGED = "trust_remote_code", "a configuration with changed values is not modelled"
_UNMODELLED_MODEL = texts_in("nemo-automodel.toml", "unmodelled_of_model")
_UNMODELLED_FSDP = texts_in("nemo-automodel.toml", "unmodelled_of_fsdp")
_HARMLESS = names_in("nemo-automodel.toml", "harmless")
_HARMLESS_BACKEND = names_in("nemo-automodel.toml", "harmless_of_backend")
_UNMODELLED_BACKEND = texts_in("nemo-automodel.toml", "unmodelled_of_backend")


def is_nemo_automodel(document: Document) -> bool:
    """Whether a file has the scheduler of its recipes."""
    return isinstance(document.table.get("step_scheduler"), dict) and "model" in document.table


def read_nemo_automodel(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what a recipe of NeMo AutoModel says."""
    del beside
    sees = _sees(keys)
    keys.refuse_switched_on(_UNMODELLED)
    _refuse_compiled(keys)
    _refuse_generation(keys)
    _read_steps(keys, reading)
    if sees:
        _read_model(keys, reading, _SEEING_MODEL, SEEING_FAMILIES)
        read_seeing(keys, reading)
    else:
        keys.refuse_switched_on(_UNMODELLED_OF_TEXT)
        _read_model(keys, reading, _MODEL, _FAMILIES)
    _read_loss(keys, reading)
    _read_adapters(keys, reading)
    _read_data(keys, reading)
    _read_validation(keys, reading)
    _read_optimizer(keys, reading)
    _read_distribution(keys, reading)
    keys.skip(_HARMLESS)


def _sees(keys: Keys) -> bool:
    """Whether the recipe is that of models that see.

    Raises:
        NotModelledError: a recipe that trains otherwise.
    """
    given = keys.get("recipe")
    name = str(given.get(_TARGET) if isinstance(given, dict) else given or _RECIPE).rpartition(".")[2]
    if name not in (*_RECIPES, _SEEING_RECIPE):
        raise keys.not_modelled("recipe", f"{show(name)} is not modelled; {_RECIPE} is")
    return name == _SEEING_RECIPE


def _refuse_compiled(keys: Keys) -> None:
    part = keys.section("compile")
    if part.flag("enabled"):
        raise part.not_modelled("enabled", "compiled models of AutoModel are not modelled")
    part.skip_rest()


def _refuse_generation(keys: Keys) -> None:
    """Raises: NotModelledError: answers made between steps, which FSDP2 leaves out unless it is told to.

    Source: recipes/llm/train_ft.py _run_validation_epoch.
    """
    part = keys.section("tool_call_eval")
    if part.flag("run_on_fsdp2"):
        raise part.not_modelled("run_on_fsdp2", "answers that the model makes between steps are not modelled")
    part.skip_rest()


def _read_steps(keys: Keys, reading: Reading) -> None:
    """Source: components/training/step_scheduler.py: 32 samples a step, one at a time."""
    part = keys.section("step_scheduler")
    reading.take(part, {"local_batch_size": "batch", "num_epochs": "epochs"})
    total = part.count("global_batch_size")
    if reading.value("batch") is None:
        reading.default("batch", 1, f"{_PLACE} components/training/step_scheduler.py")
    if total is not None:
        reading.total_batch = (total, part.where("global_batch_size"))
    part.skip_rest()


def _read_model(keys: Keys, reading: Reading, loader: str, families: tuple[str, ...]) -> None:
    """Raises: NotModelledError for another loader than this, or layers of other families."""
    part = keys.part("model")
    if part is None:
        raise keys.not_modelled("model", "no model is named")
    kind = str(part.get(_TARGET))
    if f"{loader}." not in kind:
        raise part.not_modelled(_TARGET, f"{show(kind)} is not modelled; {loader} is")
    config = part.part("config") if isinstance(part.get("config"), dict) else None
    place = config if config is not None and not part.has(_NAME) else part
    key = _NAME if place.has(_NAME) else "config"
    name = place.text(key)
    if name is None:
        raise part.not_modelled(_TARGET, "no checkpoint or configuration is named")
    entry = entry_named_in(name.rstrip("/"))
    _refuse_mixture(place, key, entry)
    if entry is None or entry.config.get("model_type") not in families:
        raise place.not_modelled(
            key, f"AutoModel's layers of {show(name)} are not modelled: name one of {', '.join(families)}"
        )
    reading.say("model", name, place.where(key))
    remark_on_own_code(part, name, reading)
    if config is not None:
        if odd := [each for each in config.left_over_here() if each not in (_TARGET, _TRUST)]:
            raise config.not_modelled(odd[0], _CHANGED)
        config.skip((_TARGET, _TRUST))
    part.refuse_switched_on(_UNMODELLED_MODEL)
    _read_backend(part, str(entry.config["model_type"]))
    if loader == _SEEING_MODEL and part.flag("output_hidden_states"):
        raise part.not_modelled("output_hidden_states", "those of models that see are not modelled")
    if part.flag("output_hidden_states"):
        reading.switch("keeps_hidden_states", True, part.where("output_hidden_states"))
    _read_dtype(part, entry, reading)
    _read_class(part, str(entry.config["model_type"]), reading)
    part.skip((_TRUST, "use_sdpa_patching", "revision"))
    part.refuse_rest(_CHANGED)


def _refuse_mixture(place: Keys, key: str, entry: ModelEntry | None) -> None:
    """Raises: NotModelledError for a mixture of experts.

    Neighbouring GPUs have some experts of each layer, and FSDP2 divides those over GPUs that have the same
    ones, as in torchtitan (components/distributed/mesh_utils.py, components/moe/parallelizer.py apply_ep).
    Left out here: buffers of DeepEP, products of Transformer Engine, and weights that stay gathered behind
    the forward pass (moe/parallelizer.py ``reshard_after_forward``).
    """
    if entry is None or _EXPERTS.isdisjoint(entry.config):
        return
    way_out = "say the job by flags (plan --help)"
    if entry.config.get("model_type") in _DIVIDED_BY_TORCHTITAN:
        way_out = f"torchtitan's way is plan --model {entry.id} --stack torchtitan@2025 --expert-parallel N"
    raise place.not_modelled(key, f"AutoModel's kernels and buffers of experts are not modelled: {way_out}")


def _read_backend(part: Keys, family: str) -> None:
    """Raises: NotModelledError for kernels of other libraries, or any choice for a class of Transformers."""
    backend = part.part("backend")
    if backend is None:
        return
    if family not in _OWN or part.flag("force_hf"):
        raise part.not_modelled("backend", f"backends are modelled for AutoModel's own {', '.join(_OWN)}")
    for name, taken in _BACKENDS.items():
        if backend.get(name) not in (None, *taken):
            found, verb = show(backend.get(name)), "is" if len(taken) == 1 else "are"
            raise backend.not_modelled(name, f"{found} is not modelled; {' and '.join(taken)} {verb}")
    backend.refuse_switched_on(_UNMODELLED_BACKEND)
    backend.skip(_HARMLESS_BACKEND)
    backend.refuse_rest("what it changes was not read")


def _read_class(part: Keys, family: str, reading: Reading) -> None:
    """Whose class runs, and its kernels.  Its own ones take no others; those of Transformers are patched by
    Liger where that is installed, which is no dependency since 0.3 (pyproject.toml).
    """
    own = family in _OWN and not part.flag("force_hf")
    patched = part.flag("use_liger_kernel") is not False and not own
    where = part.where(_TARGET)
    if not own:
        reading.switch("checkpoints_parts", False, where)
        reading.switch("caches_keys", True, where)
    if not own or family in _PLAIN_NORMS:
        reading.switch("fused_norm", False, where)
    if patched:
        reading.remark(where, "counted without liger-kernel, which patches classes of Transformers")
    attention = part.text("attn_implementation")
    # Own classes call Transformers' function where it is eager.
    if attention not in _ATTENTION:
        raise part.not_modelled("attn_implementation", f"{show(attention)} is not modelled here; sdpa is")
    where = part.where("attn_implementation")
    note = "" if attention else "taken where flash-attn is not installed"
    reading.say("attention", _ATTENTION[attention], where, note)


def _read_dtype(part: Keys, entry: ModelEntry, reading: Reading) -> None:
    """Left out it is ``auto``, the one of the checkpoint (_transformers/auto_model.py from_pretrained).

    Raises: NotModelledError for another than bf16, which several GPUs cast, and one does not.
    """
    given = (part.text("torch_dtype") or "auto").removeprefix("torch.")
    said = entry.config.get("torch_dtype", entry.config.get("dtype"))
    dtype = said if given == "auto" else given
    if dtype not in ("bf16", _BF16):
        raise part.not_modelled("torch_dtype", f"weights in {show(dtype)} are not modelled here; bf16 is")
    reading.say("load_dtype", _BF16, part.where("torch_dtype"))


def _read_adapters(keys: Keys, reading: Reading) -> None:
    """Adapters of its own code, on all ``*_proj`` where no module is named."""
    part = keys.part("peft")
    if part is None:
        reading.say("method", "full", str(keys.path), "there is no table peft")
        return
    where = part.where(_TARGET)
    if str(part.get(_TARGET)).rpartition(".")[2] != "PeftConfig":
        raise part.not_modelled(_TARGET, "other adapters than its LoRA are not modelled")
    reading.say("method", "lora", where)
    reading.take(part, {"dim": "lora_rank", "dropout": "lora_dropout"})
    reading.default("lora_rank", 8, f"{_PLACE} components/_peft/lora.py PeftConfig.dim")
    reading.default("lora_dropout", 0.0, f"{_PLACE} components/_peft/lora.py PeftConfig.dropout")
    reading.say("lora_targets", _targets(part, reading), part.where("target_modules"))
    if part.flag("use_memory_efficient_lora") is False:
        raise part.not_modelled("use_memory_efficient_lora", "adapters that keep more are not modelled")
    if part.get("dropout_position") not in (None, "post"):
        raise part.not_modelled("dropout_position", "dropout before adapters is not modelled; post is")
    if part.flag("use_dora"):
        raise part.not_modelled("use_dora", "DoRA of AutoModel is not modelled")
    if part.get("lora_dtype") is not None:
        dtype = str(part.get("lora_dtype")).removeprefix("torch.")
        reading.say("adapter_dtype", dtype, part.where("lora_dtype"))
    # Kernels of Triton or products of torch: one function of AutoModel calls either, with the same tensors.
    part.skip(("alpha", "lora_A_init", "moe_rank_scaling", "use_triton"))


def _targets(part: Keys, reading: Reading) -> tuple[str, ...]:
    """Names of modules as PEFT reads them, or one expression.

    Source: components/_peft/module_matcher.py; components/loss/utils.py calculate_loss, which takes the
    head's weight alone.
    """
    if part.names("exclude_modules"):
        raise part.not_modelled("exclude_modules", "adapters on all but some modules are not modelled")
    if part.flag("match_all_linear"):
        if reading.value("loss") == _CUT:
            where = part.where("match_all_linear")
            reading.remark(where, "the fused loss reads no adapter of the head, which is not counted")
            return (f"{TARGET_PATTERN}(?!.*lm_head).*",)
        # Not only those of the layers.
        return (f"{TARGET_PATTERN}.*",)
    named = part.names("target_modules") or ("*_proj",)
    if not any("*" in name or "." in name for name in named):
        return named
    pattern = "|".join(name.replace(".", r"\.").replace("*", ".*") for name in named)
    return (f"{TARGET_PATTERN}(?:{pattern})",)


def _read_loss(keys: Keys, reading: Reading) -> None:
    """Whole logits, widened to fp32 unless the file says no, or cut cross entropy on the last norm.

    The root of FSDP2, whose unit has the head, is not divided again after forward: the loss reads its whole
    weight (components/distributed/parallelizer.py; components/loss/linear_ce.py materialize_lm_weight).
    """
    part = keys.part("loss_fn")
    kind = _LOSS if part is None else str(part.get(_TARGET)).rpartition(".")[2]
    if part is None or kind not in (_LOSS, _FUSED_LOSS):
        place, both = part or keys, f"{_LOSS} and {_FUSED_LOSS}"
        raise place.not_modelled(
            _TARGET if part else "loss_fn", f"the loss {show(kind)} is not modelled; {both} are"
        )
    if part.flag("fp32_upcast") is False:
        raise part.not_modelled("fp32_upcast", "a loss over 16-bit logits is not modelled")
    if kind == _FUSED_LOSS:
        _read_fused_loss(part, reading)
    part.skip(("ignore_index", "reduction"))


def _read_fused_loss(part: Keys, reading: Reading) -> None:
    """The loss takes the last of the hidden states, which the model returns where it is asked for them all.

    Raises:
        UsageError: recipes/llm/train_ft.py _forward_backward_step stops.
    """
    where = part.where(_TARGET)
    if "keeps_hidden_states" not in reading.switches:
        raise part.stops(_TARGET, "AutoModel stops without model.output_hidden_states true")
    reading.say("loss", _CUT, where, "of which a switch makes cut cross entropy")
    reading.switch("cut_cross_entropy", True, where)
    part.skip(("logit_softcapping",))


def _read_data(keys: Keys, reading: Reading) -> None:
    """Rows that are padded to the longest of a batch, or made at one length.

    Source: components/datasets/utils.py default_collater; components/models/llama/model.py (packed rows need
    ``backend.attn`` te).
    """
    packed, data = keys.part("packed_sequence"), keys.part("dataset")
    if packed is not None:
        name = "packed_sequence_size" if packed.has("packed_sequence_size") else "pack_size"
        if packed.get(name):
            raise packed.not_modelled(
                name, "packed rows need Transformer Engine, which is not modelled here: 0 is"
            )
        packed.skip_rest()
    loader = keys.part("dataloader")
    multiple = _row_multiple(loader)
    if loader is not None:
        if loader.count("batch_size") not in (None, reading.value("batch")):
            text = "batches of another size than step_scheduler.local_batch_size are not modelled"
            raise loader.not_modelled("batch_size", text)
        loader.skip_rest()
    if data is None:
        return
    mock = str(data.get(_TARGET)).rpartition(".")[2].startswith("Mock")
    name = "seq_len" if mock else "seq_length"
    length = data.count(name)
    full = data.get("padding") == "max_length" or data.flag("pad_to_max_length")
    if length is None:
        reading.needs["seq"] = f"{keys.path}: no key limits the samples, so the longest decides: say --seq"
    elif not mock and data.get("truncation") in _UNCUT:
        reading.needs["seq"] = (
            f"{data.where(name)} cuts nothing without truncation, so the longest sample decides: say --seq"
        )
    else:
        reading.say("seq", -(-length // multiple) * multiple, data.where(name))
        full = full or multiple >= length
    reading.say("padding", "packed" if mock else "max_length" if full else "longest", data.where(_TARGET))
    data.skip_rest()


def _read_validation(keys: Keys, reading: Reading) -> None:
    """Batches that are evaluated, of training's size unless their loader says another.

    Source: recipes/_typed_config.py validation_dataloaders; recipes/llm/train_ft.py _run_validation_epoch.
    """
    loader, data = keys.part("validation_dataloader"), keys.part("validation_dataset")
    if loader is None or data is None:
        return
    size, length = loader.count("batch_size"), data.get("seq_length")
    if size is not None:
        where = loader.where("batch_size")
        say_evaluation(reading, size, where, length if isinstance(length, int) else None)
    loader.skip_rest()
    data.skip_rest()


def _row_multiple(loader: Keys | None) -> int:
    """Of how many tokens each batch is made a multiple: components/datasets/utils.py pad_within_micro."""
    if loader is None or not isinstance(loader.get("collate_fn"), dict):
        return 1
    collate = loader.part("collate_fn")
    return (collate and collate.count("pad_seq_len_divisible")) or 1


def _read_optimizer(keys: Keys, reading: Reading) -> None:
    part = keys.part("optimizer")
    kind = "" if part is None else str(part.get(_TARGET))
    if part is None or kind not in _OPTIMIZERS:
        place, names = part or keys, " and ".join(_OPTIMIZERS)
        raise place.not_modelled(
            _TARGET if part else "optimizer", f"optimizer {show(kind)} is not modelled; {names} are"
        )
    if part.flag("amsgrad"):
        raise part.not_modelled("amsgrad", "a state more than usual is not modelled")
    reading.say("optimizer", _OPTIMIZERS[kind][bool(part.flag("fused"))], part.where(_TARGET))
    if part.flag("foreach") is False:
        reading.switch("foreach_step_copies", 0, part.where("foreach"))
    part.skip(("lr", "betas", "eps", "weight_decay", "min_lr"))


def _read_distribution(keys: Keys, reading: Reading) -> None:
    """FSDP2 over all GPUs, which reduces gradients once a step; alone, nothing is divided.

    Source: components/distributed/fsdp2.py FSDP2Manager.parallelize.
    """
    part = keys.section("distributed")
    strategy = part.text("strategy") or "fsdp2"
    if part.has(_TARGET):
        _refuse_older(part, keys)
        reading.remark(part.where(_TARGET), f"has no effect: strategy is read, and left out it is {strategy}")
    if strategy != "fsdp2":
        raise part.not_modelled("strategy", f"{show(strategy)} of AutoModel is not modelled; fsdp2 is")
    for name, what in _DEGREES.items():
        # Its files write none for what is not given.
        if part.get(name) not in (None, "none", "None", 1):
            raise part.not_modelled(name, f"{what} of {show(part.get(name))} is not modelled; only 1 is")
    part.refuse_switched_on(_UNMODELLED_FSDP)
    if part.flag("reshard_after_forward") is not None:
        raise part.not_modelled(
            "reshard_after_forward", "another choice of what stays gathered is not modelled"
        )
    if part.flag("defer_fsdp_grad_sync") is False:
        reading.switch("fsdp_no_sync", "neither", part.where("defer_fsdp_grad_sync"))
    _read_checkpointing(part, reading)
    reading.several = ("fsdp", f"{_PLACE} components/distributed/fsdp2.py: fsdp2 divides over all GPUs")
    part.skip((_TARGET, "dp_size", "sequence_parallel", "pipeline", "moe", "patch_is_packed_sequence"))


def _refuse_older(part: Keys, keys: Keys) -> None:
    """The key ``recipe`` is of 35b5ed9c9 (2026-04), later than ``strategy`` (194103bfc), with which
    recipes/_dist_utils.py parse_distributed_section drops a class.

    Raises: NotModelledError for a file of before.
    """
    if not keys.has("recipe"):
        raise part.not_modelled(_TARGET, "AutoModel before 0.3, which reads it, is not modelled; strategy is")


def _read_checkpointing(part: Keys, reading: Reading) -> None:
    again = part.get("activation_checkpointing")
    if again not in (None, True, False, "full"):
        raise part.not_modelled("activation_checkpointing", f"{show(again)} is not modelled; true is")
    if part.get("activation_checkpointing_scope") not in (None, "all"):
        raise part.not_modelled("activation_checkpointing_scope", "a part of the layers is not modelled")
    where = part.where("activation_checkpointing")
    reading.say("gradient_checkpointing", bool(again), where, "" if again is not None else "off if left out")
