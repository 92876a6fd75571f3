"""The model of a scenario as the libraries build it, without memory: on meta, adapted by PEFT,
then turned into fake tensors.
"""

# ruff: noqa: SLF001 - what torch calls private here has no public name

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from transformers import modeling_flash_attention_utils
from transformers.initialization import no_tie_weights
from transformers.modeling_layers import GradientCheckpointingLayer

from measure.recipe.adapters import DTYPES, adapted, is_of_adapters
from measure.recipe.kbit import prepare_for_kbit
from measure.recipe.modules import config_fields, find_layer_list
from measure.recipe.preference_steps import WithValueHead
from measure.recipe.trained import checkpoint_activations, freeze
from measure.trace.cuda.quantized import CONSTANTS, dora_reads_stand_ins, quantize_on_meta
from measure.trace.loading import by_name
from measure.trace.record import Role, TracedBlock
from measure.trace.tracer import Recorder
from planner.catalog.architectures import reader_for
from planner.catalog.left_whole import left_whole_paths
from planner.domain.model import ModelSpec
from planner.domain.recipes.recipe import Recipe
from planner.domain.scenario import Scenario
from planner.errors import NotModelledError

# FlashAttention 2 is switched on when the model is made: making it so asks for the package.  Every model has
# eager attention.
_ATTENTION = {"eager": "eager", "sdpa": "sdpa", "flash2": "eager"}
_REMOTE_CODE = "its code ships with the checkpoint and not with Transformers"


@dataclass(frozen=True, slots=True)
class Built:
    """A model ready to run, the name of its list of decoder layers,
    and the model that it is compared with, if there is one.
    """

    model: Any
    layer_list: str
    n_layers: int
    reference: Any = None


def prediction_answers(model: ModelSpec) -> str:
    """The end of a sentence about a model that cannot be traced: that a prediction is there,
    where the architecture is known.
    """
    return "; a prediction is still there: plan --model ..." if reader_for(model.architecture) else ""


def configuration_of(fields: Mapping[str, Any]) -> Any:
    """The configuration object for fields of a ``config.json``,
    without those that name code beside the checkpoint.
    """
    return transformers.AutoConfig.for_model(
        **{name: value for name, value in fields.items() if name != "auto_map"}
    )


def make_config(scenario: Scenario) -> Any:
    """The configuration object of Transformers for the scenario's model.

    Raises:
        NotModelledError: an architecture that Transformers does not ship, or a student, whose loss is its
            trainer's.
    """
    model, recipe = scenario.model, scenario.recipe
    if recipe.teacher is not None:
        raise NotModelledError(
            "task 'gkd' cannot be traced; run its program: measure trace --gpu CARD -- python gkd.py"
        )
    if model.remote_code:
        raise NotModelledError(
            f"model '{model.id}' cannot be traced: {_REMOTE_CODE}{prediction_answers(model)}"
        )
    fields = config_fields(model)
    if fields.get("model_type") not in transformers.CONFIG_MAPPING:
        raise NotModelledError(
            f"architecture '{fields.get('model_type')}' cannot be traced: "
            f"{_REMOTE_CODE}{prediction_answers(model)}"
        )
    config = configuration_of(fields)
    config._attn_implementation = _implementation(recipe)
    # The Trainer turns caches off (training_args.use_cache);
    # a composite configuration holds that of its language model.
    config.use_cache = False
    config.get_text_config().use_cache = False
    return config


def build_on_meta(scenario: Scenario, config: Any) -> Built:
    """The model with its adapters, on meta.

    What is loaded is tied behind the quantiser, which leaves the last of all parameters whole: a head that is
    tied by then is none (transformers 5.23 modeling_utils.py get_init_context, quantizers/base.py
    get_keys_to_not_convert).
    """
    recipe = scenario.recipe
    is_packed = recipe.numerics.quantization != "none"
    with torch.device("meta"):
        with no_tie_weights() if is_packed else nullcontext():
            model = base_model(scenario, config)
        model = freeze(model, scenario)
        if is_packed:
            quantize_on_meta(model, recipe, left_whole_paths(scenario.model))
            model.tie_weights(recompute_mapping=False)
            # transformers 5.23 quantizers/base.py _assign_is_quantized, which Jamba's code asks for.
            config._is_quantized = config.get_text_config()._is_quantized = True
            _prepare_for_kbit(model, scenario)
        if recipe.adapter is not None:
            with dora_reads_stand_ins():
                model = adapted(model, recipe, scenario.model)
        if scenario.model.value_head:
            model = WithValueHead(model, scenario.model.hidden_size)
    model.train()
    if recipe.attention == "flash2":
        _use_flash(model, scenario.model.id)
    layer_list = find_layer_list(model, config)
    _checkpointing(model, scenario, layer_list)
    reference = _reference(scenario, config) if recipe.has_reference_model else None
    return Built(model, layer_list, len(model.get_submodule(layer_list)), reference)


def _reference(scenario: Scenario, config: Any) -> Any:
    """The model as it is loaded; TRL up to 0.28 and LLaMA-Factory freeze it, which autocast's cache looks at.

    Source: trl 0.15.2 models/modeling_base.py create_reference_model, 1.16.0 trainer/dpo_trainer.py;
    hiyouga/LLaMA-Factory (commit ff6d4d12) model/loader.py (``requires_grad_(False)``).
    """
    again = copy.deepcopy(config)
    again._attn_implementation = _implementation(scenario.recipe)
    with torch.device("meta"):
        model = base_model(scenario, again)
    model.eval()
    model.requires_grad_(scenario.stack.pair_logps in ("tiles", "shifted_rows"))
    if scenario.recipe.attention == "flash2":
        _use_flash(model, scenario.model.id)
    return model


def _implementation(recipe: Recipe) -> str:
    """What the model is made with.

    Raises:
        NotModelledError: a kernel for which nothing stands in without a GPU.
    """
    if recipe.attention not in _ATTENTION:
        raise NotModelledError(
            f"attention '{recipe.attention}' cannot be traced: --attention {', '.join(_ATTENTION)} can"
        )
    return _ATTENTION[recipe.attention]


def _use_flash(model: Any, name: str) -> None:
    """Switch to FlashAttention 2 after the model was made with SDPA.

    Raises:
        NotModelledError: an architecture that has no code for it, which Transformers refuses too.
    """
    if not next(
        module for module in model.modules() if isinstance(module, transformers.PreTrainedModel)
    )._supports_flash_attn:
        raise NotModelledError(
            f"model '{name}' has no FlashAttention 2 in Transformers; use --attention sdpa"
        )
    for module in model.modules():
        if isinstance(getattr(module, "config", None), transformers.PretrainedConfig):
            module.config._attn_implementation_internal = "flash_attention_2"
        _become_flash(module)


def _become_flash(module: Any) -> None:
    """Falcon, GPT-J and others have a class for each kernel, and choose among them when they are made.

    Source: transformers 5.23 models/falcon/modeling_falcon.py FALCON_ATTENTION_CLASSES; FlashAttention has
    had the mask of the lower right since 2.1.
    """
    code = vars(sys.modules[type(module).__module__])
    classes: dict[str, Any] = next(
        (each for name, each in code.items() if name.endswith("_ATTENTION_CLASSES")), {}
    )
    if type(module) in classes.values():
        module.__class__ = classes["flash_attention_2"]
        module._flash_attn_uses_top_left_mask = False
        # Imported there only where the package is.
        code["_flash_attention_forward"] = modeling_flash_attention_utils._flash_attention_forward


def class_of(scenario: Scenario, config: Any) -> Any:
    """The class of Transformers that makes the whole model, or its text part where nothing is seen."""
    whole = scenario.model.vision is not None
    if whole or type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        # Some models that see or hear are in this list alone, such as InternVL and Voxtral; of others
        # the list below has the text part.
        return getattr(transformers, "AutoModelForMultimodalLM", transformers.AutoModelForImageTextToText)
    return transformers.AutoModelForCausalLM


def base_model(scenario: Scenario, config: Any) -> Any:
    """The model without adapters, on the device of the context.

    Raises:
        NotModelledError: what Transformers will not make; says its reason.
    """
    try:
        kind: Any = class_of(scenario, config)
        if scenario.recipe.task in ("reward", "classify") and not scenario.model.value_head:
            kind, config = transformers.AutoModelForSequenceClassification, copy.deepcopy(config)
            config.num_labels, config.pad_token_id = scenario.model.head.out_features, 0
        if scenario.recipe.task == "prm":
            kind, config = transformers.AutoModelForTokenClassification, copy.deepcopy(config)
            config.num_labels, config.classifier_dropout = 2, 0.0
        make: Any = kind.from_config
        return make(config, dtype=DTYPES[scenario.recipe.numerics.load_dtype])
    except ValueError as error:
        reason = str(error).partition("\n")[0][:200]
        if scenario.recipe.attention == "sdpa" and "scaled_dot_product_attention" in reason:
            reason = "its code in Transformers has no SDPA; use --attention eager"
        raise NotModelledError(f"model '{scenario.model.id}' cannot be traced: {reason}") from None


def _prepare_for_kbit(model: Any, scenario: Scenario) -> None:
    """PEFT's preparation: which dtypes a tensor has before its last one, as it was loaded first."""
    loaded = {name: tensor.dtype for name, tensor in model.named_parameters()}
    between = prepare_for_kbit(model, scenario)
    for name, tensor in model.named_parameters():
        changes = [loaded[name], between[name]] if tensor.dtype != between[name] else [loaded[name]]
        if changes[-1] != tensor.dtype:
            tensor.earlier_dtypes = changes


def refuse_older_layers(model: Any, layer_list: str) -> None:
    """Layers that checkpoint themselves can do so one without the other; those of older code cannot, where
    the model around them does it.

    Source: transformers 5.23 modeling_utils.py _set_gradient_checkpointing.

    Raises:
        NotModelledError: there are such layers.
    """
    for layer in model.get_submodule(layer_list):
        if not isinstance(layer, GradientCheckpointingLayer):
            raise NotModelledError(
                f"layers of class {type(layer).__name__} cannot be checkpointed one without the other; use "
                "--checkpoint-every 1"
            )


def _checkpointing(model: Any, scenario: Scenario, layer_list: str) -> None:
    """As the Trainer does, where the model can."""
    if scenario.recipe.gradient_checkpointing and scenario.recipe.rebuilds_some:
        refuse_older_layers(model, layer_list)
    try:
        checkpoint_activations(model, scenario)
    except ValueError as error:
        kind = model.config.model_type
        raise NotModelledError(
            f"architecture '{kind}' cannot be traced with gradient checkpointing ({error}); use "
            "--no-gradient-checkpointing"
        ) from None


def materialize(model: nn.Module, recorder: Recorder, number: int = 0, *, by_names: bool = False) -> None:
    """Replace every meta tensor of ``model`` by a fake CPU one,
    in the order in which the libraries move them to the device.

    Base weights are recorded as the stage ``load``, adapters as ``adapters``.  ``number``: of the model.
    ``by_names``: they come in the order of their names, else those first that are cast on the card.
    """
    owners = _owners(model)
    recorder.enter_stage("load", number)
    with recorder:
        base = {tensor: places for tensor, places in owners.items() if not is_of_adapters(places[0][2])}
        cast: dict[Any, TracedBlock] = {}
        come: set[torch.Tensor] = set()
        for tensor in _in_order(base, by_names=by_names):
            if hasattr(tensor, "earlier_dtypes"):
                cast[tensor] = _held_as(tensor, base[tensor], 0, recorder)
            elif tensor not in come:
                come |= _arrive(tensor, base, recorder)
        # peft 0.21 utils/other.py prepare_model_for_kbit_training goes through ``Module.parameters``.
        cast = {tensor: cast[tensor] for tensor in base if tensor in cast}
        for tensor, block in cast.items():
            if len(tensor.earlier_dtypes) > 1:
                cast[tensor] = _held_as(tensor, base[tensor], 1, recorder)
                recorder.give_back(block)
        for tensor, block in cast.items():
            _replace(tensor, base[tensor], recorder)
            recorder.give_back(block)
    recorder.enter_stage("adapters", number)
    with recorder:
        for tensor, places in owners.items():
            if is_of_adapters(places[0][2]):
                _replace(tensor, places, recorder)


_Place = tuple[nn.Module, str, str]


def _in_order(base: Mapping[torch.Tensor, list[_Place]], *, by_names: bool) -> list[torch.Tensor]:
    def place(tensor: torch.Tensor) -> tuple[object, ...]:
        _, name, path = base[tensor][0]
        # Constants of a packed matrix come with it.
        return name in CONSTANTS, *by_name(path.replace(".base_layer", ""))

    if by_names:
        return sorted(base, key=place)
    return sorted(base, key=lambda each: not hasattr(each, "earlier_dtypes"))


def _owners(model: nn.Module) -> Mapping[torch.Tensor, list[_Place]]:
    """Every parameter and buffer once, with all modules that hold it (tied weights have several)
    and its full name.
    """
    owners: dict[torch.Tensor, list[_Place]] = {}
    for prefix, module in model.named_modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    owners.setdefault(tensor, []).append((module, name, f"{prefix}.{name}"))
    return owners


def _role(name: str) -> Role:
    if name.rpartition(".")[2] in CONSTANTS:
        return "quantization_constants"
    return "adapters" if is_of_adapters(name) else "weights"


def _held_as(tensor: Any, places: list[_Place], number: int, recorder: Recorder) -> TracedBlock:
    """The block of a tensor in one of the dtypes that it had before its last one."""
    with recorder.modules.at(places[0][2].rpartition(".")[0]):
        n_bytes = tensor.numel() * tensor.earlier_dtypes[number].itemsize
        return recorder.take(n_bytes, "load", "weights")


def _arrive(
    tensor: torch.Tensor, owners: Mapping[torch.Tensor, list[_Place]], recorder: Recorder
) -> set[torch.Tensor]:
    """A tensor comes to the card, a quantised matrix with its constants; gives all that came."""
    module, name, path = owners[tensor][0]
    come: set[torch.Tensor] = set()
    passing = []
    for step in getattr(tensor, "arrival", (name,)):
        if isinstance(step, str):
            part = getattr(module, step)
            _replace(part, owners[part], recorder)
            come.add(part)
        else:
            with recorder.modules.at(path.rpartition(".")[0]):
                passing.append(recorder.take(step, "load", "dequantization"))
    for block in reversed(passing):
        recorder.give_back(block)
    return come


def _replace(tensor: torch.Tensor, places: list[_Place], recorder: Recorder) -> None:
    with recorder.modules.at(places[0][2].rpartition(".")[0]):
        fake = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    recorder.mark(fake, _role(places[0][2]))
    if isinstance(tensor, nn.Parameter):
        kept: Any = nn.Parameter(fake, requires_grad=tensor.requires_grad)
        for module, name, _ in places:
            module._parameters[name] = kept
    else:
        for module, name, _ in places:
            module._buffers[name] = fake
