"""A file of TRL's SFT command or of a recipe in its manner (YAML or JSON): ModelConfig,
SFTConfig and TrainingArguments.

Keys and defaults: trl 1.16.0 trainer/model_config.py, sft_config.py and base_config.py; names of older
versions are read as well.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from planner.configs.launchers.fsdp_keys import ACCELERATE_FILE, Beside, referred
from planner.configs.said_by_file import IMAGES_UNSAID, Reading, Stop
from planner.configs.shared.age import first_held
from planner.configs.shared.checkpoints import read_checkpoint
from planner.configs.shared.kernels import read_attention, read_dtype, say_liger
from planner.configs.shared.key_tables import names_in
from planner.configs.shared.keys import Keys
from planner.configs.shared.own_scripts import leave_dtype, leave_method
from planner.configs.shared.preference_tasks import LIGER, read_chosen_likelihood, read_precomputed
from planner.configs.shared.rollouts import UP_TO_0_17, read_rollout
from planner.configs.shared.stock import stock_launch_file
from planner.configs.shared.trainer_arguments import (
    need_precision,
    read_distribution,
    read_launch_file,
    read_precision,
    read_trainer,
)
from planner.configs.tools.trl_age import OLD, OLDEST, read_age, read_old_preparation
from planner.configs.tools.trl_lengths import _read_lengths
from planner.configs.tools.trl_tasks import (
    ONLINE,
    STUDENT,
    TRL_HARMLESS,
    has_prompts_alone,
    read_student,
    refuse_other_trainings,
    said_by_path,
    trl_task,
)
from planner.domain.recipes.recipe import TARGET_PATTERN, TARGETS_OF_PEFT
from planner.errors import REFUSED_BY_TOOL, UsageError, show

TOOL = "TRL 1.16.0"
STACK = "trl"
MARKS = frozenset(names_in("trl.toml", "marks"))
_GENERATED = names_in("trl.toml", "generated")
HINTS = frozenset(names_in("trl.toml", "hints"))

# trl 0.12.2 commands/cli_utils.py TrlParser; an argument of scripts alone from 0.15.2 to 0.26.2.
_REENTRANT = "gradient_checkpointing_use_reentrant"

_WITHOUT_NUM_EXPERTS = ("granitemoe", "granitemoehybrid", "phimoe")

_ITS_FOLDERS = ("trl/scripts", "examples/scripts")
_SPREADS = ("auto", "balanced", "balanced_low_0", "sequential")


def read_trl(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what a file of TRL's SFT command says."""
    teaches = read_student(keys, reading, beside.task)
    refuse_other_trainings(keys, but=STUDENT if teaches else ())
    generates = _trains_on_generated(keys, reading, beside.task)
    compares = teaches or (not generates and trl_task(keys, reading, beside.task))
    old = read_age(keys, reading, beside.stack, generates=generates)
    read_precomputed(keys, reading, single=not old or bool(keys.flag("use_peft")))
    read_method(keys, reading, own=beside.own)
    read_checkpoint(keys, "model_name_or_path", reading, trusts=_trusts(keys))
    _read_model(keys, reading)
    _read_lengths(keys, reading, old=old if compares else "")
    _read_images(keys, reading)
    if keys.flag("activation_offloading"):
        reading.say("offload", "activations", keys.where("activation_offloading"))
    if not (compares or generates):
        _read_loss(keys, reading, old=bool(old))
    read_trainer(keys, reading, own_loss=not old or generates or compares)
    if compares:
        _read_preferences(keys, reading, old)
    elif generates:
        _read_generated(keys, reading, old)
        _stop_at_images(reading, beside.script)
    if not old:
        _keep_loss(keys, reading)
    if keys.flag(_REENTRANT):
        ages = "it counts up to TRL 0.12, and nothing reads it since"
        reading.needs["checkpoint_reentrant"] = (
            f"{keys.where(_REENTRANT)}: {ages}: say --checkpoint-reentrant or --no-checkpoint-reentrant"
        )
    _read_precision(keys, reading, old)
    if beside.own:
        leave_method(keys, reading)
        leave_dtype(keys, reading)
    _read_launch(keys, reading, beside)
    read_distribution(keys, reading, beside)
    read_device_map(keys, reading, old=bool(old))
    if old:
        read_old_preparation(keys, reading)
    else:
        stop_at_router_loss(keys, reading)
    keys.skip(names_in("trl.toml", "harmless"))


def _stop_at_images(reading: Reading, script: str) -> None:
    """A script that is none of TRL's folders may give images, which GRPO is not counted with."""
    if not script.endswith(".py") or Path(script).parent.as_posix().endswith(_ITS_FOLDERS):
        return
    sentence = (
        f"{reading.path}: whether {show(script)} gives images, with which GRPO is not modelled, is not "
        "known: say the job by flags (plan --help)"
    )
    reading.stops.append(Stop(lambda model: model.vision is not None, sentence, by_tool=False))


def _read_preferences(keys: Keys, reading: Reading, old: str) -> None:
    """What trainers of preferences have of their own.

    Recipes with a mixer are for TRL 0.9 to 0.12 (alignment-handbook setup.py), which took the log-softmax of
    all logits.  Those of DPO go with the function that made them in 0.12, which is installed for such files
    (trl 0.12.1 trainer/dpo_trainer.py concatenated_forward: means of logits are returned, not logits).
    """
    paired = reading.value("task") in ("dpo", "kto")
    for name, modelled in (("use_liger", paired and not old), ("use_liger_kernel", paired)):
        if keys.flag(name) and not modelled:
            raise keys.not_modelled(name, LIGER)
    if old:
        _leave_loss_to_trainer(keys, reading, LIGER)
    if keys.flag("disable_dropout") is False and reading.value("lora_dropout") != 0:
        raise keys.not_modelled("disable_dropout", "dropout beside preferences is not modelled; true is")
    if keys.has("dataset_mixer"):
        held = "whole_let_go" if reading.value("task") == "dpo" else "whole"
        reading.switch("pair_logps", held, keys.where("dataset_mixer"))
    read_chosen_likelihood(keys, reading)
    # trl 0.15.2 trainer/dpo_config.py and those to 0.26.
    for name in ("use_logits_to_keep", "use_num_logits_to_keep"):
        if keys.flag(name):
            reading.remark(keys.where(name), "logits of all tokens are counted, which is as much or more")
    reading.said.pop("padding", None)
    keys.skip(TRL_HARMLESS)


def _trains_on_generated(keys: Keys, reading: Reading, named: str) -> bool:
    """Whether a file trains on what the model generates, by keys that no other trainer has, by the script's
    name, which says the task ``named``, or by its path; then its task is entered.
    """
    told = next((name for name in _GENERATED if keys.has(name)), None)
    if told is None and named == "grpo":
        reading.say("task", "grpo", str(keys.path), "the script's name")
        return True
    if told is None and not named and said_by_path(keys)[:1] == ["grpo"] and has_prompts_alone(keys):
        reading.say("task", "grpo", str(keys.path), "the path says grpo")
        reading.remark(str(keys.path), "read as a file for grpo, as its path says; --task says another")
        return True
    if told is None:
        return False
    if any(
        re.search(r"(?<![a-z])(rloo|ppo|nash|xpo|online_dpo)(?![a-z])", part.lower())
        for part in keys.path.parts[-3:]
    ):
        raise keys.not_modelled(told, ONLINE)
    reading.say("task", "grpo", keys.where(told), "a key of trainers that generate")
    return True


def _leave_loss_to_trainer(keys: Keys, reading: Reading, refused: str) -> None:
    """``use_liger_kernel`` up to TRL 0.24: Transformers' alone, and the loss has a switch of its own.

    Source: trl 0.17.0, 0.24.0 and 0.25.0 trainer/grpo_trainer.py; 0.15.2, 0.24.0 and 0.25.1
    trainer/dpo_trainer.py and kto_trainer.py, which hand no labels to the model.
    """
    if keys.flag("use_liger_kernel"):
        config = keys.part("liger_kernel_config")
        if config is not None and config.flag("fused_linear_cross_entropy"):
            raise keys.not_modelled("use_liger_kernel", refused)
        ages = "TRL 0.25 and 0.26 compute the loss by Liger, too, which needs less and is not counted"
        reading.remark(keys.where("use_liger_kernel"), ages)


def _read_generated(keys: Keys, reading: Reading, old: str) -> None:
    """What GRPO's trainer has of its own."""
    if old and not keys.has(UP_TO_0_17):
        _leave_loss_to_trainer(keys, reading, "Liger's loss of GRPO is not modelled")
    for name in ("load_in_4bit", "load_in_8bit") if old else ():
        if keys.flag(name):  # trl 0.16.1 to 0.25.1 scripts/grpo.py; open-r1 1416fa0 utils/model_utils.py
            text = "counted as packed, as open-r1 loads it; TRL's own script up to 0.25 loads the model whole"
            reading.remark(keys.where(name), text)
    if old and first_held(keys, (UP_TO_0_17, *OLD[OLDEST])):
        place = "trl 0.14.0 to 0.21.0 trainer/grpo_config.py: gradient_checkpointing is Transformers', off"
        reading.default("gradient_checkpointing", False, place)
        place = (
            "transformers 4.48 to 4.53 training_args.py default_optim, which these versions of TRL ran with"
        )
        reading.default("optimizer", "adamw_torch", place)
    # Only trainers of SFT read it, and no key of a file was refused up to TRL 0.17 (scripts/utils.py).
    keys.skip(("use_liger",))
    reading.said.pop("padding", None)
    reading.said.pop("images_per_sample", None)
    reading.needs.pop("seq", None)
    read_rollout(keys, reading, old=bool(old))


def _trusts(keys: Keys) -> str:
    """Place of a trust in code of checkpoints among what is handed to the loader."""
    init = keys.get("model_init_kwargs")
    return keys.where("model_init_kwargs") if isinstance(init, dict) and init.get("trust_remote_code") else ""


def _read_model(keys: Keys, reading: Reading) -> None:
    """How the model is loaded: attention and dtype, here or in ``model_init_kwargs``."""
    init = keys.part("model_init_kwargs")
    for part in (keys, init):
        if part is not None:
            read_attention(part, "attn_implementation", reading)
            read_dtype(part, reading)
    if init is not None:
        init.skip(("revision", "trust_remote_code", "use_cache", "device_map", "low_cpu_mem_usage"))
    if keys.flag("use_flash_attention_2"):
        reading.say("attention", "flash2", keys.where("use_flash_attention_2"))


def _read_launch(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Keys that TRL's command line hands on to ``accelerate launch``; a file given beside the config wins.

    Source: trl 1.16.0 cli/commands/training.py:52-64 and cli/accelerate_config.py: a path,
    or the name of a file that TRL ships.
    """
    keys.skip(("env", "machine_rank", "main_process_ip", "main_process_port", "gpu_ids"))
    processes = keys.count("num_processes")
    if processes is not None:
        reading.say("gpus", processes, keys.where("num_processes"))
    named = keys.text("accelerate_config")
    if named is None or beside.accelerate is not None:
        return
    stock = stock_launch_file(named)
    document = referred(keys, "accelerate_config", ACCELERATE_FILE, reading) if stock is None else stock[0]
    if stock is not None:
        reading.remark(keys.where("accelerate_config"), f"{show(named)} is {stock[1]}")
    if processes is not None:
        document = replace(document, table={**document.table, "num_processes": processes})
    read_launch_file(document, reading, beside)


def read_method(keys: Keys, reading: Reading, *, own: bool) -> None:
    """Enter adapters and the quantisation of their base, under the names that TRL has for them.

    A script of one's ``own`` may put adapters on without being asked to by ``use_peft``.

    Raises:
        UsageError: adapters or a quantisation that cannot be.
    """
    adapter = {"lora_r": "lora_rank", "lora_dropout": "lora_dropout"}
    peft = keys.flag("use_peft")
    if peft is None:
        peft = own and any(map(keys.has, (*adapter, "lora_target_modules")))
        place = "trl 1.16.0 trainer/model_config.py: use_peft"
        reading.default("method", "lora" if peft else "full", "adapters are said" if peft else place)
    else:
        reading.say("method", "lora" if peft else "full", keys.where("use_peft"))
    if keys.flag("use_dora") and reading.value("method") == "lora":
        reading.say("dora", True, keys.where("use_dora"))
    if not peft:
        keys.skip((*adapter, "lora_target_modules", "lora_target_parameters", "lora_modules_to_save"))
        keys.skip(("load_in_4bit", "load_in_8bit"))
        keys.skip(("bnb_4bit_quant_type", "use_bnb_nested_quant", "bnb_4bit_quant_storage"))
        keys.skip(("bnb_4bit_compute_dtype", "bnb_4bit_use_double_quant"))
        _refuse_quantised_full(keys)
        return
    reading.take(keys, adapter)
    targets, extra = _targets(keys), keys.names("lora_modules_to_save")
    parameters = keys.parameter_targets("lora_target_parameters")
    if parameters and not targets:
        raise UsageError(
            f"{keys.where('lora_target_parameters')}: say lora_target_modules, too: PEFT adds some "
            "of its own choice"
        )
    if targets:
        reading.say("lora_targets", (*targets, *parameters), keys.where("lora_target_modules"))
    else:
        source = "trl 1.16.0 trainer/model_config.py: lora_target_modules"
        reading.default("lora_targets", (TARGETS_OF_PEFT,), source)
    if extra:
        reading.say("modules_to_save", extra, keys.where("lora_modules_to_save"))
    _read_quantisation(keys, reading)


def _targets(keys: Keys) -> tuple[str, ...]:
    """``lora_target_modules``: the only name of a list is handed to PEFT as a text (trl 1.16.0
    trainer/model_config.py).
    """
    said = keys.get("lora_target_modules")
    only = said[0] if isinstance(said, list) and len(said) == 1 else said
    if isinstance(only, str) and re.search(r"[^\w\-., ]|\.\*", only):
        return (TARGET_PATTERN + only,)
    return keys.names("lora_target_modules")


def _refuse_quantised_full(keys: Keys) -> None:
    for name in ("load_in_4bit", "load_in_8bit"):
        if keys.flag(name):
            raise UsageError(
                f"{keys.where(name)}: a quantised base is trained through adapters only; say use_peft: true"
            )


def _read_quantisation(keys: Keys, reading: Reading) -> None:
    four, eight = keys.flag("load_in_4bit"), keys.flag("load_in_8bit")
    # The second name is that of Transformers, which scripts of one's own hand on (BitsAndBytesConfig).
    nested_name = first_held(keys, ("use_bnb_nested_quant", "bnb_4bit_use_double_quant"))
    kind, nested = keys.text("bnb_4bit_quant_type") or "nf4", keys.flag(nested_name or "use_bnb_nested_quant")
    if keys.text("bnb_4bit_compute_dtype") in ("float32", "fp32"):
        raise keys.not_modelled("bnb_4bit_compute_dtype", "products in fp32 over 4 bits are not modelled")
    storage = keys.text("bnb_4bit_quant_storage")
    if four and eight:
        raise UsageError(f"{keys.where('load_in_4bit')} and load_in_8bit are both true: only one can be")
    if eight:
        reading.say("quantization", "int8", keys.where("load_in_8bit"))
    if not four:
        return
    reading.say("quantization", kind, keys.where("load_in_4bit"))
    if nested is not None:
        reading.say("double_quant", nested, keys.where(nested_name or ""))
    reading.default("double_quant", False, "trl 1.16.0 trainer/model_config.py: use_bnb_nested_quant")
    if storage not in (None, "uint8"):
        reading.say("quant_storage", storage, keys.where("bnb_4bit_quant_storage"))


def _read_images(keys: Keys, reading: Reading) -> None:
    """One image in each sample of a model that sees: the data decide,
    but images with either of these keys are an error.

    Source: trl 1.16.0 trainer/sft_trainer.py, beside ``_is_vision_dataset``;
    trainers of rewards read no images.
    """
    unread = keys.flag("packing") or keys.flag("padding_free") or keys.has("dataset_mixer")
    if not unread and reading.value("task") in (None, "sft", "dpo", "kto"):
        reading.default("images_per_sample", 1, IMAGES_UNSAID)


def _read_loss(keys: Keys, reading: Reading, *, old: bool) -> None:
    """``loss_type``: both losses of today's TRL follow from one pass in pieces that keeps numbers of tokens.

    Source: trl 1.16.0 trainer/sft_trainer.py compute_loss; 0.24.0, where ``nll`` is the model's own loss
    and ``dft`` keeps probabilities of all logits.
    """
    if keys.flag("use_liger"):
        say_liger(reading, keys.where("use_liger"))
    kind = keys.text("loss_type")
    if old and kind == "nll":
        return
    if kind in ("nll", "chunked_nll") or (kind == "dft" and not old):
        reading.say("loss", "chunked", keys.where("loss_type"))
    elif kind is not None:
        raise keys.not_modelled("loss_type", f"the loss '{show(kind)}' is not modelled; nll is")


def _keep_loss(keys: Keys, reading: Reading) -> None:
    """Liger's kernels leave the loss as it is: that of ``loss_type`` or the task, else TRL's own, in chunks.

    Source: trl 1.16.0 trainer/sft_trainer.py:1127-1147, dpo_trainer.py:939-952, kto_trainer.py:950-963 and
    grpo_trainer.py:1051-1064 set ``fused_linear_cross_entropy`` to false, and fail where a file says true.
    """
    if not keys.flag("use_liger_kernel"):
        return
    config = keys.part("liger_kernel_config")
    if config is not None and config.flag("fused_linear_cross_entropy"):
        raise UsageError(
            f"{config.where('fused_linear_cross_entropy')}: {TOOL} fails here, because its own loss is fused "
            "with the head: leave it out"
        )
    if reading.value("task") in (None, "sft") and reading.value("loss") is None:
        reading.say("loss", "chunked", keys.where("use_liger_kernel"))


def _read_precision(keys: Keys, reading: Reading, old: str) -> None:
    """bf16 unless fp16 is asked for; where both are off, the dtype of the weights,
    which is fp32 unless another is given.

    TRL before 0.19 turned nothing on (0.18.2 sft_config.py has no ``bf16``), so a file of that age is asked.
    """
    read_precision(keys, reading)
    if reading.value("precision") is not None:
        return
    if keys.flag("bf16") is None and (old == OLDEST or keys.has(UP_TO_0_17)):
        need_precision(reading)
    elif keys.flag("bf16") is None:
        reading.default(
            "precision", "bf16-mixed", "trl 1.16.0 trainer/base_config.py: bf16 is on unless fp16 is"
        )
    else:
        _take_weights_dtype(keys, reading)


def _take_weights_dtype(keys: Keys, reading: Reading) -> None:
    dtype = reading.value("load_dtype")
    if dtype == "checkpoint":
        reading.needs["precision"] = (
            f"{keys.where('bf16')} is false and the dtype is that of the checkpoint: say which, such as "
            "--precision bf16"
        )
    else:
        named = {"bfloat16": "bf16", "float16": "fp16"}.get(str(dtype), "fp32")
        reading.say("precision", named, keys.where("bf16"), "off: the dtype of the weights")


def stop_at_router_loss(keys: Keys, reading: Reading) -> None:
    """The routers' loss, on unless its weight is 0, asks for a number of experts by a name that these classes
    do not have; dense models are among them.

    Source: trl 1.16.0 trainer/utils.py add_fused_lm_head, sft_trainer.py, dpo_trainer.py, kto_trainer.py and
    grpo_trainer.py (``aux_loss_enabled``); transformers 5.23 models/*/configuration_*.py.
    """
    weight = keys.number("router_aux_loss_coef")
    if weight == 0:
        return
    why = "TRL 1.16.0 stops at the routers' loss of such a model unless its config.json turns it off"
    sentence = f"{keys.where('router_aux_loss_coef')}: {why}: say router_aux_loss_coef: 0"
    reading.stops.append(Stop(lambda model: model.architecture in _WITHOUT_NUM_EXPERTS, sentence))


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
