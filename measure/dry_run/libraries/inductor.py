"""``torch.compile``: Dynamo, AOTAutograd and Inductor of the installed torch compile for the card.

The code that Inductor writes for the host runs as it is: it allocates, frees and reuses each buffer.
Its kernels are neither compiled nor started, as those of other libraries (triton_kernels.py).

What Inductor would measure on the card to decide about memory is refused, but for one question: whether a
product of odd sides is faster with padded copies (_inductor/fx_passes/pad_mm.py).  It is answered with no,
and counted.  Source: torch 2.13.
"""

# ruff: noqa: SLF001 - what torch calls private here has no public name

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from measure.dry_run.cuda.native import Native
from measure.dry_run.guesses import Guesses
from measure.dry_run.libraries.importing import OnImport
from measure.dry_run.libraries.triton_kernels import write_guess, written_in

WITHOUT = "(TORCH_COMPILE_DISABLE=1 before the command runs the program without)"
_BACKENDS = ("inductor", "eager", "aot_eager")
_MODES = (None, "default")
_OPTIONS = ("triton.cudagraphs", "max_autotune", "max_autotune_gemm", "coordinate_descent_tuning")
# Of files in messages of Dynamo.
_OWN = "/measure/dry_run/"
_PADS = "whether Inductor pads a product"


def why_not(options: Mapping[str, Any]) -> str:
    """Why a compilation with these arguments of ``torch.compile`` cannot be followed; empty where it can."""
    backend, mode = options.get("backend", "inductor"), options.get("mode")
    if backend not in _BACKENDS:
        return f"with backend {backend!r} is no part of torch"
    if backend == "inductor" and find_spec("triton") is None:
        return "needs the package triton to be installed, for what it writes and not for what it starts"
    measured = [name for name, value in (options.get("options") or {}).items() if name in _OPTIONS and value]
    if mode not in _MODES or measured:
        how = f"mode {mode!r}" if mode not in _MODES else f"option {measured[0]}"
        return f"with {how} has memory of its own, or measures its kernels on the card"
    return ""


def install(imports: OnImport, native: Native, guesses: Guesses) -> None:
    """Change Inductor when torch imports it."""

    def no_kernels(module: ModuleType) -> None:
        def triton(_: Any, kernel_name: str, source_code: str, *__: Any, **___: Any) -> Any:
            guesses.assume("torch.compile", "kernels not started; what they write is guessed", "Inductor")
            return _Kernel(kernel_name, source_code, native)

        _replace(module.AsyncCompile, "triton", triton)
        # There is nothing to compile beside this process, whose own launches of Python run inside of it.
        _replace(module, "get_compile_threads", lambda: 1)

    def no_benchmark(module: ModuleType) -> None:
        def benchmark(*_: Any, **__: Any) -> Any:
            guesses.refuse("measures on the card which kernel it takes", "torch.compile")
            raise NotImplementedError("a dry run has no times of kernels")

        for kind in (module.Benchmarker, module.InductorBenchmarker):
            for name in ("benchmark", "benchmark_gpu"):
                _replace(kind, name, benchmark)

    def never_pad(module: ModuleType) -> None:
        def times() -> Callable[[Any], float]:
            guesses.guess(_PADS, "torch.compile")
            return lambda _: 1.0

        _replace(module, "get_do_bench", times)

    def states_as_tensors(module: ModuleType) -> None:
        # Generators of the card as arguments of a graph, which a CPU build does not make.
        _replace(module, "graphsafe_rng_functionalization", False)

    imports.add("torch._dynamo.exc", partial(_no_way_around, guesses))
    imports.add("torch._functorch.config", states_as_tensors)
    imports.add("torch._inductor.async_compile", no_kernels)
    imports.add("torch._inductor.runtime.benchmarking", no_benchmark)
    imports.add("torch._inductor.fx_passes.pad_mm", never_pad)
    _replace(torch._C._dynamo.guards, "_empty_strided_cuda", _buffer)


def _no_way_around(guesses: Guesses, module: ModuleType) -> None:
    """Refuse what failed to compile here, which programs catch: the card would go on with compiled code."""
    start = module.ShortenTraceback.__init__

    def failed(error: BaseException, *args: Any, **kwargs: Any) -> None:
        start(error, *args, **kwargs)
        guesses.refuse(f"failed here: {said(error)} {WITHOUT}", "torch.compile")

    # Of BackendCompilerFailed and of InductorError, which calls no other.
    _replace(module.ShortenTraceback, "__init__", failed)


def fails(error: BaseException) -> bool:
    """Whether a program ended because something of it was not compiled, which may be ours."""
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))


def said(error: BaseException) -> str:
    """What such an error says, without the advice below it."""
    return " ".join(str(error).partition("\n\n")[0].split())[:300]


def note_graphs(guesses: Guesses) -> None:
    """Say into how many pieces a program was compiled; refuse one that was cut at our own functions."""
    counters: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    if not counters:
        return
    cuts, graphs = counters["graph_break"], counters["stats"]["unique_graphs"]
    if graphs:
        value = f"compiled as {graphs} graphs, cut {sum(cuts.values())} times"
        guesses.assume("torch.compile", value, "Dynamo")
    if any(_OWN in str(reason) for reason in cuts):
        guesses.refuse("was cut at a function of the dry run itself", "torch.compile")


def _replace(owner: Any, name: str, new: Any) -> None:
    """Set what must be there: another version of torch would go on without."""
    getattr(owner, name)
    setattr(owner, name, new)


def _buffer(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


class _Kernel:
    """A kernel that Inductor wrote, which is not started."""

    def __init__(self, name: str, source: str, native: Native) -> None:
        tree = ast.parse(source)
        functions = (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef))
        function = next((each for each in functions if _is_kernel(each)), None)
        names = [] if function is None else [each.arg for each in function.args.args]
        written = written_in(tree)
        self._written = [name in written for name in names]
        self._native = native
        # What the host's code asks of one.
        self.fn = SimpleNamespace(__name__=name)

    def run(self, *args: Any, **_: Any) -> None:
        """The place of a start."""
        for given, is_written in zip(args, self._written, strict=False):
            if is_written and isinstance(given, torch.Tensor):
                write_guess(self._native, given)


def _is_kernel(function: ast.FunctionDef) -> bool:
    return any("jit" in ast.unparse(each) for each in function.decorator_list)
