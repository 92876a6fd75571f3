"""The warm parent: imports torch and Transformers once, then forks one child for each case.

Run as ``python -m measure.worker.zygote``.  It reads lines ``{"folder": ...}`` from standard input and
answers each with ``{"pid": ...}`` at once and ``{"status": ...}`` (as ``os.waitpid`` gives it) when the child
is gone.  It never computes anything, never touches CUDA and keeps no connection to NVML: a child that
inherits any of them can hang or fail.  One case at a time.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from measure.run.protocol import LOG_FILE, ONLY_NEEDED
from measure.run.readings.nvml import forget_nvml
from measure.worker.process_guard import die_with_parent, driver_is_open

# What every case needs.  Transformers' own names are imported when they are asked for,
# which would be in each child.
_NEEDED = ("torch", "transformers", "transformers.models.auto.modeling_auto", "transformers.modeling_utils")
# The compiler, which bitsandbytes imports with itself: half of a child's start.
_COMPILER = "torch._inductor.compile_fx"


def main() -> int:
    """Serve until standard input ends."""
    die_with_parent()
    # What libraries print must not end up among the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _answer(answers, _warm_up(ONLY_NEEDED in sys.argv))
    own = os.getpid()
    for line in sys.stdin:
        folder = Path(json.loads(line)["folder"])
        pid = os.fork()
        if pid == 0:
            _become_child(folder, own)
        _answer(answers, {"pid": pid})
        _, status = os.waitpid(pid, 0)
        _answer(answers, {"status": status})
    return 0


def _warm_up(only_needed: bool) -> dict[str, Any]:
    """Import what every case needs and say what is here."""
    for name in _NEEDED:
        importlib.import_module(name)
    if not only_needed and importlib.util.find_spec("bitsandbytes") is not None:
        with contextlib.suppress(ImportError):
            importlib.import_module(_COMPILER)
    import torch
    import transformers

    facts = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cuda_build": torch.version.cuda,
        # With PYTORCH_NVML_BASED_CUDA_CHECK=1 this asks NVML and does not open the device.
        "cuda_available": torch.cuda.is_available(),
        "device_count": torch.cuda.device_count(),
        "cuda_initialized": torch.cuda.is_initialized() or driver_is_open(),  # type: ignore[no-untyped-call]
    }
    # Asking whether there is a GPU has opened it.
    forget_nvml()
    return facts


def _become_child(folder: Path, parent: int) -> None:
    code = 1
    try:
        # First of all, because whoever kills the case kills its process group, and importing takes a while.
        os.setsid()
        die_with_parent(parent)
        _redirect(folder / LOG_FILE)
        from measure.worker.worker import run_worker

        code = 0 if run_worker(folder, started="fork") else 1
    finally:
        # Handlers and buffers of the parent are not the child's to run or to flush.
        os._exit(code)


def _redirect(log: Path) -> None:
    """Standard streams of the child: nothing to read, and a log file to write to."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(source, target)


def _answer(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main())
