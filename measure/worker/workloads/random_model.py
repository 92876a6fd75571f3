"""The model of a case on its device: loaded from a checkpoint, or from random weights as from one."""

# ruff: noqa: SLF001 - what the libraries call private here has no public name

from __future__ import annotations

import zlib
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import transformers

from measure.recipe.adapters import DTYPES, adapted
from measure.recipe.kbit import prepare_for_kbit, quantization_config
from measure.recipe.modules import config_fields
from measure.recipe.trained import freeze
from measure.run.cases.case import RunCase
from measure.worker.probes.phase_peaks import PhaseRecorder
from planner.domain.recipes.attention_kernels import ATTENTION_FACTS
from planner.domain.recipes.recipe import Recipe
from planner.domain.scenario import Scenario

_INITIAL_DEVIATION = 0.02
_TILE_COLUMNS, _TILE_ROWS = 64, 32


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
    # The config of a model with a tower holds this in that of its language model alone.
    model.config.get_text_config().use_cache = False
    model = freeze(model, scenario)
    if recipe.numerics.quantization != "none":
        prepare_for_kbit(model, scenario)
    if recipe.adapter is not None:
        phases.enter("adapters")
        model = adapted(model, recipe, scenario.model)
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
    settings = _load_settings(case, scenario) | {"use_safetensors": True}
    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    if not scenario.recipe.sharding.is_zero3 or numerics.quantization != "none":
        return load(case.options.checkpoint, device_map={"": device}, **settings)
    from measure.worker.workloads.divided_models import dividing

    with dividing(case, scenario, device):
        return load(case.options.checkpoint, **settings)


def _load_settings(case: RunCase, scenario: Scenario) -> dict[str, Any]:
    return {
        "dtype": DTYPES[scenario.recipe.numerics.load_dtype],
        "attn_implementation": ATTENTION_FACTS[scenario.recipe.attention].names[0],
        "quantization_config": quantization_config(scenario.recipe),
        "trust_remote_code": case.options.trust_remote_code,
    }


def _random_model(case: RunCase, scenario: Scenario, device: torch.device) -> Any:
    """A checkpoint of random weights, loaded as a file is: by ``from_pretrained``, each weight on the device
    when its turn comes.
    """
    config, settings = model_config(case, scenario), _load_settings(case, scenario)
    make: Any = transformers.AutoModelForCausalLM.from_config
    with torch.device("meta"):
        plain = make(config, dtype=settings["dtype"], trust_remote_code=settings.pop("trust_remote_code"))
    saved = plain.state_dict(keep_vars=True)
    saved = {name: saved[name] for name in saved.keys() - set(plain.all_tied_weights_keys)}
    weights = {name: _RandomWeight(name, tensor, device) for name, tensor in sorted(saved.items())}
    with _whole_model(scenario.recipe):
        model = type(plain).from_pretrained(
            None, config=config, state_dict=weights, device_map={"": device}, **settings
        )
    _keep_plain_layout(model)
    return model


class _RandomWeight:
    """A slice of a file as safetensors has it: whoever indexes it reads the weight."""

    def __init__(self, name: str, like: torch.Tensor, device: torch.device) -> None:
        self._name, self._shape, self._dtype, self._device = name, like.shape, like.dtype, device

    def __getitem__(self, _: object) -> torch.Tensor:
        value = torch.empty(self._shape, dtype=self._dtype, device=self._device)
        if self._name.endswith("bias") or not value.is_floating_point():
            return value.zero_()
        if len(self._shape) == 1:
            return value.fill_(1.0)
        # Several threads read at once: a generator for each name makes the same values in any order.
        seed = torch.initial_seed() ^ zlib.crc32(self._name.encode())
        return value.normal_(
            0.0, _INITIAL_DEVIATION, generator=torch.Generator(self._device).manual_seed(seed)
        )

    def get_shape(self) -> list[int]:
        """As the slices of safetensors say it."""
        return list(self._shape)


def _whole_model(recipe: Recipe) -> AbstractContextManager[None]:
    """Keeps Transformers from dividing a model that is quantised first and divided by the engine
    afterwards.
    """
    if not recipe.sharding.is_zero3:
        return nullcontext()
    from measure.worker.workloads.divided_models import undivided

    return undivided()


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
