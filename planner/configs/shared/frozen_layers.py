"""Which layers a training file trains, where not all: LLaMA-Factory's ``freeze``,
Axolotl's ``unfrozen_parameters``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from planner.configs.said_by_file import Alone, Reading
from planner.configs.shared.keys import Keys
from planner.errors import show

# LLaMA-Factory looks for a module's name anywhere in a parameter's: norm trains the norms of all layers, too.
_ENDS = {"embed_tokens": "embed", "lm_head": "head"}
# llamafactory 0.9.5 hparams/finetuning_args.py: freeze_trainable_layers.
_DEFAULT_LAYERS = 2
_OF_END = {"model.embed_tokens.weight": "embed", "model.norm.weight": "norm", "lm_head.weight": "head"}
_LANGUAGE_MODEL = ("model.language_model.", "lm_head.weight")
"""How names of parameters begin in a model that sees, but for those of its tower and projector.

Source: transformers 5.23 models/{gemma3,mistral3,qwen3_5,llava}/modeling_*.py.
"""
_SEEING = tuple(f"model.{name}." for name in ("visual", "vision_tower", "multi_modal_projector"))
_MATRICES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
_AROUND = (*_MATRICES, "input_layernorm", "post_attention_layernorm")
_OF_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
# Names of Mixtral's modules before Transformers 5; experts have numbers.
_MIXTURE = "block_sparse_moe"
_EXPERTS = tuple(
    f"block_sparse_moe.experts.{number}.{name}" for number in range(8) for name in ("w1", "w2", "w3")
)
_OF_MIXTURE = ("block_sparse_moe.gate", *_EXPERTS)
# What LLaMA-Factory's own example expands Llama 3 8B to (examples/extras/llama_pro/expand.sh of 2024-04 to
# 2026-08).
_EXPANDED_BY_EXAMPLE = ("models/llama3-8b-pro", "models/llama3-8b-instruct-pro")
_ADDED_LAYERS = 8
# Patterns such as 2[0-9]+ also mean layers 200 to 299, which no model has.
_MOST_LAYERS = 128


def read_freeze(keys: Keys, reading: Reading, name: str = "finetuning_type") -> None:
    """What ``name`` calls ``freeze``: the last layers, the first ones where the number is below zero,
    or some evenly apart.

    Source: llamafactory 0.9.5 model/adapter.py _setup_freeze_tuning, the same since 0.7.1; in 0.7.0 the
    keys are num_layer_trainable and name_module_trainable (hparams/finetuning_args.py).

    Raises:
        InputFileError: a number of layers that is none.
        NotModelledError: some modules of each layer only, or modules around the layers that are not known.
    """
    layer_key, module_key = (
        old if keys.has(old) else new
        for new, old in (
            ("freeze_trainable_layers", "num_layer_trainable"),
            ("freeze_trainable_modules", "name_module_trainable"),
        )
    )
    if keys.names(module_key) not in ((), ("all",)):
        raise keys.not_modelled(module_key, "training some modules of a layer only is not modelled; all is")
    said = keys.get(layer_key)
    count = _DEFAULT_LAYERS if said is None else said
    spread = bool(keys.flag("use_llama_pro"))
    if not isinstance(count, int) or isinstance(count, bool) or count == 0 or (spread and count < 0):
        raise keys.wrong(layer_key, "a whole number, not 0, below it for the first layers", count)
    layers = f"spread:{count}" if spread else f"last:{count}" if count > 0 else f"first:{-count}"
    extra = keys.names("freeze_extra_modules")
    if unknown := [name for name in extra if name not in _ENDS]:
        raise keys.not_modelled(
            "freeze_extra_modules", f"'{show(unknown[0])}' is not modelled; {', '.join(_ENDS)} are"
        )
    place = keys.where(name if said is None else layer_key)
    if spread:
        _need_expanded(keys, reading, count)
    reading.say("train_layers", (layers, *(_ENDS[name] for name in extra)), place)


def _need_expanded(keys: Keys, reading: Reading, count: int) -> None:
    """Ask for the model where it is a folder with a model that the tool's script expanded,
    and that is not here.

    The folder of the tool's own example is known.

    The Hub has no owner called models;
    such a name is what the script writes to (llamafactory 0.9.5 scripts/llama_pro.py).
    """
    name = keys.text("model_name_or_path") or ""
    folder = name.startswith(("models/", "saves/", "./", "../", "/", "~"))
    if not folder or _has_config(keys.path.parent, name):
        return
    if name.rstrip("/") in _EXPANDED_BY_EXAMPLE and count == _ADDED_LAYERS:
        text = (
            f"counted as examples/extras/llama_pro/expand.sh makes it: Llama 3 8B with {_ADDED_LAYERS} "
            "layers added"
        )
        reading.say("model", "llama-3-8b-plus-8-layers", keys.where("model_name_or_path"), text)
        reading.remark(keys.where("model_name_or_path"), f"{show(name)} is not here: {text}")
    else:
        expanded = f"{show(name)} is a model expanded for LLaMA-Pro, which is not here"
        reading.needs["model"] = (
            f"{keys.where('model_name_or_path')}: {expanded}: say --model with its config.json; of the "
            f"expanded layers the file trains {count}"
        )


def _has_config(parent: Path, folder: str) -> bool:
    """Whether the model is there; a name that is no path, or of no user, is not."""
    try:
        return (parent / Path(folder).expanduser() / "config.json").is_file()
    except (OSError, ValueError, RuntimeError):
        return False


def read_unfrozen(keys: Keys, reading: Reading, *, old: bool) -> None:
    """``unfrozen_parameters``: expressions that names of parameters begin with,
    tried on those of Llama's kind of model.

    ``old``: the file is of a version before Transformers 5, which calls Mixtral's mixtures by another name.

    A range behind a pattern (``[:32000]``) sets gradients to zero and saves nothing.
    Source: axolotl 0.19.0 utils/freeze.py freeze_layers_except, LayerNamePattern; train.py
    setup_model_and_tokenizer.

    Raises:
        InputFileError: no list of expressions.
        NotModelledError: some matrices of a layer only, or parameters that such a model does not have.
        UsageError: what :func:`_read_beside_adapters` says.
    """
    written = keys.names("unfrozen_parameters")
    if not written:
        return
    if not old:
        written = _without_mixtures(keys, reading, written)
    patterns = [_compiled(keys, text) for text in written]
    if keys.has("adapter"):
        _read_beside_adapters(keys, reading, patterns, written)
        return
    if all(_matches(patterns, name) for name in _LANGUAGE_MODEL) and not _matches(patterns, *_SEEING):
        reading.say("freeze", ("vision_tower", "projector"), keys.where("unfrozen_parameters"))
        return
    halves = _OF_MIXTURE if any(_MIXTURE in text for text in written) else _OF_MLP
    names = (
        *_OF_END,
        *(_in_layer(number, name) for number in range(_MOST_LAYERS) for name in (*_AROUND, *halves)),
    )
    for pattern, text in zip(patterns, written, strict=True):
        if not _matches([pattern], *names):
            raise keys.not_modelled(
                "unfrozen_parameters",
                f"'{show(text)}' is no parameter of a model like Llama or Mixtral, which are read",
            )
    ends = [end for name, end in _OF_END.items() if _matches(patterns, name)]
    whole, by_halves = _layers(keys, patterns, halves)
    layers = (*_ranges(whole), *(f"{each}:mlp" for each in _ranges(by_halves)))
    reading.say("train_layers", (*layers, *ends), keys.where("unfrozen_parameters"))
    if _makes_inputs_require_gradient(written):
        reading.switch("frozen_layers", "differentiated", keys.where("unfrozen_parameters"))


def _read_beside_adapters(
    keys: Keys, reading: Reading, patterns: Sequence[re.Pattern[str]], written: Sequence[str]
) -> None:
    """PEFT's names begin with ``base_model``, so that no pattern finds one and adapters are frozen as well.

    The Trainer runs such a model, which Accelerate then leaves without DDP, as long as what the first layer
    reads requires a gradient (accelerate 1.15 accelerator.py prepare_model; transformers 5.16
    modeling_utils.py gradient_checkpointing_enable).  No parameter has a gradient or a state then.
    """
    name = "unfrozen_parameters"
    inside = "base_model.model."
    found = any(
        pattern.match(inside) or text.lstrip("^").startswith("base_model")
        for pattern, text in zip(patterns, written, strict=True)
    )
    engine = next((each for each in ("deepspeed", "fsdp", "fsdp_config") if keys.get(each)), None)
    if found or engine:
        what = f"nothing is trained by {engine}" if engine else "which adapters it leaves"
        raise keys.not_modelled(name, f"beside adapters it freezes them as well; {what} is not modelled")
    if not _makes_inputs_require_gradient(written) and not keys.flag("gradient_checkpointing"):
        raise keys.stops(
            name,
            "beside adapters it freezes them as well, and backward stops at a loss without a gradient; take "
            "it out",
        )
    reading.remark(
        keys.where(name),
        "beside adapters it freezes them as well, and nothing is trained; counted as if they were, which is "
        "more: take it out",
    )


def _makes_inputs_require_gradient(written: Sequence[str]) -> bool:
    return any(name in text for text in written for name in ("lm_head", "embed_tokens"))


def _without_mixtures(keys: Keys, reading: Reading, written: tuple[str, ...]) -> tuple[str, ...]:
    """Expressions less those that name Mixtral's mixtures as Transformers 4 did (5.23: ``mlp``)."""
    left = tuple(text for text in written if _MIXTURE not in text)
    if not left:
        what = f"no parameter has been called {_MIXTURE} since Transformers 5, so that nothing is trained"
        raise keys.not_modelled("unfrozen_parameters", what)
    if left != written:
        text = f"no parameter has been called {_MIXTURE} since Transformers 5: what else is named is trained"
        reading.remark(keys.where("unfrozen_parameters"), text)
    return left


def read_lisa(keys: Keys, reading: Reading) -> None:
    """LISA: some layers, drawn anew every so many steps, beside what is around the layers.

    The model is wrapped before the first draw, when everything is trained: DDP then waits for gradients of
    frozen layers, and stops in the second step (torch 2.13 nn/parallel/distributed.py,
    ddp_find_unused_parameters is false).
    Source: axolotl 0.4 to 0.19 utils/callbacks/lisa.py, core/builders/causal.py: without an interval nothing
    is drawn.

    Raises:
        NotModelledError: beside adapters or another choice of layers, or with an engine that divides.
    """
    count, interval = keys.count("lisa_n_layers"), keys.count("lisa_step_interval")
    if not count or not interval:
        return
    engine = next((name for name in ("deepspeed", "fsdp", "fsdp_config") if keys.get(name)), None)
    beside = next((name for name in ("adapter", "unfrozen_parameters") if keys.has(name)), engine)
    if keys.text("lisa_layers_attribute") not in (None, "model.layers"):
        raise keys.not_modelled("lisa_layers_attribute", "layers of another name than model.layers are not")
    say_lisa(keys, reading, "lisa_n_layers", f"drawn:{count}@{interval}", beside)


def say_lisa(keys: Keys, reading: Reading, name: str, drawn: str, beside: str | None) -> None:
    """Enter the layers that LISA has ``drawn`` and what is around them, by the key ``name``.

    Raises:
        NotModelledError: there is something ``beside`` it.
    """
    if beside is not None:
        raise keys.not_modelled(name, f"LISA beside {beside} is not modelled")
    reading.say("train_layers", (drawn, "embed", "norm", "head"), keys.where(name))
    if not keys.flag("ddp_find_unused_parameters"):
        stops = "LISA freezes layers behind DDP, which stops in its second step"
        reading.alone = Alone(keys.where(name), stops)


def _in_layer(number: int, name: str) -> str:
    return f"model.layers.{number}.{name}.weight"


def _layers(
    keys: Keys, patterns: Sequence[re.Pattern[str]], halves: Sequence[str]
) -> tuple[list[int], list[int]]:
    """Layers that are trained whole, and those of which only the feed-forward part is:
    the modules ``halves``.
    """
    whole, parts = list[int](), list[int]()
    for number in range(_MOST_LAYERS):
        outer = [_matches(patterns, _in_layer(number, name)) for name in _AROUND]
        inner = [_matches(patterns, _in_layer(number, name)) for name in halves]
        if all(outer + inner):
            whole.append(number)
        elif all(inner) and not any(outer):
            parts.append(number)
        elif any(outer + inner):
            raise keys.not_modelled(
                "unfrozen_parameters",
                "training some modules of a layer only is not modelled; whole layers and whole "
                "feed-forward parts are",
            )
    return whole, parts


def _compiled(keys: Keys, text: str) -> re.Pattern[str]:
    """A pattern without its range; periods stand for themselves, unless ``+`` follows."""
    plain = re.sub(r"(.)\[[0-9]*(?::[0-9]*)?\]$", r"\1", text)
    try:
        return re.compile(re.sub(r"\.(?!\+)", "\\.", plain))
    except re.error:
        raise keys.wrong("unfrozen_parameters", "regular expressions", text) from None


def _matches(patterns: Sequence[re.Pattern[str]], *names: str) -> bool:
    return any(pattern.match(name) for pattern in patterns for name in names)


def _ranges(numbers: Sequence[int]) -> list[str]:
    """``4-7`` for numbers in a row."""
    rows = [
        [number for _, number in row]
        for _, row in groupby(enumerate(numbers), lambda each: each[1] - each[0])
    ]
    return [str(row[0]) if len(row) == 1 else f"{row[0]}-{row[-1]}" for row in rows]
