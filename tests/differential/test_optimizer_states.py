"""Optimizer states and temporaries of a step: real optimizers of torch, Transformers and bitsandbytes against the closed form.

Left out on both sides: scalars (``step``, Adafactor's ``RMS``: 4 bytes per tensor) and the code books of 8-bit states (``qmap``:
1 KiB, shared by all tensors).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from scenarios import GPT2_SIZES, GROUPED, NO_DROPOUT, SIZES, Setup, job

from planner.domain.recipe import Optimizer
from planner.memory.optimizer import optimizer_state_bytes, optimizer_temporary_bytes, paged_state_bytes
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
    """One real model per case, shared by the optimizers: a step on zero gradients does not change what is counted."""
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


def predicted_states(name: str, setup: Setup, optimizer: Optimizer) -> float:
    """States by the closed form, in the allocator's memory or in paged memory."""
    case = job(CONFIGS[name], replace(setup, optimizer=optimizer))
    return float(optimizer_state_bytes(case) + paged_state_bytes(case))


def predicted_temporaries(name: str, setup: Setup, optimizer: Optimizer) -> float:
    """Temporaries of the step by the closed form."""
    return float(optimizer_temporary_bytes(job(CONFIGS[name], replace(setup, optimizer=optimizer))))


TORCH: dict[Optimizer, Callable[[list[Any]], Any]] = {
    "adamw_torch": lambda tensors: torch.optim.AdamW(tensors, foreach=True),
    "adamw_torch_fused": lambda tensors: torch.optim.AdamW(tensors, fused=True),
    "sgd": lambda tensors: torch.optim.SGD(tensors, lr=0.1),
}


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("optimizer", TORCH)
def test_torch_optimizers_to_the_byte(optimizer: Optimizer, name: str, setup: str) -> None:
    """States and temporaries of foreach AdamW, fused AdamW and plain SGD are exact, for full and LoRA training."""
    states, temporaries = step_twice(TORCH[optimizer](trained(model_of(name, SETUPS[setup]))))
    assert states == predicted_states(name, SETUPS[setup], optimizer)
    # The foreach step also makes one scalar per tensor.
    tensors = len(trained(model_of(name, SETUPS[setup])))
    assert predicted_temporaries(name, SETUPS[setup], optimizer) == pytest.approx(temporaries, abs=16 * tensors)


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("name", CONFIGS)
def test_adafactor(name: str, setup: str) -> None:
    """Row and column sums are exact; the temporaries of the largest tensor are an upper bound, at most a fifth too high.

    Matrices and vectors are in groups of their own, as the Trainer makes them: each tensor follows one of its kind.
    """
    tensors = trained(model_of(name, SETUPS[setup]))
    groups = [{"params": [each for each in tensors if (each.dim() > 1) is matrix]} for matrix in (True, False)]
    groups = [group for group in groups if group["params"]]
    adafactor = transformers.Adafactor(groups, scale_parameter=False, relative_step=False, lr=1e-3)
    states, temporaries = step_twice(adafactor)
    assert states == predicted_states(name, SETUPS[setup], "adafactor")
    scalars = 8 * len(tensors)
    assert temporaries - scalars <= predicted_temporaries(name, SETUPS[setup], "adafactor") <= 1.2 * temporaries


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("optimizer", "class_name"), [("paged_adamw_32bit", "PagedAdamW32bit"), ("lion", "Lion32bit")])
def test_bitsandbytes_32bit_states_to_the_byte(optimizer: Optimizer, class_name: str, name: str, setup: str) -> None:
    """32-bit states are fp32 whatever the weights are."""
    bnb = import_or_skip("bitsandbytes")
    states, _ = step_twice(getattr(bnb.optim, class_name)(trained(model_of(name, SETUPS[setup]))))
    assert states == predicted_states(name, SETUPS[setup], optimizer)


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("optimizer", "class_name"), [("adamw_8bit", "AdamW8bit"), ("paged_adamw_8bit", "PagedAdamW8bit")])
def test_bitsandbytes_8bit_states(optimizer: Optimizer, class_name: str, name: str, setup: str) -> None:
    """8-bit states from 4096 elements on, tables in 32 bits as the Trainer registers them.

    The closed form counts all biases as 8-bit: those below 4096 elements have fp32 states, 5.97 bytes each more.  Scales are per
    started block of 256 elements and state, which adds up to 8 bytes per tensor.
    """
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
    biases = [tensor for path, tensor in model.named_parameters() if path.endswith("bias") and tensor.requires_grad]
    in_blocks = sum(bias.numel() for bias in biases if bias.numel() < 4096) - norm_biases(model)
    expected = predicted_states(name, SETUPS[setup], optimizer) + in_blocks * (8 - 2 * (1 + 4 / 256))
    assert expected == pytest.approx(states, abs=8 * len(tensors))


def norm_biases(model: Any) -> int:
    """Elements of trained biases that belong to norms, which the closed form counts as 32-bit already."""
    norms = [module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)]
    return sum(norm.bias.numel() for norm in norms if norm.bias is not None and norm.bias.requires_grad)
