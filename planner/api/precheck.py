"""``planner.precheck``: the answer for a Trainer that is about to start, by the readers of config files."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Unpack

from planner.api.answering import How, answer_request
from planner.api.answers import Answer
from planner.api.building import answer_of
from planner.api.held import (
    TrainerJob,
    adapter_kind,
    arguments_of,
    defaults_of,
    dtype_of_adapters,
    dtype_of_base,
    held_by,
    loaded_version,
    quantization_of,
    refuse_uneven,
    spec_of,
    trained_and_frozen,
)
from planner.api.keywords import JobFlags, job_flags
from planner.catalog.stacks import at_versions
from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.read import TOOLS
from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from planner.domain.recipes.recipe import TARGET_PATTERN
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import NotModelledError, UsageError
from planner.intake.given.config_file import config_of, with_flags
from planner.intake.given.request import Given, ScenarioRequest, from_flags, merge, require
from planner.intake.given.request_field import PARTS
from planner.program.job import job_of
from planner.report.prediction.subject import Subject

_HOW = ("model_config", "peft_config", "calibration", "force")
_EXAMPLE = 'planner.precheck(trainer, gpu="4090", seq=1024)'
# Trained parameters that were counted may differ by this share from those of the model: biases, extra norms.
_COUNT_TOLERANCE = 0.02
_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def precheck(
    trainer_or_args: Any,
    *,
    model_config: Any = None,
    peft_config: Any = None,
    calibration: str | None = None,
    force: bool = False,
    **flags: Unpack[JobFlags],
) -> Answer:
    """Predict the job of a Trainer of Transformers or TRL before it starts;
    nothing is trained and nothing is imported.

    Arguments, model, PEFT and quantisation are read from the objects; the card and the number of processes
    from torch, where it is imported.  ``answer.raise_if_short()`` raises where memory is short.

    Args:
        trainer_or_args: a Trainer, or its TrainingArguments or SFTConfig.
        model_config: the model's config (an object or a table), where no model is at hand.
        peft_config: the LoraConfig, where no model is at hand.
        calibration: a name, a file or ``none``; left out, the one that fits the job.
        force: turn refused combinations into warnings.
        flags: as for ``planner.estimate``; they win.  ``gpu`` is needed where no CUDA device is visible,
            ``seq`` where the arguments have no ``max_length``.

    Raises:
        UsageError: something that was given cannot be used, or is missing.
        NotModelledError: understood, but no formula covers it.
    """
    held = held_by(trainer_or_args, model_config, peft_config)
    return precheck_held(held, job_flags(flags, _HOW), How(calibration, force))


def precheck_held(held: TrainerJob, flags: Mapping[str, object], how: How) -> Answer:
    """Predict the job that a Trainer holds; ``flags`` win.

    Raises:
        UsageError: something that was given cannot be used, or is missing.
        NotModelledError: understood, but no formula covers it.
    """
    given = merge(ScenarioRequest(_device(flags)), from_flags(flags))
    read = config_of(_read(held, given))
    request = with_flags(read, given)
    spec = None if "model" in flags else spec_of(held)
    if spec is not None:
        request = merge(ScenarioRequest({"model": Given(spec.id, "model.config")}), request)
    require(request, *PARTS, example=_EXAMPLE)
    subject = answer_request(request, how, read.notes, spec)
    return answer_of(_with_counts(held, subject))


def _device(flags: Mapping[str, object]) -> Mapping[str, Given]:
    """The card of this process, as torch names it, unless one was given."""
    if "gpu" in flags or "gpu_memory" in flags:
        return MappingProxyType({})
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_available():
        raise UsageError('no CUDA device is visible here: say which GPU the job is for, such as gpu="4090"')
    properties = cuda.get_device_properties(cuda.current_device())
    origin = "torch.cuda"
    return {"gpu": Given(properties.name, origin), "gpu_memory": Given(int(properties.total_memory), origin)}


def _read(held: TrainerJob, given: ScenarioRequest) -> Reading:
    """What the objects say, entered before the arguments, whose reader then fills in the rest."""
    kind = "trl" if held.is_sft else "transformers"
    if not held.is_sft and type(held.args).__module__.partition(".")[0] == "trl":
        raise NotModelledError(
            f"{held.place}: of TRL's trainers supervised fine-tuning (SFTConfig) is modelled"
        )
    tool = TOOLS[kind]
    reading = Reading(Path(held.place), tool.title)
    if not given.is_given("stack"):
        _say_stack(reading, tool.stack)
    _say_model(held, reading)
    _say_world(held, reading)
    keys = Keys(reading.path, _arguments(held, given))
    tool.read(keys, reading, Beside())
    _say_rest(held, reading)
    # A setting left at its default says nothing, be it known here or not.
    defaults = defaults_of(held.args)
    keys.skip(
        [name for name in keys.left_over_here() if name in defaults and keys.get(name) == defaults[name]]
    )
    reading.say_switches()
    reading.finish(keys)
    return reading


def _arguments(held: TrainerJob, given: ScenarioRequest) -> dict[str, Any]:
    table = arguments_of(held)
    if given.get("gpu") is not None:
        # Where the check runs says nothing about the card that was named.
        table = {name: value for name, value in table.items() if name not in ("use_cpu", "no_cuda")}
    for engine in ("DEEPSPEED", "FSDP"):
        if os.environ.get(f"ACCELERATE_USE_{engine}") == "true" and not table.get(engine.lower()):
            raise UsageError(
                f"accelerate launch has set {engine}, which {held.place} alone does not hold: "
                "give the Trainer"
            )
    return table


def _say_stack(reading: Reading, stack: str) -> None:
    """The software that is imported: Unsloth over TRL, the stack of the nearest version, and in it every
    package at the version that is here.
    """
    package = "trl" if stack == "trl" else "transformers"
    if "unsloth" in sys.modules:
        stack = package = "unsloth"
    version = loaded_version(package)
    stack, others = at_versions(stack, package, loaded_version)
    reading.say("stack", stack, "sys.modules", f"{package} {version or ''}".strip())
    if others:
        reading.say("versions", others, "sys.modules")


def _say_model(held: TrainerJob, reading: Reading) -> None:
    peft, quantised = held.peft_config, quantization_of(held)
    if peft is None:
        if quantised is not None:
            raise UsageError(
                "the model is quantised and has no adapters: give the Trainer the PEFT model, or peft_config="
            )
        reading.say("method", "full", "model", "no PEFT config")
    else:
        refuse_uneven(peft)
        _say_adapters(peft, reading)
    if quantised is not None:
        _say_quantisation(quantised, reading)
    if (dtype := dtype_of_base(held)) in _SHORT:
        reading.say("load_dtype", dtype, "model", "dtype of most weights")
    if peft is not None and (dtype := dtype_of_adapters(held)) is not None:
        reading.say("adapter_dtype", dtype, "model", "dtype of the adapters")


def _say_adapters(peft: Any, reading: Reading) -> None:
    """LoRA and VeRA as PEFT holds them; names of single layers' matrices become those of the matrices (peft
    0.21 tuners/lora/config.py, tuners/vera/config.py).
    """
    place = "peft_config"
    reading.say("method", "lora", place)
    reading.say("lora_rank", int(peft.r), f"{place}.r")
    if adapter_kind(peft) == "VERA":
        reading.say("vera", True, f"{place}.peft_type")
        reading.say("lora_dropout", float(peft.vera_dropout), f"{place}.vera_dropout")
    else:
        reading.say("lora_dropout", float(peft.lora_dropout), f"{place}.lora_dropout")
    targets = peft.target_modules
    if targets is None:
        raise UsageError(
            "peft_config.target_modules is left to PEFT: give the Trainer the PEFT model, or name them"
        )
    names = (
        (_text_target(targets),)
        if isinstance(targets, str)
        else tuple(dict.fromkeys(sorted(map(_matrix, targets))))
    )
    reading.say("lora_targets", names, f"{place}.target_modules")
    if getattr(peft, "use_dora", False):
        reading.say("dora", True, f"{place}.use_dora")
    if peft.modules_to_save:
        reading.say("modules_to_save", tuple(peft.modules_to_save), f"{place}.modules_to_save")


def _text_target(text: str) -> str:
    """A text as PEFT reads it: all linear layers, or an expression."""
    return text if text == "all-linear" else TARGET_PATTERN + text


def _matrix(target: str) -> str:
    """``q_proj`` of ``model.layers.0.self_attn.q_proj``; ``attn.c_proj`` stays."""
    parts = target.split(".")
    return parts[-1] if any(part.isdecimal() for part in parts) else target


def _say_quantisation(table: Mapping[str, Any], reading: Reading) -> None:
    """bitsandbytes as Transformers holds it (transformers 5.23.0 utils/quantization_config.py
    ``BitsAndBytesConfig``).
    """
    place = "model.config.quantization_config"
    if table.get("load_in_8bit") or table.get("_load_in_8bit"):
        reading.say("quantization", "int8", place)
        return
    reading.say("quantization", str(table.get("bnb_4bit_quant_type", "fp4")), place)
    reading.say("double_quant", bool(table.get("bnb_4bit_use_double_quant", False)), place)
    storage = str(table.get("bnb_4bit_quant_storage", "uint8")).removeprefix("torch.")
    if storage != "uint8":
        reading.say("quant_storage", storage, place)


def _say_world(held: TrainerJob, reading: Reading) -> None:
    """How many processes run, on how many nodes, as the launcher told this one."""
    if int(getattr(held.args, "n_gpu", 1) or 1) > 1:
        raise NotModelledError(
            f"{held.place}: one process on {held.args.n_gpu} GPUs (DataParallel) is not modelled: launch "
            "one process per GPU, or show it one with CUDA_VISIBLE_DEVICES=0"
        )
    world = int(getattr(held.args, "world_size", 1) or 1)
    if world == 1:
        return
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    per_node = int(local) if local.isdecimal() and int(local) > 0 else world
    reading.say("gpus", per_node, "LOCAL_WORLD_SIZE" if local else "world size", f"{world} processes")
    if world > per_node:
        reading.say("nodes", world // per_node, "world size", f"{world} processes")


def _say_rest(held: TrainerJob, reading: Reading) -> None:
    """What the readers of files leave open and the objects settle."""
    if reading.value("gpus") is not None and reading.value("sharding") is None:
        reading.say("sharding", "ddp", held.place, "neither FSDP nor DeepSpeed")
    dtype = reading.value("load_dtype")
    if reading.value("precision") is None and dtype in _SHORT:
        reading.say("precision", _SHORT[dtype], "model", "neither bf16 nor fp16: the dtype of the weights")
    if held.samples is not None and not int(getattr(held.args, "max_steps", 0) or 0) > 0:
        reading.say("samples", held.samples, "train_dataset")
    _ask_in_keywords(held, reading)


def _ask_in_keywords(held: TrainerJob, reading: Reading) -> None:
    """Needs of a file in the words of this function; what the objects settled is not asked for."""
    words = {
        "precision": "neither bf16 nor fp16 is on, so the dtype of the weights decides: say precision=",
        "seq": f"{held.place} does not say how long samples are: say seq=",
    }
    left = {
        name: words.get(name, text) for name, text in reading.needs.items() if reading.value(name) is None
    }
    # Without a model of its own the request says so.
    reading.needs = {name: text for name, text in left.items() if name != "model"}


def _with_counts(held: TrainerJob, subject: Subject) -> Subject:
    """``subject`` with a warning where the model trains another number of parameters than was counted."""
    counted = trained_and_frozen(held)
    if counted is None:
        return subject
    trained, frozen = counted
    if held.peft_config is None and frozen:
        raise NotModelledError(
            f"model: {frozen:,} of its parameters are frozen and it has no adapters: that is not modelled"
        )
    expected = _trained_by(subject.scenario)
    if abs(trained - expected) <= _COUNT_TOLERANCE * max(trained, expected):
        return subject
    warning = f"the model trains {trained:,} parameters, but {expected:,} were counted from its config"
    return replace(
        subject, scenario=replace(subject.scenario, warnings=(*subject.scenario.warnings, warning))
    )


def _trained_by(scenario: Scenario) -> int:
    if scenario.recipe.adapter is None:
        return scenario.model.param_count
    return round(float(job_of(scenario, Coefficients()).adapter_params))
