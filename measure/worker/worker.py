"""The process that measures one case (one rank of it): ``python -m measure.worker.worker FOLDER``,
or a fork of the zygote.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measure.run.cases.case import CPU, RunCase, case_from_json
from measure.run.protocol import JOB_FILE, Reporter, events_file
from measure.worker.process_guard import die_with_parent, driver_is_open
from planner.domain.run_record import Outcome
from planner.domain.scenario import Scenario
from planner.errors import PlannerError
from planner.units import MIB

if TYPE_CHECKING:
    from measure.worker.probes.device_memory import DeviceProbe

# What full device memory is called where torch's allocator was not asked: by the driver, cuBLAS, cuDNN,
# NCCL and Triton.
_DEVICE_FULL = (
    "CUDA driver error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "Cuda failure 2 'out of memory'",
    "Triton Error [CUDA]: out of memory",
)
# CUDA's runtime calls both so: no memory on the device,
# and none on the host that could be page-locked (cudaHostAlloc).
_EITHER_FULL = "CUDA error: out of memory"
# The runtime asks the device for little beside torch's allocator:
# with this much left it was the host that had none.
_PLENTY_BYTES = 512 * MIB
_CPU_ALLOCATOR_FULL = "DefaultCPUAllocator: can't allocate memory"
_MAX_MESSAGE_CHARS = 1000


def run_worker(folder: Path, *, started: str) -> bool:
    """Measure the case in ``folder`` and say how it went, without raising.
    Returns whether all was measured.
    """
    # Each node has a folder of its own.
    reporter = Reporter(events_file(folder, _variable("LOCAL_RANK", 0)))
    case = case_from_json(json.loads((folder / JOB_FILE).read_text(encoding="utf-8")))
    try:
        _measure(case, reporter, started)
        reporter.say("done")
    except BaseException as error:  # noqa: BLE001 - whatever happens is the outcome of the case
        traceback.print_exc()
        # After a failed allocation there may be little left: say it in one small write.
        reporter.say("failed", outcome=_outcome(error), phase=reporter.phase, message=_message(error))
        return False
    return True


def _measure(case: RunCase, reporter: Reporter, started: str) -> None:
    import torch

    from measure.worker.probes.phase_peaks import PhaseRecorder
    from measure.worker.workloads.task import Task

    scenario = case.scenario()
    is_fork = started == "fork"
    if is_fork and (torch.cuda.is_initialized() or driver_is_open()):  # type: ignore[no-untyped-call]
        raise RuntimeError(
            "CUDA was initialised before the fork, so nothing that this process reads would be true"
        )
    probe = _open_probe(case, scenario, reporter, started)
    if scenario.recipe.sharding.communicates:
        from measure.worker.workloads.sharded import join_ranks

        join_ranks(probe.device, scenario)
    torch.manual_seed(case.options.seed)
    phases = PhaseRecorder(probe, reporter)
    task = Task(case, scenario, probe, phases, reporter)
    try:
        _workload(case)(task)
    except RuntimeError as error:
        if _outcome(error) == "oom":
            phases.say_readings()
            task.keep_history()
        raise


def _open_probe(case: RunCase, scenario: Scenario, reporter: Reporter, started: str) -> DeviceProbe:
    """The device of this rank with its history and its limit in force, and the first word of the worker."""
    import torch

    from measure.worker.probes.device_memory import open_device

    if _variable("WORLD_SIZE", 1) == 1:
        # With several devices in sight the Trainer would use them all, by nn.DataParallel; a CPU run's
        # libraries would open one.
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
        os.environ["CUDA_VISIBLE_DEVICES"] = "" if scenario.hardware.gpu.id == CPU else first
    probe = open_device(scenario.hardware.gpu.id != CPU, _variable("LOCAL_RANK", 0))
    rank = _variable("RANK", 0)
    if case.options.history and rank == 0:
        # Before the first allocation, because a replay needs all of them; all ranks are alike.
        probe.start_history()
    limit_bytes = case.options.memory_limit_bytes
    cap = None if limit_bytes is None else probe.cap(limit_bytes)
    facts = {"pid": os.getpid(), "rank": rank, "started": started, "torch": torch.__version__}
    # torchrun gives each of several ranks one thread, which an optimizer on the host feels.
    facts["cpu_threads"] = torch.get_num_threads()
    reporter.say("hello", **facts, cap=cap, context_bytes=probe.context_bytes)
    return probe


def _variable(name: str, otherwise: int) -> int:
    """What torchrun says about this rank."""
    return int(os.environ.get(name, otherwise))


def _workload(case: RunCase) -> Any:
    if case.options.workload == "loop":
        from measure.worker.workloads.loop import run_loop

        return run_loop
    from measure.worker.workloads.trainer import run_trainer

    return run_trainer


def _outcome(error: BaseException) -> Outcome:
    """How a failure counts: device memory only when torch or the driver says so,
    host memory when the host had none left.
    """
    import torch

    text = str(error)
    if isinstance(error, torch.OutOfMemoryError):
        return "oom"
    if isinstance(error, RuntimeError):
        if any(map(text.__contains__, _DEVICE_FULL)):
            return "oom"
        if _EITHER_FULL in text:
            return "host_oom" if _free_bytes() > _PLENTY_BYTES else "oom"
    if isinstance(error, MemoryError) or _CPU_ALLOCATOR_FULL in text:
        return "host_oom"
    return "crash"


def _free_bytes() -> int:
    """Memory that the driver has left on the current device; 0 where it does not say."""
    import torch

    try:
        return int(torch.cuda.mem_get_info()[0])
    except (RuntimeError, AssertionError):
        return 0


def _message(error: BaseException) -> str:
    if isinstance(error, PlannerError):
        return str(error)
    text = f"{type(error).__name__}: {error}".strip()
    return " ".join(text.split())[:_MAX_MESSAGE_CHARS]


if __name__ == "__main__":
    die_with_parent()
    # Other ranks wait for one that failed; its exit status lets their launcher end them.
    sys.exit(0 if run_worker(Path(sys.argv[1]), started="spawn") else 1)
