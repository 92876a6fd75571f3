"""Models under ZeRO-3: divided over the ranks as they are made or read,
or kept whole until the engine divides them.
"""

# ruff: noqa: SLF001 - Transformers keeps the configuration in force under a private name

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from transformers.integrations import deepspeed as integration

from measure.recipe.adapters import DTYPES
from measure.recipe.engine_configs import deepspeed_config
from measure.run.cases.case import RunCase
from planner.domain.scenario import Scenario


def make_partitioned(case: RunCase, scenario: Scenario, device: torch.device, config: Any) -> Any:
    """A model with random weights, divided over the ranks as it is made:
    what ``from_pretrained`` does under ZeRO-3.
    """
    import deepspeed  # type: ignore[import-untyped]

    make: Any = transformers.AutoModelForCausalLM.from_config
    dtype = DTYPES[scenario.recipe.numerics.load_dtype]
    with undivided(), deepspeed.zero.Init(config_dict_or_path=_config(case, scenario, device), dtype=dtype):
        return make(config, dtype=dtype, trust_remote_code=case.options.trust_remote_code)


@contextmanager
def dividing(case: RunCase, scenario: Scenario, device: torch.device) -> Iterator[None]:
    """While this is open, ``from_pretrained`` divides what it reads."""
    make: Any = integration.HfDeepSpeedConfig
    kept = integration._hf_deepspeed_config_weak_ref
    # Transformers looks at it through a weak reference.
    config = make(_config(case, scenario, device))
    try:
        yield
    finally:
        del config
        integration._hf_deepspeed_config_weak_ref = kept


@contextmanager
def undivided() -> Iterator[None]:
    """While this is open, Transformers divides nothing by itself."""
    kept = integration._hf_deepspeed_config_weak_ref
    integration._hf_deepspeed_config_weak_ref = None
    try:
        yield
    finally:
        integration._hf_deepspeed_config_weak_ref = kept


def _config(case: RunCase, scenario: Scenario, device: torch.device) -> dict[str, Any]:
    return deepspeed_config(scenario, on_cpu=device.type == "cpu", nvme_path=case.options.nvme_path)
