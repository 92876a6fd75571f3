"""What every process of a run makes sure of: that it dies with its parent,
and whether it has opened CUDA's driver.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_CUDA_DRIVER = "libcuda.so.1"
_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED of cuda.h


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when the one that started it dies,
    so that nothing is left on the device.

    ``parent`` is its process id where that is known:
    one that died before the kernel was asked ends this process now.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def driver_is_open() -> bool:
    """Whether this process has opened CUDA's driver, by torch or past it:
    Triton and others call the driver themselves.

    ``cuDeviceGetCount`` refuses before ``cuInit`` and opens nothing;
    a driver that is not even loaded is not open.
    """
    try:
        driver = ctypes.CDLL(_CUDA_DRIVER, mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    return int(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))) != _NOT_INITIALIZED
