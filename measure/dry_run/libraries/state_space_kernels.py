"""The compiled parts of the packages mamba-ssm and causal-conv1d, which need a card: what they allocate.
Their Python code, and with it the Triton kernels of Mamba 2, runs as it is.

Without CUDA they install with ``MAMBA_FORCE_BUILD=TRUE MAMBA_SKIP_CUDA_BUILD=TRUE`` and
``CAUSAL_CONV1D_FORCE_BUILD=TRUE CAUSAL_CONV1D_SKIP_CUDA_BUILD=TRUE`` (their setup.py).  Source: mamba-ssm 1.0
to 2.3.2 csrc/selective_scan/selective_scan.cpp, causal-conv1d 1.5.1 to 1.7 csrc/causal_conv1d.cpp.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NoReturn

import torch

from measure.dry_run.cuda.native import Native
from measure.dry_run.guesses import Guesses
from measure.dry_run.libraries.triton_kernels import write_guess

# Positions whose last state is kept.
_BLOCK = 2048
# Before, the convolution made its output itself.
_FIRST_CONVOLUTION = (1, 5, 1)


def install(native: Native, guesses: Guesses) -> None:
    """Stand in for the compiled modules of the packages that are here."""

    def stand_in(name: str, functions: dict[str, Callable[..., Any]]) -> None:
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(functions)
        sys.modules[name] = module

    if find_spec("mamba_ssm") is not None and find_spec("selective_scan_cuda") is None:
        noted = _noted(native, guesses, "kernels of mamba-ssm")
        stand_in("selective_scan_cuda", {"fwd": noted(scan), "bwd": noted(scan_gradients)})
    if find_spec("causal_conv1d") is not None and find_spec("causal_conv1d_cuda") is None:
        found = version("causal-conv1d")
        known = tuple(int(each) for each in found.split(".")[:3]) >= _FIRST_CONVOLUTION
        noted = _noted(native, guesses, "kernels of causal-conv1d")
        convolve = noted(convolution) if known else _refusing(guesses, found)
        differentiate = noted(convolution_gradients) if known else convolve
        stand_in("causal_conv1d_cuda", {"causal_conv1d_fwd": convolve, "causal_conv1d_bwd": differentiate})


def _noted(native: Native, guesses: Guesses, what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def around(kernel: Callable[..., list[torch.Tensor | None]]) -> Callable[..., Any]:
        def run(*given: Any) -> list[torch.Tensor | None]:
            guesses.assume(what, "not started; what they allocate is made", kernel.__name__)
            written = kernel(*given)
            for each in written:
                if each is not None:
                    write_guess(native, each)
            return written

        return run

    return around


def _refusing(guesses: Guesses, found: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any) -> NoReturn:
        guesses.refuse(
            "has kernels without a stand-in; version 1.5.1 and later have one", f"causal-conv1d {found}"
        )
        raise NotImplementedError(f"causal-conv1d {found} has no stand-in; 1.5.1 and later have one")

    return refuse


def scan(*given: Any) -> list[torch.Tensor | None]:
    """Output, states of each block, and the gated output; ``given`` are values, steps, A, B, C, what skips
    the scan, gate, bias of the steps, and whether these pass a softplus.
    """
    values, steps, a = given[:3]
    gate = given[6]
    gated = [] if gate is None else [torch.empty_like(gate)]
    out = torch.empty_like(steps)
    blocks = -(-values.shape[-1] // _BLOCK)
    shape = (*values.shape[:2], blocks, 2 * a.shape[1])
    return [out, torch.empty(shape, dtype=a.dtype, device=values.device), *gated]


def scan_gradients(*given: Any) -> list[torch.Tensor | None]:
    """Those of all tensors of :func:`scan`; behind these ``given`` has dout, the states, the output, a buffer
    for the gate's gradient, and two switches, the second of which makes the gated output again.
    """
    values, steps, a, b, c, skip, gate, bias = given[:8]
    out, of_gate = given[10:12]
    gated = []
    if gate is not None:
        gated = [torch.empty_like(gate) if of_gate is None else of_gate]
        gated += [torch.empty_like(out)] if given[13] else []
    of_values, of_steps = torch.empty_like(values), torch.empty_like(steps)
    of_a, of_b, of_c = torch.zeros_like(a), _sums(b), _sums(c)
    of_skip, of_bias = (each if each is None else torch.zeros_like(each) for each in (skip, bias))
    return [of_values, of_steps, of_a, of_b.to(b.dtype), of_c.to(c.dtype), of_skip, of_bias, *gated]


def _sums(inputs: torch.Tensor) -> torch.Tensor:
    """In fp32 where each position has its own B or C, else in the dtype of the weight."""
    return torch.zeros_like(inputs, dtype=torch.float32 if inputs.dim() >= 3 else None)


def convolution(*given: Any) -> list[torch.Tensor | None]:
    """Written are the output and the last states: x, weight, bias, seq_idx, initial_states, out,
    final_states_out, silu_activation.
    """
    return list(given[5:7])


def convolution_gradients(*given: Any) -> list[torch.Tensor | None]:
    """Written are dx, dweight, dbias and dinitial_states, which stand before silu_activation."""
    if torch.are_deterministic_algorithms_enabled():
        raise NotImplementedError("a dry run has no stand-in for causal-conv1d's deterministic gradients")
    return list(given[7:11])
