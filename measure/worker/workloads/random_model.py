"""The model of a case on its device: random weights made tensor by tensor as a loader does,
or a checkpoint.
"""

# ruff: noqa: SLF001 - what the libraries call private here has no public name

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import transformers
from torch import nn

from measure.recipe.adapters import DTYPES, adapted
from measure.recipe.checkpointing import checkpoint_kwargs
from measure.recipe.modules import config_fields, find_layer_list
from measure.recipe.trained import differentiate, freeze
from measure.run.cases.case import RunCase
from measure.worker.probes.phase_peaks import PhaseRecorder
from planner.domain.recipes.attention_kernels import ATTENTION_FACTS
from planner.domain.recipes.recipe import Recipe
from planner.domain.scenario import Scenario

_FOUR_BIT = ("nf4", "fp4")
_INITIAL_DEVIATION = 0.02
_TILE_COLUMNS, _TILE_ROWS = 64, 32
# What the scenario calls the Liger loss: the fused projection and loss,
# with every other layer as Transformers has it.
LIGER_LOSS_ONLY = {
    "fused_linear_cross_entropy": True,
    "cross_entropy": False,
    "rope": False,
    "rms_norm": False,
    "swiglu": False,
}


def build_model(case: RunCase, scenario: Scenario, device: torch.device, phases: PhaseRecorder) -> Any:
    """The model of ``scenario`` on ``device``, adapted, in training mode, checkpointed as the recipe says."""
    recipe = scenario.recipe
    phases.enter("load")
    if case.options.checkpoint is not None:
        model = _from_checkpoint(case, scenario, device)
    elif recipe.sharding.is_zero3 and recipe.numerics.quantization == "none":
        from measure.worker.workloads.divided_models import make_partitioned

        model = make_partitioned(case, scenario, device, model_config(case, scenario))
    else:
        model = _random_model(case, scenario, device)
    model = freeze(model, scenario)
    if recipe.numerics.quantization != "none":
        _prepare_for_kbit(model, scenario)
    if recipe.adapter is not None:
        phases.enter("adapters")
        model = adapted(model, recipe.adapter, scenario.model)
    model.train()
    phases.leave()
    return model


def model_config(case: RunCase, scenario: Scenario) -> Any:
    """The configuration object of Transformers, or of the model's own code where that is allowed."""
    trust = case.options.trust_remote_code
    if scenario.model.remote_code and trust:
        where = case.options.checkpoint or scenario.model.hub_id
        config: Any = transformers.AutoConfig.from_pretrained(where, trust_remote_code=True)
    else:
        config = transformers.AutoConfig.for_model(**config_fields(scenario.model))
    config._attn_implementation = ATTENTION_FACTS[scenario.recipe.attention].names[0]
    # The Trainer turns caches off; a composite configuration holds that of its language model.
    config.use_cache = False
    config.get_text_config().use_cache = False
    return config


def _from_checkpoint(case: RunCase, scenario: Scenario, device: torch.device) -> Any:
    """Real weights, from safetensors files only; ZeRO-3 divides them as they are read."""
    numerics = scenario.recipe.numerics
    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    if not scenario.recipe.sharding.is_zero3 or numerics.quantization != "none":
        return load(case.options.checkpoint, device_map={"": device}, **_load_settings(case, scenario))
    from measure.worker.workloads.divided_models import dividing

    with dividing(case, scenario, device):
        return load(case.options.checkpoint, **_load_settings(case, scenario))


def _load_settings(case: RunCase, scenario: Scenario) -> dict[str, Any]:
    return {
        "dtype": DTYPES[scenario.recipe.numerics.load_dtype],
        "attn_implementation": ATTENTION_FACTS[scenario.recipe.attention].names[0],
        "quantization_config": quantization_config(scenario.recipe),
        "use_safetensors": True,
        "trust_remote_code": case.options.trust_remote_code,
        "use_cache": False,
    }


def _random_model(case: RunCase, scenario: Scenario, device: torch.device) -> Any:
    """The modules without weights, then each weight made on the device and quantised at once,
    as loading a checkpoint does.
    """
    from accelerate import init_empty_weights  # type: ignore[import-untyped]

    recipe = scenario.recipe
    make: Any = transformers.AutoModelForCausalLM.from_config
    with _whole_model(recipe), torch.device(device), init_empty_weights(include_buffers=False):
        model = make(
            model_config(case, scenario),
            dtype=DTYPES[recipe.numerics.load_dtype],
            trust_remote_code=case.options.trust_remote_code,
        )
    if recipe.numerics.quantization != "none":
        _put_quantized_layers(model, recipe)
    loader = _Loader(device, DTYPES[recipe.numerics.load_dtype])
    for module in model.modules():
        loader.fill(module)
    model.tie_weights()
    return model


def _whole_model(recipe: Recipe) -> AbstractContextManager[None]:
    """Keeps Transformers from dividing a model that is quantised first and divided by the engine
    afterwards.
    """
    if not recipe.sharding.is_zero3:
        return nullcontext()
    from measure.worker.workloads.divided_models import undivided

    return undivided()


def _put_quantized_layers(model: Any, recipe: Recipe) -> None:
    """Replace the layers that Transformers would quantise, by its own choice of modules."""
    config = quantization_config(recipe)
    if recipe.numerics.quantization == "int8":
        from transformers.quantizers.quantizer_bnb_8bit import Bnb8BitHfQuantizer as Quantizer
    else:
        from transformers.quantizers.quantizer_bnb_4bit import (  # type: ignore[assignment]
            Bnb4BitHfQuantizer as Quantizer,
        )
    quantizer: Any = Quantizer(config)
    quantizer._process_model_before_weight_loading(model, device_map=None)
    _keep_plain_layout(model)
    model.hf_quantizer = quantizer
    model.config.quantization_config = config
    model.quantization_method = config.quant_method
    model.is_quantized = True
    bits = "8bit" if recipe.numerics.quantization == "int8" else "4bit"
    setattr(model, f"is_loaded_in_{bits}", True)
    setattr(model, f"is_{bits}_serializable", True)


def _keep_plain_layout(model: Any) -> None:
    """Leave bitsandbytes' packed layout for evaluation on a CPU off where it fails:
    on matrices that are no whole tiles.

    Source: bitsandbytes 0.50 functional.py _convert_weight_packed_for_cpu: blocks of 64 along a row,
    32 rows at a time.
    """
    for module in model.modules():
        if not getattr(module, "support_avx512bf16_for_cpu", False):
            continue
        if module.in_features % _TILE_COLUMNS or module.out_features % _TILE_ROWS:
            module.support_avx512bf16_for_cpu = False


def quantization_config(recipe: Recipe) -> Any:
    """The configuration of bitsandbytes, ``None`` where nothing is quantised."""
    numerics = recipe.numerics
    make: Any = transformers.BitsAndBytesConfig
    if numerics.quantization == "int8":
        return make(load_in_8bit=True)
    if numerics.quantization not in _FOUR_BIT:
        return None
    return make(
        load_in_4bit=True,
        bnb_4bit_quant_type=numerics.quantization,
        bnb_4bit_use_double_quant=numerics.double_quant,
        bnb_4bit_compute_dtype=DTYPES[numerics.compute_dtype],
        bnb_4bit_quant_storage=DTYPES[numerics.quant_storage] if numerics.quant_storage else torch.uint8,
    )


class _Loader:
    """Puts random values where a checkpoint has some; a weight that two modules share is made once."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._made: dict[int, nn.Parameter] = {}

    def fill(self, module: Any) -> None:
        """Make the weights that ``module`` itself holds."""
        owned = [
            (name, tensor)
            for name, tensor in module._parameters.items()
            if tensor is not None and tensor.is_meta
        ]
        for name, tensor in owned:
            if id(tensor) not in self._made:
                self._made[id(tensor)] = self._parameter(module, name, tensor)
            module._parameters[name] = self._made[id(tensor)]

    def _parameter(self, module: Any, name: str, old: Any) -> nn.Parameter:
        if name != "weight" or type(module).__name__ not in ("Linear4bit", "Linear8bitLt"):
            return nn.Parameter(
                _random(name, old.shape, old.dtype, self._device), requires_grad=old.requires_grad
            )
        import bitsandbytes

        layers: Any = bitsandbytes.nn
        # The layer says float32 until it holds something; the checkpoint has the dtype of everything else.
        value = _random(name, old.shape, self._dtype, self._device)
        if type(module).__name__ == "Linear8bitLt":
            parameter: Any = layers.Int8Params(value, requires_grad=False, has_fp16_weights=False)
            return parameter._quantize(self._device)  # type: ignore[no-any-return]
        weight: Any = layers.Params4bit(
            value,
            requires_grad=False,
            quant_type=old.quant_type,
            compress_statistics=old.compress_statistics,
            quant_storage=old.quant_storage,
            module=module,
        )
        return weight.to(self._device)  # type: ignore[no-any-return]


def _random(name: str, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    value = torch.empty(shape, dtype=dtype, device=device)
    if name.endswith("bias"):
        return value.zero_()
    if len(shape) == 1:
        return value.fill_(1.0)
    return value.normal_(0.0, _INITIAL_DEVIATION)


def _prepare_for_kbit(model: Any, scenario: Scenario) -> None:
    """PEFT's preparation of quantised bases, where the stack calls it."""
    if scenario.stack.kbit_upcast != "all":
        return
    import peft

    recipe = scenario.recipe
    prepare: Any = peft.prepare_model_for_kbit_training
    prepare(
        model,
        use_gradient_checkpointing=recipe.gradient_checkpointing,
        gradient_checkpointing_kwargs=checkpoint_kwargs(recipe),
    )


def checkpoint_activations(model: Any, scenario: Scenario) -> None:
    """As the Trainer does: the setting, and inputs that require a gradient where no embedding is trained."""
    recipe = scenario.recipe
    if not recipe.gradient_checkpointing:
        return
    # Only said where it is asked for: older versions of Transformers do not know it.
    every = {"every_n_layers": recipe.checkpoint_every} if recipe.rebuilds_some else {}
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=checkpoint_kwargs(recipe), **every)
    if recipe.method == "lora":
        model.enable_input_require_grads()
    elif recipe.train_layers:
        differentiate(model, find_layer_list(model, model.config), scenario.stack.frozen_layers)
