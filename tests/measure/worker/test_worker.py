"""What an error of a run means."""

from __future__ import annotations

from unittest.mock import create_autospec

import pytest

from planner.units import GIB, MIB
from tests.extras import import_or_skip

torch = import_or_skip("torch")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "oom"),
        (RuntimeError("CUDA error: out of memory"), "oom"),
        (RuntimeError("CUDA driver error: out of memory"), "oom"),
        (RuntimeError("Triton Error [CUDA]: out of memory"), "oom"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "oom"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "crash"),
        (MemoryError(), "host_oom"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "host_oom"),
        (ValueError("CUDA error: out of memory is only quoted here"), "crash"),
    ],
)
def test_what_counts_as_full_device_memory(error: BaseException, outcome: str) -> None:
    """Torch's own error, and the driver's and cuBLAS's where they ask for memory themselves; nothing else."""
    from measure.worker.worker import _outcome

    assert _outcome(error) == outcome


@pytest.mark.parametrize(("free_bytes", "outcome"), [(100 * MIB, "oom"), (60 * GIB, "host_oom")])
def test_page_locked_memory_that_is_refused_is_the_hosts(
    monkeypatch: pytest.MonkeyPatch, free_bytes: int, outcome: str
) -> None:
    """CUDA calls both shortages alike, and its allocator's have torch's own name:
    a card with room has not run out.
    """
    from measure.worker.worker import _outcome

    monkeypatch.setattr(
        torch.cuda,
        "mem_get_info",
        create_autospec(torch.cuda.mem_get_info, return_value=(free_bytes, 80 * GIB)),
    )
    assert _outcome(RuntimeError("CUDA error: out of memory")) == outcome
