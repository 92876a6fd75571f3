"""Triton without a card: its Python code runs and allocates, its kernels are neither compiled nor started.

What a kernel would write is not known afterwards.  Which arguments it writes is read from its source: those
that reach a ``store`` or an ``atomic_...``, there or in a function of Triton that it calls, and all that it
hands to other functions of the program (Triton 3.4 to 3.9).
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from measure.dry_run.cuda.card import CardFacts
from measure.dry_run.cuda.cuda_bindings import always
from measure.dry_run.cuda.native import Native
from measure.dry_run.guesses import Guesses
from measure.dry_run.libraries.importing import OnImport
from planner.units import MIB

# What a benchmark of configurations clears before each run (triton/backends/nvidia/driver.py,
# get_empty_cache_for_benchmark).
_CLEARED_BYTES = 256 * MIB
_MODULE_NAMES = ("tl", "triton", "language", "libdevice")


def install(imports: OnImport, native: Native, guesses: Guesses, facts: CardFacts) -> None:
    """Change Triton when the program imports it."""

    def no_kernels(module: ModuleType) -> None:
        def run(kernel: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
            del grid, warmup
            for hook in kernel.pre_run_hooks:
                hook(*args, **kwargs)
            guesses.assume("a Triton kernel", "not started; what it writes is guessed", kernel.__name__)
            given = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
            for name in written_arguments(kernel):
                if isinstance(given.get(name), torch.Tensor):
                    write_guess(native, given[name])

        module.JITFunction.run = run

    def no_driver(module: ModuleType) -> None:
        module.driver.set_active(_Driver(native, facts))

    def driver_library_is_here(module: ModuleType) -> None:
        # Unsloth would run `ldconfig` where it is not found (2026.10.9 _gpu_init.py:676-700).
        module.libcuda_dirs = always([])  # type: ignore[attr-defined]

    imports.add("triton.runtime.jit", no_kernels)
    imports.add("triton.backends.nvidia.driver", driver_library_is_here)
    imports.add("triton.runtime.driver", no_driver)


class _Driver:
    """What Triton and programs ask of the driver."""

    def __init__(self, native: Native, facts: CardFacts) -> None:
        self._native = native
        self._major, self._minor = facts.compute_capability
        limits: Any = torch.cuda.get_device_properties(0)
        properties = {
            "max_shared_mem": limits.shared_memory_per_block_optin,
            "multiprocessor_count": facts.multiprocessors,
            "max_num_regs": limits.regs_per_multiprocessor,
            "warpSize": limits.warp_size,
            "sm_clock_rate": 1_000_000,
            "mem_clock_rate": 1_000_000,
            "mem_bus_width": 256,
        }
        self.utils = SimpleNamespace(get_device_properties=lambda _: properties)

    def get_current_target(self) -> Any:
        """The card's architecture as Triton names it."""
        compiler: Any = sys.modules["triton.backends.compiler"]
        return compiler.GPUTarget("cuda", self._major * 10 + self._minor, 32)

    def get_current_device(self) -> int:
        """Number of the current card."""
        return self._native.device

    def set_current_device(self, device: int) -> None:
        """Make a card the current one."""
        self._native.device = device

    def get_current_stream(self, _: Any = None) -> int:
        """Number of the current stream."""
        return self._native.stream

    def get_device_capability(self, _: Any = None) -> tuple[int, int]:
        """Compute capability."""
        return self._major, self._minor

    def get_active_torch_device(self) -> torch.device:
        """The current card as torch names it."""
        return torch.device("cuda", self._native.device)

    def get_device_interface(self) -> Any:
        """``torch.cuda``."""
        return torch.cuda

    def get_benchmarker(self) -> Any:
        """Runs a configuration once beside the memory that a benchmark clears;
        all configurations are equally fast.
        """

        def bench(call: Any, *_: Any, quantiles: Any = None, **__: Any) -> Any:
            cleared = self.get_empty_cache_for_benchmark()
            call()
            del cleared
            return [1.0] * len(quantiles) if quantiles else 1.0

        return bench

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        """The memory that a benchmark clears."""
        return torch.empty(_CLEARED_BYTES // 4, dtype=torch.int, device="cuda")

    def clear_cache(self, _: Any) -> None:
        """Nothing is there to clear."""


def written_arguments(kernel: Any) -> frozenset[str]:
    """Names of the arguments that a kernel may write."""
    known: frozenset[str] | None = getattr(kernel, "_written_in_a_dry_run", None)
    if known is None:
        known = written_in(kernel.parse(), kernel.fn.__globals__) & frozenset(kernel.arg_names)
        kernel._written_in_a_dry_run = known  # noqa: SLF001 - our own name
    return known


def written_in(tree: ast.AST, known: Mapping[str, Any] | None = None) -> frozenset[str]:
    """Every name whose value reaches a pointer that is written, through assignments in any order.

    ``known``: what names stand for where the functions that are called can be read as well.
    """
    written: set[str] = set()
    sources: list[tuple[set[str], set[str]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            written |= _written_by(node, known or {})
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.value is not None:
            sources.append(
                (
                    _names(*(node.targets if isinstance(node, ast.Assign) else [node.target])),
                    _names(node.value),
                )
            )
    before = -1
    while before != len(written):
        before = len(written)
        for made, values in sources:
            if made & written:
                written |= values
    return frozenset(written)


def _written_by(call: ast.Call, known: Mapping[str, Any]) -> set[str]:
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name == "store" or name.startswith("atomic_"):
        # A block pointer stores itself: ``pointer.store(value)``.
        own = function.value if isinstance(function, ast.Attribute) else None
        of_module = own is None or (isinstance(own, ast.Name) and own.id in _MODULE_NAMES)
        given = [
            *(call.args[:1] if of_module else [own]),
            *(each.value for each in call.keywords if each.arg == "pointer"),
        ]
        return _names(*(each for each in given if each is not None))
    if not isinstance(function, ast.Name) or hasattr(builtins, function.id):
        return set()
    called: Any = known.get(function.id)
    if not hasattr(called, "parse") or any(isinstance(each, ast.Starred) for each in call.args):
        return _names(*call.args, *(word.value for word in call.keywords))
    handed: dict[str | None, ast.AST] = dict(zip(called.arg_names, call.args, strict=False))
    handed |= {word.arg: word.value for word in call.keywords}
    return _names(*(handed[name] for name in written_arguments(called) if name in handed))


def _names(*nodes: ast.AST) -> set[str]:
    """Names below some nodes, but for those that are only loaded from: what is loaded is no pointer."""
    found: set[str] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Name):
            found.add(node.id)
        if not (isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "load"):
            todo += ast.iter_child_nodes(node)
    return found


def write_guess(native: Native, tensor: torch.Tensor) -> None:
    """Make the content of ``tensor`` unknown, as a kernel that is not started would write it."""
    if not tensor.is_cuda or tensor.numel() == 0:
        return
    most = native.MOST_FLOATS if tensor.is_floating_point() else native.MOST_INTEGERS
    if tensor.numel() <= most:
        tensor.detach().fill_(0 if tensor.dtype == torch.bool else 1)
    # A storage that Python has seen counts as held, and autograd would no longer add to it in place.
    native.spoil(tensor.data_ptr() - int(tensor.storage_offset()) * tensor.element_size())
