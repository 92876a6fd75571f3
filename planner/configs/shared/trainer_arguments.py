"""Keys that every program on the Trainer of Transformers shares: TrainingArguments.

Keys and defaults: Transformers 5.23.0 training_args.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.catalog.packages import parsed_version
from planner.catalog.stacks import load_stack
from planner.configs.launchers.accelerate import read_accelerate
from planner.configs.launchers.deepspeed_json import read_deepspeed
from planner.configs.launchers.fsdp_keys import (
    DEEPSPEED_FILE,
    Beside,
    FsdpKeys,
    read_fsdp,
    referred,
    remark_on_twice,
    say_fsdp,
)
from planner.configs.said_by_file import Reading
from planner.configs.shared.age import refuse_no_training
from planner.configs.shared.kernels import say_liger
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.configs.shared.projecting import LAYERWISE, remark_on_targets, say_projecting
from planner.configs.shared.stock import stock_engine
from planner.configs.yaml_or_json import Document, read_document
from planner.domain.recipes.optimizers import OPTIMIZER_FACTS, Optimizer
from planner.domain.scenario import EVAL_BATCH, TRAINER_BATCH
from planner.errors import UsageError, show

_SIZES = {
    "per_device_train_batch_size": "batch",
    "gradient_accumulation_steps": "grad_accum",
    "num_train_epochs": "epochs",
    "per_device_eval_batch_size": "eval_batch",
}
_EVALUATES = ("eval_strategy", "evaluation_strategy")
# OptimizerNames of Transformers -> ours.
OPTIMIZERS: dict[str, Optimizer] = {
    theirs: ours for ours, facts in OPTIMIZER_FACTS.items() for theirs in facts.trainer_names
}
OWN_OPTIMIZERS = tuple(
    name for name, facts in OPTIMIZER_FACTS.items() if facts.library == "tool" or not facts.trainer_names
)
"""Those that a tool makes by a key of its own, whatever ``optim`` says."""
_UNMODELLED = texts_in("transformers.toml", "unmodelled")
_REMARKS = texts_in("transformers.toml", "remarks")
_FSDP_VERSION, _FIRST_OF_5 = 2, (5, 0, 0)
_ASKS_TO_SYNC = (5, 5, 0)
"""The first Transformers whose Trainer heeds ``sync_each_batch``, of those that were read."""


def read_trainer(
    keys: Keys, reading: Reading, *, own_loss: bool = False, evaluates_behind: bool = False
) -> None:
    """Enter what TrainingArguments say, with the files that they refer to.

    ``own_loss``: the tool's trainer takes the loss itself, and Liger's kernels leave it as it is.
    ``evaluates_behind``: the tool evaluates behind the training where ``do_eval`` says so.
    """
    refuse_no_training(keys)
    keys.refuse_switched_on(_UNMODELLED)
    reading.take(keys, _SIZES)
    reading.default(
        "batch", TRAINER_BATCH, "transformers 5.23.0 training_args.py: per_device_train_batch_size"
    )
    reading.default("grad_accum", 1, "transformers 5.23.0 training_args.py: gradient_accumulation_steps")
    _read_length_of_run(keys, reading)
    read_evaluation(keys, reading, *_EVALUATES, *(("do_eval",) if evaluates_behind else ()))
    _read_optimizer(keys, reading)
    read_checkpointing(keys, reading)
    if keys.flag("use_liger_kernel"):
        config = keys.part("liger_kernel_config")
        say_liger(reading, keys.where("use_liger_kernel"), config, loss=not own_loss)
    keys.skip(("liger_kernel_config",))
    if keys.flag("torch_compile") or keys.has("torch_compile_backend") or keys.has("torch_compile_mode"):
        reading.remark(
            keys.where("torch_compile"), "compilation is not counted: memory and time are those without it"
        )
    for name, text in _REMARKS.items():
        if keys.get(name) not in (None, False):
            reading.remark(keys.where(name), text)
    remark_on_targets(keys, reading)
    remark_on_tf32(keys, reading)
    read_sync(keys, reading)
    read_batches(keys, reading)
    keys.skip(("torch_compile_backend", "torch_compile_mode"))
    keys.skip(names_in("transformers.toml", "harmless"))


def read_sync(keys: Keys, reading: Reading) -> None:
    """Enter that every micro-batch reduces its gradients.

    Source: transformers 5.5 to 5.23 trainer.py _run_epoch; 5.0 does not ask for it.

    Raises:
        NotModelledError: GPUs share the batch (accelerate 1.15 data_loader.py prepare_data_loader).
    """
    settings = keys.get("accelerator_config")
    if isinstance(settings, str):
        # transformers 5.23.0 training_args.py: AcceleratorConfig.from_json_file.
        settings = referred(keys, "accelerator_config", "write its table into this key", reading).table
    if isinstance(settings, dict) and settings.get("split_batches") is True:
        raise keys.not_modelled("accelerator_config", _UNMODELLED["split_batches"])
    details = settings.get("gradient_accumulation_kwargs") if isinstance(settings, dict) else None
    if not isinstance(details, dict) or details.get("sync_each_batch") is not True:
        return
    if (_transformers_of(reading) or (0, 0, 0)) >= _ASKS_TO_SYNC:
        reading.switch("fsdp_no_sync", "neither", keys.where("accelerator_config"))


def _transformers_of(reading: Reading) -> tuple[int, int, int] | None:
    """The version of Transformers that the stack has, where that is known."""
    version = dict(load_stack(str(reading.value("stack"))).versions).get("transformers", "")
    return parsed_version("transformers", version) if version else None


def remark_on_tf32(keys: Keys, reading: Reading) -> None:
    """TF32 speeds the products of fp32 training up, and changes nothing where they are in 16 bits."""
    # Axolotl's "auto" turns it on where the card has it.
    on = keys.get("tf32") == "auto" or keys.flag("tf32")
    if on and not any(keys.get(name) for name in ("bf16", "fp16", "bfloat16", "float16")):
        reading.remark(
            keys.where("tf32"), "products are counted at the rate of fp32: TF32 on tensor cores is faster"
        )


def read_distribution(keys: Keys, reading: Reading, beside: Beside, shipped: Document | None = None) -> None:
    """Enter FSDP, DeepSpeed and Accelerate, from this file, from those that it names and from those given
    beside it.
    """
    _read_fsdp(keys, reading)
    read_files(keys, reading, beside, shipped)


def read_files(keys: Keys, reading: Reading, beside: Beside, shipped: Document | None = None) -> None:
    """Enter DeepSpeed and Accelerate, from the files given beside this one, else from those that it names.

    ``shipped``: the file of DeepSpeed that comes with the tool under the name that is said.
    """
    read_given_launch(reading, beside)
    if beside.deepspeed is not None:
        keys.skip(("deepspeed",))
        usual = None if beside.deepspeed.exists() else stock_engine(str(beside.deepspeed))
        _finish_deepspeed(Keys.of(usual or read_document(beside.deepspeed)), reading)
    elif not keys.get("deepspeed"):
        return  # Trainers ask whether it is true: an empty one says nothing.
    elif isinstance(keys.get("deepspeed"), dict):
        read_deepspeed(keys.section("deepspeed"), reading)
    else:
        found = shipped or referred(keys, "deepspeed", DEEPSPEED_FILE, reading)
        _finish_deepspeed(Keys.of(found), reading)


def _finish_deepspeed(keys: Keys, reading: Reading) -> None:
    """Enter a file of DeepSpeed's, and what nobody read of it."""
    read_deepspeed(keys, reading)
    reading.finish(keys)


def read_given_launch(reading: Reading, beside: Beside) -> None:
    """Enter the launch that is given beside a config, where one is."""
    if beside.accelerate is not None:
        read_launch_file(remark_on_twice(read_document(beside.accelerate), reading), reading, beside)


def read_launch_file(document: Document, reading: Reading, beside: Beside) -> None:
    """Enter a configuration of ``accelerate launch``."""
    part = Keys.of(document)
    read_accelerate(part, reading, beside)
    reading.finish(part)


def _read_length_of_run(keys: Keys, reading: Reading) -> None:
    if not ends_by_steps(keys, reading):
        reading.default("epochs", 3.0, "transformers 5.23.0 training_args.py: num_train_epochs")


def ends_by_steps(keys: Keys, reading: Reading) -> bool:
    """Whether the run ends by ``max_steps``, be there epochs or not; no epochs are entered then,
    and that is remarked on.
    """
    steps = keys.get("max_steps")
    if not isinstance(steps, int) or steps <= 0:
        return False
    reading.said.pop("epochs", None)
    reading.remark(
        keys.where("max_steps"), "the run ends by steps: its time follows from --samples and --epochs only"
    )
    return True


def read_evaluation(keys: Keys, reading: Reading, *names: str) -> None:
    """Keep how many samples are evaluated at a time where one of ``names`` turns evaluation on:
    8 where nothing is said.
    """
    name = next((name for name in names if str(keys.get(name) or "no").lower() not in ("no", "false")), None)
    if name is None:
        reading.said.pop("eval_batch", None)
    else:
        reading.default(
            "eval_batch", EVAL_BATCH, "transformers 5.23.0 training_args.py: per_device_eval_batch_size"
        )


def read_batches(keys: Keys, reading: Reading) -> None:
    """Enter whether batches are made of samples of like length, whether the cache is emptied as it goes,
    and whether DDP looks for parameters that a step did not use.
    """
    unused = "ddp_find_unused_parameters"
    if keys.get(unused) is not None:
        reading.switch("ddp_finds_unused", "always" if keys.flag(unused) else "never", keys.where(unused))
    if keys.flag("group_by_length"):
        reading.switch("sorts_lengths", True, keys.where("group_by_length"))
    strategy = keys.text("train_sampling_strategy")
    if strategy == "group_by_length":
        reading.switch("sorts_lengths", True, keys.where("train_sampling_strategy"))
    elif strategy not in (None, "random", "sequential"):
        reading.remark(keys.where("train_sampling_strategy"), f"{show(strategy)} is counted as random")
    if steps := keys.count("torch_empty_cache_steps"):
        reading.switch(
            "empties_before_backward",
            "every" if steps == 1 else "first",
            keys.where("torch_empty_cache_steps"),
        )
    if keys.get("gc_steps"):
        reading.switch("keeps_outgrown_blocks", False, keys.where("gc_steps"))


def _read_optimizer(keys: Keys, reading: Reading) -> None:
    for backend in ("half_precision_backend", "fp16_backend"):
        if keys.get(backend) == "apex":
            raise keys.not_modelled(backend, "Apex is not modelled")
    if keys.flag("adafactor"):
        reading.say(
            "optimizer", "adafactor", keys.where("adafactor"), "what Transformers 4 called optim: adafactor"
        )
        keys.skip(("optim",))
        return
    name = keys.text("optim")
    if name is None or reading.value("optimizer") in OWN_OPTIMIZERS:
        return
    say_optimizer(keys, "optim", OPTIMIZERS, reading)


def say_optimizer(keys: Keys, key: str, names: Mapping[str, Optimizer], reading: Reading) -> None:
    """Enter the optimizer that ``key`` names, by a table of names.

    Raises:
        NotModelledError: an optimizer that no formula covers.
    """
    name = str(keys.get(key))
    plain = name.lower().removesuffix(LAYERWISE)
    known = names.get(plain)
    if known is None or (plain != name.lower() and not OPTIMIZER_FACTS[known].projects):
        raise keys.not_modelled(
            key, f"optimizer '{show(name)}' is not modelled; these are: {', '.join(names)}"
        )
    if known == "rmsprop" and keys.is_on("weight_decay"):
        raise keys.not_modelled(
            "weight_decay", "the copy of all gradients that rmsprop makes to add it is not modelled; 0 is"
        )
    if OPTIMIZER_FACTS[known].projects:
        say_projecting(keys, key, known, reading)
    else:
        reading.say("optimizer", known, keys.where(key))


def read_checkpointing(keys: Keys, reading: Reading) -> None:
    """Enter gradient checkpointing, by its old or its new name.

    Source: transformers 5.23.0 trainer.py train, modeling_utils.py _set_gradient_checkpointing.

    Raises:
        InputFileError: a value that cannot be used.
        NotModelledError: checkpoints in host RAM.
    """
    for name in ("gradient_checkpointing", "activation_checkpointing"):
        on = keys.flag(name)
        if on is not None:
            reading.say("gradient_checkpointing", on, keys.where(name))
        details = keys.part(f"{name}_kwargs")
        if details is not None:
            reentrant = details.flag("use_reentrant")
            if reentrant is not None:
                reading.say("checkpoint_reentrant", reentrant, details.where("use_reentrant"))
            every = details.count("every_n_layers")
            if every is not None and every > 1:
                reading.say("checkpoint_every", every, details.where("every_n_layers"))
            details.refuse_switched_on({"offload": "checkpoints in host RAM are not modelled"})
            details.skip(("determinism_check", "preserve_rng_state", "debug", "early_stop"))


def read_precision(keys: Keys, reading: Reading) -> None:
    """Enter bf16 or fp16, each meaning autocast.

    Raises:
        UsageError: both.
    """
    bf16, fp16 = keys.flag("bf16"), keys.flag("fp16")
    if bf16 and fp16:
        raise UsageError(f"{keys.where('bf16')} and {keys.where('fp16')} are both true: only one can be")
    if bf16 or fp16:
        name = "bf16" if bf16 else "fp16"
        reading.say("precision", f"{name}-mixed", keys.where(name))


def need_precision(reading: Reading) -> None:
    """Ask for the precision where no key settles it:
    the computation then runs in the dtype of the weights.
    """
    sentence = (
        f"{reading.path}: neither bf16 nor fp16 is true, so the dtype of the weights decides; say it, such "
        "as --precision bf16"
    )
    reading.needs.setdefault("precision", sentence)
    reading.either["precision"] = (sentence, ("fp32", "bf16"))


def _read_fsdp(keys: Keys, reading: Reading) -> None:
    value = keys.get("fsdp")
    options = value if isinstance(value, list) else str(value or "").lower().split()
    if not options or options == ["false"]:
        if (
            unused := keys.part("fsdp_config") if isinstance(keys.get("fsdp_config"), dict) else None
        ) is not None:
            unused.skip_rest()
        return
    # transformers 4.57.1 training_args.py _process_fsdp_args: 1 unless fsdp_config says a version.
    old = (_transformers_of(reading) or _FIRST_OF_5) < _FIRST_OF_5
    found = FsdpKeys(1 if old else _FSDP_VERSION, where=keys.where("fsdp"))
    for option in map(str, options):
        if option == "offload":
            reading.say("offload", "optimizer+params", keys.where("fsdp"), "FSDP offloads both")
        elif option not in ("auto_wrap", "true"):
            found.strategy = option
    if isinstance(keys.get("fsdp_config"), str):
        part: Keys | None = Keys.of(referred(keys, "fsdp_config", "write its table into this key", reading))
    else:
        part = keys.part("fsdp_config")
    if part is None:
        say_fsdp(keys, reading, found)
        return
    read_fsdp(part, reading, found)
    if part.path != keys.path:
        reading.finish(part)
