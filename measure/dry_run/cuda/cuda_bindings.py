"""The part of torch's compiled library that a CPU build lacks: what has an answer gives it,
all else is refused by its name.
"""

# ruff: noqa: SLF001 - what torch calls private here has no public name

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d

from measure.dry_run.cuda.card import CardFacts
from measure.dry_run.cuda.native import Native
from measure.dry_run.guesses import Guesses
from measure.trace.cuda.sdpa import cublas_workspace_bytes

Call = Callable[..., Any]
CUDA_VERSION, DRIVER_VERSION = "12.8", 12080
# As torch._C._nccl_version packs it (torch/cuda/nccl.py);
# which one: pytorch, .ci/docker/ci_commit_pins/nccl.txt.
_NCCL_VERSION = 2 << 32 | 29 << 16 | 3
# aten/src/ATen/Context.h (benchmark_limit_cudnn).
_CUDNN_TRIES = 10
# Names in torch/_C/__init__.pyi of what a build with CUDA adds.
_OF_CUDA = re.compile(r"^def ((?:_cuda_|_nccl_|_cudnn_|_broadcast|_scatter|_gather)\w*)\(", re.MULTILINE)

_OTHER_DEVICES = ("_xpu", "_mtia", "_mps")
# What torch/cuda and torch/_dynamo/trace_rules.py name, and that list leaves out (torch 2.13).
_UNLISTED = (
    "_cuda_attach_out_of_memory_observer",
    "_cuda_record_untuned_enable",
    "_cuda_tunableop_get_rotating_buffer_size",
)


def install(native: Native, facts: CardFacts, guesses: Guesses) -> None:
    """Fill ``torch._C``, in this process and for good."""
    answers = _devices(native, facts) | _settings(native, facts, guesses)
    for name, function in answers.items():
        setattr(torch._C, name, own(function))
    for name in missing():
        setattr(torch._C, name, _refusing(guesses, name))
    for placeholder in _placeholders():
        placeholder.__new__ = _refusing(guesses, placeholder.__name__)
    torch._C._cudart = torch.cuda._cudart = _runtime()  # type: ignore[attr-defined]
    for module in (_distributed_c10d, distributed_c10d, torch.distributed):
        setattr(module, "ProcessGroupNCCL", _NcclGroup)  # noqa: B010 - types of torch do not allow it


def missing() -> list[str]:
    """Functions that torch's own list of its library has for CUDA, and this build or process has not."""
    listed = Path(torch._C.__file__).parent / "_C" / "__init__.pyi"
    names = (*_OF_CUDA.findall(listed.read_text("utf-8")), *_UNLISTED)
    return [name for name in names if not hasattr(torch._C, name)]


def own(function: Call) -> Call:
    """A function object of its own: programs replace and compare them one by one."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing, whatever is given."""


def always(value: Any) -> Call:
    """A function that answers ``value``, whatever is given."""
    return lambda *_, **__: value


def _refusing(guesses: Guesses, name: str) -> Call:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        guesses.refuse("is a part of CUDA that has no stand-in", f"torch._C.{name}")
        raise NotImplementedError(f"a dry run has no stand-in for torch._C.{name}")

    return refuse


def _placeholders() -> Iterator[Any]:
    """Classes that torch itself puts where a CPU build lacks one (torch/_utils.py, _dummy_type).

    Those of other devices stay: a build with CUDA has them, too.
    """
    for name, value in vars(torch._C).items():
        of_torch = isinstance(value, type) and "_dummy_type" in getattr(value.__new__, "__qualname__", "")
        if of_torch and not name.lower().startswith(_OTHER_DEVICES):
            yield value


def _devices(native: Native, facts: CardFacts) -> dict[str, Call]:
    def exchange(index: int) -> int:
        before = native.device
        if index >= 0:
            native.device = index
        return before

    def set_device(index: int) -> None:
        native.device = index

    def maybe_exchange(index: int) -> int:
        # Dynamo tells the two apart by their functions.
        return exchange(index)

    for name, call in (("_exchange_device", exchange), ("_maybe_exchange_device", maybe_exchange)):
        setattr(torch.cuda, name, call)
    return {
        "_cuda_init": nothing,
        "_cuda_getDevice": lambda: native.device,
        "_cuda_setDevice": set_device,
        "_cuda_exchangeDevice": exchange,
        "_cuda_maybeExchangeDevice": exchange,
        "_cuda_getDeviceCount": always(facts.n_cards),
        "_cuda_canDeviceAccessPeer": always(True),
        "_cuda_getCurrentRawStream": lambda *_: native.stream,
        "_cuda_isInBadFork": always(False),
        "_cuda_isCurrentStreamCapturing": always(False),
        "_cuda_synchronize": lambda *_: native.wait_for_card(),
        "_cuda_sleep": nothing,
        "_cuda_ipc_collect": nothing,
        "_cuda_getDriverVersion": always(DRIVER_VERSION),
        "_cuda_getCompiledVersion": always(DRIVER_VERSION),
        "_cuda_hasPrimaryContext": always(True),
        "_cuda_getArchFlags": always("sm_{}{}".format(*facts.compute_capability)),
        "_nccl_version": always(_NCCL_VERSION),
        "_nccl_version_suffix": always(b""),
    }


def _settings(native: Native, facts: CardFacts, guesses: Guesses) -> dict[str, Call]:
    """What is set, counted or noted, and changes no request for memory."""

    def set_fraction(fraction: float, *_: Any) -> None:
        guesses.assume("the share of the card that the program allows itself", "not applied", f"{fraction:g}")

    def keep_workspaces(*_: Any) -> None:
        guesses.assume("workspaces of cuBLAS that the program gives back", "kept", "torch.cuda")

    idle = (
        "_cuda_set_sync_debug_mode",
        "_cuda_set_cudnn_benchmark_limit",
        "_cudnn_set_conv_benchmark_empty_cache",
        "_cuda_record_memory_history",
        "_cuda_record_memory_history_legacy",
        "_cuda_resetAccumulatedMemoryStats",
        "_cuda_resetAccumulatedHostMemoryStats",
        "_cuda_resetPeakHostMemoryStats",
        "_cuda_setMemoryMetadata",
    )
    off = (
        "_cuda_isHistoryEnabled",
        "_cuda_tunableop_is_enabled",
        "_cuda_tunableop_tuning_is_enabled",
        "_cuda_record_untuned_is_enabled",
        "_cuda_get_conv_benchmark_empty_cache",
    )
    workspace = cublas_workspace_bytes(".".join(map(str, facts.compute_capability)))
    return {
        **dict.fromkeys(idle, nothing),
        **dict.fromkeys(off, always(False)),
        "_cuda_emptyCache": native.empty_cache,
        "_cuda_clearCublasWorkspaces": keep_workspaces,
        "_cuda_getAllocatorBackend": always("native"),
        "_cuda_setMemoryFraction": set_fraction,
        "_cuda_getMemoryFraction": always(1.0),
        "_cuda_get_sync_debug_mode": always(0),
        "_cuda_get_cudnn_benchmark_limit": always(_CUDNN_TRIES),
        "_cuda_getMemoryMetadata": always(""),
        # Of pinned memory, as before its allocator is used: tensors of the host are never pinned here.
        "_cuda_hostMemoryStats": always({}),
        "_cuda_getCublasWorkspaceSize": always(workspace),
    }


def _runtime() -> SimpleNamespace:
    """``torch.cuda.cudart()``: marks for profilers and memory that is pinned in place."""
    success = 0
    names = ("cudaProfilerStart", "cudaProfilerStop", "cudaHostRegister", "cudaHostUnregister")
    return SimpleNamespace(
        **dict.fromkeys(names, always(success)),
        cudaGetErrorString=str,
        cudaError=SimpleNamespace(success=success, __call__=int),
    )


class _NcclGroup:
    """Asked for its options, and whether a group is one; groups themselves are made elsewhere
    (:mod:`measure.dry_run.process_group`).
    """

    NCCL_CTA_POLICY_DEFAULT, NCCL_CTA_POLICY_EFFICIENCY, NCCL_CTA_POLICY_ZERO = 0, 1, 2

    class NCCLConfig(SimpleNamespace):
        """Takes every setting."""

    class Options(SimpleNamespace):
        """Takes every setting; ``config`` is of the library itself."""

        def __init__(self, is_high_priority_stream: bool = False) -> None:
            super().__init__(is_high_priority_stream=is_high_priority_stream, config=_NcclGroup.NCCLConfig())
