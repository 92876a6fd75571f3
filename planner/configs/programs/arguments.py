"""A training program as the table of keys that a file of its trainer would have."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.configs.programs.adapted_models import UNTRAINED
from planner.configs.programs.calls import TrainedError
from planner.configs.programs.library_classes import LORA, PACKING
from planner.configs.programs.parsed import Arguments
from planner.configs.programs.python_calls import Card
from planner.configs.programs.said import said_by, written
from planner.configs.programs.source import Source, read_source
from planner.configs.programs.values import Made, Model, Unknown
from planner.configs.programs.walk import Walk
from planner.configs.shared.own_scripts import LENGTHS
from planner.errors import InputFileError, NotModelledError, show
from planner.words import words

UNSLOTH, TRL, TRAINER = "unsloth-program", "trl-program", "trainer-program"
"""Names of the tools that read such a table."""
# Trainers whose step is known, with their task.
_TASKS = {
    "Trainer": "",
    "SFTTrainer": "",
    "UnslothTrainer": "",
    "DPOTrainer": "dpo",
    "KTOTrainer": "kto",
    "ORPOTrainer": "orpo",
    "RewardTrainer": "reward",
    "GRPOTrainer": "grpo",
}
_SEES = re.compile("ForImageTextToText|ForVision2Seq|ForConditionalGeneration")
_CLASSIFIES = re.compile("ForSequenceClassification")
# Trainers that keep the model as it was beside it.
_WITH_REFERENCE = ("dpo", "kto")
_TRAINER = re.compile("(?:Trainer|Parser)$")
# What a trainer is given beside settings; none of it moves memory, or it is read by itself.
_OBJECTS = words(
    """
    model args train_dataset eval_dataset tokenizer processing_class data_collator formatting_func callbacks
    compute_metrics peft_config reward_funcs reward_processing_classes infer_schema_from_dataset
    """
)
_OF_RUN = ("num_train_epochs", "max_steps")
_OF_OTHERS = words("optimizers optimizer_cls_and_kwargs compute_loss_func model_init ref_model rollout_func")
# GRPO: completions with what tools give back are no longer than others (trl 1.16.0 trainer/grpo_trainer.py
# _tool_loop cuts at max_completion_length).
_TOOLS = words("tools environment_factory")
# Settings that older trainers take themselves (trl 0.9.6 to 0.15.2 trainer/*_trainer.py).
_OF_TRAINERS = words(
    """
    max_seq_length packing padding_free dataset_text_field dataset_num_proc dataset_kwargs dataset_batch_size
    neftune_noise_alpha num_of_sequences chars_per_token model_init_kwargs eval_packing beta loss_type
    max_length max_prompt_length max_target_length label_smoothing label_pad_token_id padding_value
    truncation_mode generate_during_eval is_encoder_decoder disable_dropout precompute_ref_log_probs **
    """
)
_LOADER_HARMLESS = words(
    """
    cache_dir token use_auth_token revision low_cpu_mem_usage use_cache local_files_only pad_token_id
    eos_token_id tokenizer subfolder force_download resume_download max_position_embeddings fix_tokenizer
    random_state disable_log_stats use_exact_model_name use_safetensors offload_folder
    """
)
_LORA_HARMLESS = words(
    "lora_alpha task_type inference_mode fan_in_fan_out use_rslora peft_type model peft_config"
)
_PACKING = {**PACKING, "load_in_8bit": "load_in_8bit", "of_trl": "quantised_by_trl"}
_COMPUTES = "bnb_4bit_compute_dtype"
_PACKING_HARMLESS = words(f"{_COMPUTES} llm_int8_threshold llm_int8_has_fp16_weight")
_GENERATES = re.compile("(?:GRPO|RLOO|PPO).*Trainer")
_PLAIN_STARTS = (None, True, False, "gaussian", "default")
_LIGER = ("use_liger", "use_liger_kernel")
_EVALUATES = ("eval_strategy", "evaluation_strategy")
_MAY_EVALUATE = re.compile(
    "'(?:no|(?P<then>steps|epoch))' if .+ else '(?:no|(?P<other>steps|epoch))'", re.DOTALL
)
# How the only card of a process is named where its number is known to a run alone.
_ONE_CARD = re.compile("f?['\"]cuda:")


class NotSaidError(NotModelledError):
    """The text of a program does not say what it trains: other files, or only a run of it, do."""


@dataclass(frozen=True, slots=True)
class Program:
    """What a program says: the tool that reads its ``table``, the task of its trainer,
    and what is counted otherwise than it is written, with places.
    """

    tool: str
    task: str
    table: dict[str, Any]
    remarks: tuple[tuple[str, str], ...]


def read_program(
    path: Path, card: Card, words_given: tuple[str, ...] | None = None, allocator: str = ""
) -> Program:
    """The settings of the one trainer that a program makes; ``words_given``: the arguments of its command,
    where there is one; ``allocator``: what the environment tells PyTorch's, unless the program sets it.

    Raises:
        InputFileError: unreadable, or no trainer is made.
        NotModelledError: something in it whose effect on memory is not known.
    """
    source = read_source(path)
    try:
        walk = Walk(source, card, words_given)
        if allocator:
            name, _, walk.variables[name] = allocator.partition("=")
            walk.allocator = allocator
        return _read(source, walk)
    except RecursionError:
        raise InputFileError(path, "nested more deeply than can be read") from None


def _read(source: Source, walk: Walk) -> Program:
    if not (any(_TRAINER.search(name) for name in _names(source)) or walk.imports_own_files()):
        raise _no_trainer(source, parses=0)
    try:
        walk.to_training()
    except NotModelledError:
        if walk.parses or (walk.elsewhere and walk.words and not _generates_itself(source)):
            raise _untold(walk) from None
        raise
    trainer = walk.trainer
    if trainer is None or (walk.parses and not isinstance(trainer.given.get("args"), Made)):
        raise _untold(walk)
    return _Table(source, walk, trainer).program()


def _generates_itself(source: Source) -> bool:
    """Whether a program imports a trainer of its own that generates: how much, names of arguments do not
    tell.
    """
    imported = (
        (each.module or "", one.name)
        for each in ast.walk(source.tree)
        if isinstance(each, ast.ImportFrom)
        for one in each.names
    )
    return any(_GENERATES.search(name) and module.split(".")[0] != "trl" for module, name in imported)


def _untold(walk: Walk) -> InputFileError | NotSaidError:
    """The error about a program whose trainer, or whose parser, is in other files."""
    if walk.words:
        why = "its parser is not read" if walk.parses else "it makes no trainer itself"
        return NotSaidError(f"{walk.source.path}: {why}")
    return _no_trainer(walk.source, parses=walk.parses)


def _names(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        yield from (str(getattr(node, part, "")) for part in ("id", "attr", "name"))


def _no_trainer(source: Source, *, parses: int) -> InputFileError:
    path = show(str(source.path))
    what = "its settings are arguments" if parses else "it makes no trainer of Transformers, TRL or Unsloth"
    dry_run = f"run it without a GPU: measure trace --gpu NAME -- python {path}"
    if source.path.suffix != ".py":
        return InputFileError(source.path, f"{what}: say the job by flags (plan --help)")
    if not parses:
        return InputFileError(source.path, f"{what}: {dry_run}")
    return InputFileError(
        source.path, f'{what}: give them as --command "python {path} --NAME VALUE ...", or {dry_run}'
    )


class _Table:
    """Puts together what a walk found."""

    def __init__(self, source: Source, walk: Walk, trainer: Made) -> None:
        self._source, self._walk, self._trainer = source, walk, trainer
        self._remarks: list[tuple[str, str]] = []

    def program(self) -> Program:
        trainer, model = self._trainer, self._trainer.given.get("model")
        if trainer.kind not in _TASKS:
            raise self._refused(trainer, f"{trainer.kind} is not read from a program")
        task = _TASKS[trainer.kind]
        self._refuse_other_models(model, task)
        table = self._settings(trainer)
        self._leave_length_of_run(table)
        self._count_evaluation(table)
        table |= self._around(trainer)
        if isinstance(model, Model):
            task = self._seen_as(model, task, table)
        tool = TRAINER if trainer.kind == "Trainer" else TRL
        if isinstance(model, Model) and model.kind.startswith("Fast"):
            if task or tool == TRAINER:
                raise self._refused(trainer, f"{trainer.kind} over a model of Unsloth is not read")
            tool = UNSLOTH
            table |= self._of_unsloth(model)
        else:
            if tool == TRL and str(table["settings_of"]).endswith("Arguments"):
                # Configs of TRL turn both on, TrainingArguments do not.
                table = {"gradient_checkpointing": False, "bf16": False, **table}
            table |= self._of_transformers(model, table)
            if trainer.given.get("tokenizer") is not None:
                table["trainer.tokenizer"] = True
        if tool == TRAINER:
            table |= self._lengths()
        self._remarks += said_by(self._walk)
        if isinstance(model, Model):
            self._remarks += [(self._source.place(line), text) for line, text in model.remarks]
        return Program(
            tool, task, {key: written(value) for key, value in table.items()}, tuple(self._remarks)
        )

    def _around(self, trainer: Made) -> dict[str, Any]:
        """What the program puts into libraries, and the environment."""
        walk = self._walk
        table: dict[str, Any] = {"allocator": walk.allocator} if walk.allocator else {}
        if walk.liger:
            table |= {_LIGER[trainer.kind == "Trainer"]: True, "liger_family": walk.liger}
        return table

    def _leave_length_of_run(self, table: dict[str, Any]) -> None:
        """How long the run takes is no part of a step: where only a run knows it, nothing is asked."""
        for name in _OF_RUN:
            if isinstance(table.get(name), Unknown):
                text = f"{name}: {show(table.pop(name).text)} is known to a run alone: say --epochs"
                self._remarks.append((self._source.place(self._trainer.line), text))

    def _count_evaluation(self, table: dict[str, Any]) -> None:
        """Whether there is anything to evaluate on a run alone may know: it is counted as if there was."""
        for name in _EVALUATES:
            open_ = table.get(name)
            if isinstance(open_, Unknown) and (found := _MAY_EVALUATE.fullmatch(open_.text)):
                table[name] = found["then"] or found["other"]
                text = f"{show(open_.text)} is known to a run alone: counted as if it evaluates"
                self._remarks.append((self._source.place(self._trainer.line), text))

    def _refuse_other_models(self, model: Any, task: str) -> None:
        """Raises: NotModelledError where the program loads another than it trains, and than its reference."""
        reference = self._trainer.given.get("ref_model")
        if isinstance(reference, Model) and isinstance(model, Model) and task in _WITH_REFERENCE:
            self._refuse_other_reference(reference, model)
            self._trainer.given.pop("ref_model")
        if other := next((each for each in self._walk.models if each not in (model, reference)), None):
            raise self._refused(other, "another model is loaded than the one that is trained")

    def _seen_as(self, model: Model, task: str, table: dict[str, Any]) -> str:
        """The task of a trainer with a model of this class.

        Raises: NotModelledError: how they train together is not known.
        """
        kind = self._trainer.kind
        sees, classifies = _SEES.search(model.kind), _CLASSIFIES.search(model.kind)
        if (sees and kind == "Trainer") or (classifies and kind not in ("RewardTrainer", "Trainer")):
            raise self._refused(model, f"how {kind} trains such a model is not read from a program")
        if sees and self._trainer.given.get("data_collator") is not None:
            table["own_collator"] = True
        if classifies and kind == "Trainer":
            table["classifies"] = True
            return "classify"
        return task

    def _refused(self, made: Made, why: str) -> NotModelledError:
        return NotModelledError(f"{self._source.place(made.line)}: {why}")

    def _not_said(self, why: str) -> NotSaidError:
        return NotSaidError(f"{self._source.place(self._trainer.line)}: {why}")

    def _refuse_other_reference(self, reference: Model, model: Model) -> None:
        """Raises: NotModelledError where a reference is not the model as it was: a copy in the same dtype."""
        if model.adapters is not None or self._trainer.given.get("peft_config") is not None:
            raise self._refused(reference, "a reference model beside adapters is not modelled")
        if reference.given != model.given or reference.adapters is not None:
            raise self._refused(reference, "the reference is loaded otherwise than the model that is trained")

    def _settings(self, trainer: Made) -> dict[str, Any]:
        """Arguments of the trainer, its own and those of its config."""
        given, args = dict(trainer.given), trainer.given.get("args")
        given.pop("quantization_config", None)
        for name in _OF_OTHERS:
            if given.pop(name, None) not in (None, [None, None]):
                raise self._refused(trainer, f"{name} of {trainer.kind} is not read from a program")
        for name in _TOOLS:
            if given.pop(name, None) not in (None, []):
                text = "what tools give back counts among completions, as long as they may be"
                self._remarks.append((self._source.place(trainer.line), text))
        own = {name: value for name, value in given.items() if name not in _OBJECTS}
        if own_name := next((name for name in own if name not in _OF_TRAINERS), ""):
            raise self._refused(trainer, f"{own_name} of {trainer.kind} is not read from a program")
        if args is None:
            settings, kind = {}, ""
        elif isinstance(args, Made):
            others = args.own if isinstance(args, Arguments) else ()
            settings = {name: value for name, value in args.given.items() if name not in others}
            kind = args.kind
        else:
            raise self._not_said("the arguments of the trainer are not known from the text")
        if "**" in own or "**" in settings:
            raise self._not_said("not all arguments of the trainer are known from the text")
        return {"settings_of": kind or "SFTConfig", **settings, **own}

    def _of_transformers(self, model: Any, table_of: dict[str, Any]) -> dict[str, Any]:
        asked = self._trainer.given.get("quantization_config")
        if isinstance(model, str) or (model is None and "model" in self._trainer.given):
            init = table_of.get("model_init_kwargs")
            packing = init.pop("quantization_config", None) if isinstance(init, dict) else None
            packed = self._packing(packing or asked) if packing or asked else {}
            return {"model_name_or_path": model, **packed, **self._adapters(None)}
        if asked is not None:
            raise self._refused(self._trainer, "a model is quantised when it is loaded, not by its trainer")
        if not isinstance(model, Model):
            raise self._not_said("which model it trains is not known from the text")
        given = {name: value for name, value in model.given.items() if name not in _LOADER_HARMLESS}
        table: dict[str, Any] = {
            "model_name_or_path": given.pop("model_name", None),
            "loaded_by_program": True,
            "model_class": model.kind,
        }
        packing = given.pop("quantization_config", None)
        spread = given.get("device_map")
        if isinstance(spread, Unknown) and _ONE_CARD.match(spread.text):
            given["device_map"] = "cuda"
        if "torch_dtype" in given:
            given["dtype"] = given.pop("torch_dtype")
        if packing is not None:
            table |= self._packing(packing)
        if isinstance(divided := given.get("distributed_config"), Made):
            given["distributed_config"] = divided.given
        return {**table, **given, **self._done_to(model), **self._adapters(model)}

    def _done_to(self, model: Model) -> dict[str, Any]:
        """What the program did to a model beside loading it."""
        table: dict[str, Any] = {}
        if model.frozen and model.adapters is None and self._trainer.given.get("peft_config") is None:
            raise self._refused(model, f"line {model.frozen} freezes all of its weights, without adapters")
        if model.norms_raised:
            table["norms_in_fp32"] = True
        if model.gathered_whole:
            table["gathered_whole"] = model.gathered_whole
        if model.kind == "AutoLigerKernelForCausalLM":
            # liger-kernel 0.8.5 transformers/auto_model.py: the kernels of its family, with their loss.
            table[_LIGER[self._trainer.kind == "Trainer"]] = True
        if model.checkpoints is not None:
            table["gradient_checkpointing"] = True
            table |= model.checkpoints.given
        if (prepared := model.prepared) is not None:
            table["prepared_for_kbit"] = True
            if prepared.given.get("use_gradient_checkpointing", True):
                table["gradient_checkpointing"] = True
        return table

    def _packing(self, config: Any) -> dict[str, Any]:
        if isinstance(config, dict) and (config.get("load_in_4bit") or config.get("load_in_8bit")):
            # transformers 5.23.0 quantizers/auto.py AutoQuantizationConfig.from_dict: that of bitsandbytes.
            config = Made("BitsAndBytesConfig", config, self._trainer.line)
        kind = config.kind if isinstance(config, Made) else ""
        if kind in ("Mxfp4Config", "FineGrainedFP8Config") and config.given.get("dequantize") is True:
            return {"dequantizes": True}
        if kind != "BitsAndBytesConfig":
            raise self._refused(self._trainer, "how the model is quantised is not known from the text")
        given = config.given
        if (
            given.get("load_in_4bit")
            and not given.get("of_trl")
            and given.get(_COMPUTES) in (None, "float32")
        ):
            # Transformers hands fp32 on where nothing is said; bitsandbytes heeds it since 0.46 (Linear4bit).
            text = f"4-bit products are in fp32 ({_COMPUTES}), which may take longer than is counted here"
            self._remarks.append((self._source.place(config.line), text))
        # transformers 5.23.0 utils/quantization_config.py BitsAndBytesConfig: fp4, bytes as they are.
        start = {"bnb_4bit_quant_type": "fp4", "use_bnb_nested_quant": False}
        return {**start, **self._renamed(config, _PACKING, _PACKING_HARMLESS)}

    def _renamed(self, made: Made, names: dict[str, str], harmless: tuple[str, ...]) -> dict[str, Any]:
        table = {}
        for name, value in made.given.items():
            if name in names:
                table[names[name]] = value
            elif name not in harmless and value not in (None, False, {}, []):
                raise self._refused(made, f"{name} of {made.kind} is not read from a program")
        return table

    def _adapters(self, model: Model | None) -> dict[str, Any]:
        """Adapters under the names that TRL has for them; with PEFT's defaults (peft 0.21.2
        tuners/lora/config.py).
        """
        config, asked = self._trainer.given.get("peft_config"), True
        if model is not None and model.adapters is not None:
            config, asked = model.adapters, False
        if config is None:
            return {"use_peft": False}
        if isinstance(config, Made) and config.kind == UNTRAINED:
            raise self._refused(config, "adapters that are loaded without is_trainable=True are not trained")
        if not isinstance(config, Made) or config.kind != "LoraConfig":
            raise self._refused(self._trainer, "which adapters it trains is not known, or they are not LoRA")
        given = dict(config.given)
        if given.pop("bias", "none") != "none":
            raise self._refused(config, "trained biases are not modelled")
        if given.pop("init_lora_weights", None) not in _PLAIN_STARTS:
            raise self._refused(config, "this start of the adapters is not read from a program")
        found = self._renamed(Made(config.kind, given, config.line), LORA, _LORA_HARMLESS)
        return {"use_peft": True, "by_trainer": asked, "lora_r": 8, "lora_dropout": 0.0, **found}

    def _of_unsloth(self, model: Model) -> dict[str, Any]:
        given = {name: value for name, value in model.given.items() if name not in _LOADER_HARMLESS}
        adapters = model.adapters
        if adapters is None:
            return {"unsloth": given}
        if adapters.kind != "unsloth":
            raise self._refused(adapters, "adapters of PEFT over a model of Unsloth are not read")
        lora = {name: value for name, value in adapters.given.items() if name != "model"}
        return {"unsloth": given, "unsloth_lora": lora}

    def _lengths(self) -> dict[str, Any]:
        """The length at which the program's one tokenizing call cuts samples, where there is one."""
        found = dict[int, ast.Call]()
        for scope, tree in self._walk.files_of_it():
            with self._walk.within((scope,)):
                found |= self._cut([node for node in ast.walk(tree) if isinstance(node, ast.Call)])
        if len(found) != 1:
            return {} if found else self._named_length()
        length, node = next(iter(found.items()))
        padding = self._keywords(node, "padding").get("padding")
        self._remarks.append(
            (self._source.place(node.lineno), f"samples are counted as cut at {length} tokens here")
        )
        table: dict[str, Any] = {"max_length": length}
        return {**table, "padded_to_length": True} if padding == "max_length" else table

    def _named_length(self) -> dict[str, Any]:
        """The length that the program's command line has a name for, where no call of a tokenizer cuts."""
        named = {
            name: value
            for each in self._walk.parsed
            for name, value in each.given.items()
            if name in LENGTHS and type(value) is int
        }
        if len({*named.values()}) != 1:
            return {}
        name, length = next(iter(named.items()))
        text = f"{name}={length} is taken for the length to which it cuts samples"
        self._remarks.append((str(self._source.path), text))
        return {"max_length": length}

    def _keywords(self, node: ast.Call, *names: str) -> dict[str, Any]:
        with suppress(TrainedError):
            return {
                str(each.arg): self._walk.value(each.value) for each in node.keywords if each.arg in names
            }
        return {}

    def _cut(self, calls: list[ast.Call]) -> Iterator[tuple[int, ast.Call]]:
        for node in calls:
            given = self._keywords(node, "truncation", "max_length")
            length = given.get("max_length")
            if given.get("truncation") not in (None, False) and isinstance(length, int):
                yield length, node
