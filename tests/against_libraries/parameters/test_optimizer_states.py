"""Optimizer states and temporaries of a step: real optimizers of torch,
Transformers and bitsandbytes against the program.

Left out on both sides: scalars (``step``, Adafactor's ``RMS``: 4 bytes per tensor) and the code books of
8-bit states (``qmap``: 1 KiB, shared by all tensors).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from program_bytes import optimizer_bytes
from scenarios import GPT2_SIZES, GROUPED, NO_DROPOUT, SIZES, Setup, job

from planner.domain.recipes.optimizers import Optimizer
from tests.extras import import_or_skip

torch = import_or_skip("torch")
transformers = import_or_skip("transformers")

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **SIZES, **GROUPED},
    "gpt2": {"model_type": "gpt2", **GPT2_SIZES, **NO_DROPOUT},
}
SETUPS = {
    "full-bf16": Setup(),
    "full-fp32": Setup(dtype="fp32"),
    "lora-8": Setup(rank=8),
    "lora-32": Setup(rank=32),
}
_IGNORED = {"step", "RMS", "qmap1", "qmap2"}


@cache
def model_of(name: str, setup: Setup) -> Any:
    """One real model per case, shared by the optimizers:
    a step on zero gradients does not change what is counted.
    """
    import_or_skip("peft")
    from real_models import build

    return build(CONFIGS[name], setup)


def trained(model: Any) -> list[Any]:
    """The trained tensors, each with a gradient."""
    tensors = [tensor for tensor in model.parameters() if tensor.requires_grad]
    for tensor in tensors:
        tensor.grad = torch.zeros_like(tensor)
    return tensors


def step_twice(optimizer: Any) -> tuple[int, int]:
    """(bytes of states after a step, bytes that the second step needs beyond them)."""
    from live_bytes import counting

    optimizer.step()
    states = sum(
        value.numel() * value.element_size()
        for state in optimizer.state.values()
        for key, value in state.items()
        if isinstance(value, torch.Tensor) and key not in _IGNORED
    )
    with counting() as bytes_:
        optimizer.step()
    return states, bytes_.peak


def predicted(name: str, setup: Setup, optimizer: Optimizer) -> tuple[int, int]:
    """(states, temporaries of a later step) by the program;
    states in the allocator's memory or in paged memory.
    """
    return optimizer_bytes(job(CONFIGS[name], replace(setup, optimizer=optimizer)))


def in_groups(tensors: list[Any]) -> list[dict[str, list[Any]]]:
    """Matrices and vectors apart, as the Trainer makes its two groups."""
    groups = [
        {"params": [each for each in tensors if (each.dim() > 1) is matrix]} for matrix in (True, False)
    ]
    return [group for group in groups if group["params"]]


TORCH: dict[Optimizer, Callable[[list[Any]], Any]] = {
    "adamw_torch": lambda tensors: torch.optim.AdamW(in_groups(tensors), foreach=True),
    "adamw_torch_fused": lambda tensors: torch.optim.AdamW(tensors, fused=True),
    "sgd": lambda tensors: torch.optim.SGD(tensors, lr=0.1),
    "rmsprop": lambda tensors: torch.optim.RMSprop(in_groups(tensors), foreach=True),
}


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("optimizer", TORCH)
def test_torch_optimizers_to_the_byte(optimizer: Optimizer, name: str, setup: str) -> None:
    """States and temporaries of foreach AdamW, fused AdamW, plain SGD and RMSprop are exact,
    for full and LoRA training.
    """
    states, temporaries = step_twice(TORCH[optimizer](trained(model_of(name, SETUPS[setup]))))
    planned = predicted(name, SETUPS[setup], optimizer)
    assert planned[0] == states
    # The foreach step also makes one scalar per tensor.
    tensors = len(trained(model_of(name, SETUPS[setup])))
    assert planned[1] == pytest.approx(temporaries, abs=16 * tensors)


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("name", CONFIGS)
def test_adafactor(name: str, setup: str) -> None:
    """Row and column sums are exact; so are the temporaries of the largest tensors, within 5 %."""
    tensors = trained(model_of(name, SETUPS[setup]))
    adafactor = transformers.Adafactor(
        in_groups(tensors), scale_parameter=False, relative_step=False, lr=1e-3
    )
    states, temporaries = step_twice(adafactor)
    planned = predicted(name, SETUPS[setup], "adafactor")
    assert planned[0] == states
    assert planned[1] == pytest.approx(temporaries, rel=0.05, abs=8 * len(tensors))


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    ("optimizer", "class_name"),
    [
        ("paged_adamw_32bit", "PagedAdamW32bit"),
        ("lion", "Lion32bit"),
        ("paged_lion_32bit", "PagedLion32bit"),
    ],
)
def test_bitsandbytes_32bit_states_to_the_byte(
    optimizer: Optimizer, class_name: str, name: str, setup: str
) -> None:
    """32-bit states are fp32 whatever the weights are."""
    bnb = import_or_skip("bitsandbytes")
    states, _ = step_twice(getattr(bnb.optim, class_name)(trained(model_of(name, SETUPS[setup]))))
    assert predicted(name, SETUPS[setup], optimizer)[0] == states


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    ("optimizer", "class_name"),
    [
        ("adamw_8bit", "AdamW8bit"),
        ("paged_adamw_8bit", "PagedAdamW8bit"),
        ("lion_8bit", "Lion8bit"),
        ("ademamix_8bit", "AdEMAMix8bit"),
    ],
)
def test_bitsandbytes_8bit_states(optimizer: Optimizer, class_name: str, name: str, setup: str) -> None:
    """8-bit states from 4096 elements on, tables in 32 bits as the Trainer registers them."""
    bnb = import_or_skip("bitsandbytes")
    model = model_of(name, SETUPS[setup])
    tensors = trained(model)
    manager = bnb.optim.GlobalOptimManager.get_instance()
    # One registry serves the whole process: without this, settings of earlier optimizers stay.
    manager.initialize()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})
    manager.register_parameters(model.parameters())
    states, _ = step_twice(getattr(bnb.optim, class_name)(tensors))
    # A scale for each started block of 256 elements and state: up to 8 bytes for each tensor.
    assert predicted(name, SETUPS[setup], optimizer)[0] == pytest.approx(states, abs=8 * len(tensors))
