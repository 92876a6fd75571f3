"""What runs only beside a CUDA device, on doubles of the driver's library and of ``torch.cuda`` that check how they are used."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest

import measure.run.readings.nvml
from measure.run.case import RunOptions
from measure.run.readings import device_watch
from measure.run.readings.device_watch import DeviceWatch, device_watches
from measure.run.readings.environment import collect_environment, environment_key, setup_key
from measure.run.readings.machine import Machine
from measure.run.readings.nvml import Nvml, NvmlReadError
from measure.run.single import prepare
from planner.errors import UsageError
from planner.units import GIB, MIB
from tests.extras import import_or_skip

torch = import_or_skip("torch")
pynvml = import_or_skip("pynvml")

NAMES = ("GPU-aaaa-1", "GPU-bbbb-2")


class Driver:
    """Answers of two H200 cards, under the names of the driver's binding; a question that the binding lacks fails the test."""

    def __init__(self) -> None:
        self.used = [500 * MIB, 600 * MIB]
        self.silent = False
        self.answers: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetCount": lambda: len(NAMES),
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": lambda handle: NAMES[handle],
            "nvmlDeviceGetName": lambda _handle: b"NVIDIA H200",
            "nvmlSystemGetDriverVersion": lambda: "580.159.04",
            "nvmlSystemGetCudaDriverVersion": lambda: 13000,
            "nvmlDeviceGetMemoryInfo": self._memory,
            "nvmlDeviceGetComputeRunningProcesses": lambda _handle: [SimpleNamespace(pid=7, usedGpuMemory=None)],
            "nvmlDeviceGetClockInfo": lambda _handle, _kind: 1980,
            "nvmlDeviceGetMaxClockInfo": lambda _handle, _kind: 1980,
            "nvmlDeviceGetTemperature": lambda _handle, _sensor: 40,
            "nvmlDeviceGetPowerUsage": self._refuse,
            "nvmlDeviceGetEnforcedPowerLimit": lambda _handle: 700_000,
            "nvmlDeviceGetPowerManagementDefaultLimit": lambda _handle: 700_000,
            "nvmlDeviceGetMigMode": self._refuse,
            "nvmlDeviceGetCurrPcieLinkGeneration": lambda _handle: 5,
            "nvmlDeviceGetCurrPcieLinkWidth": lambda _handle: 16,
            "nvmlDeviceGetEccMode": lambda _handle: [1, 1],
            "nvmlDeviceGetCurrentClocksEventReasons": lambda _handle: 0x4 | 0x1,
        }

    def __getattr__(self, name: str) -> Any:
        real = getattr(pynvml, name)
        return self.answers[name] if name.startswith("nvml") and callable(real) else real

    def _memory(self, handle: int, version: int | None = None) -> Any:
        if self.silent:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
        kept = 0 if version is None else 400 * MIB
        return SimpleNamespace(total=143771 * MIB, used=self.used[handle] - kept, free=0)

    def _refuse(self, _handle: int) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Two cards, all of them visible."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return Driver()


def test_the_driver_is_asked_in_its_own_words(driver: Driver) -> None:
    """Every question exists in the installed binding; what a card does not answer is left out."""
    nvml = Nvml(driver)
    first, second = nvml.gpus()
    assert (first.index, first.name, first.memory_bytes, first.cuda_driver) == (0, "NVIDIA H200", 143771 * MIB, "13.0")
    assert first.uuid_hash != second.uuid_hash
    assert "aaaa" not in first.uuid_hash
    state = nvml.state(0)
    assert state["throttle_reasons"] == ["software power cap"]
    assert (state["ecc"], state["pcie_lanes"], state["sm_clock_mhz"]) == (True, 16, 1980)
    assert "power_mw" not in state
    assert nvml.processes(0) == {7: None}


@pytest.mark.parametrize(
    ("said", "expected"),
    [("1", [1]), ("1,0", [1, 0]), ("GPU-bbbb", [1]), ("GPU", []), ("", []), ("-1", []), ("0,9,1", [0]), ("MIG-1", [])],
)
def test_visible_devices_are_those_of_cuda(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, said: str, expected: list[int]
) -> None:
    """Indices and beginnings of UUIDs; the first name that is none of them ends the list, as in CUDA."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", said)
    assert [gpu.index for gpu in Nvml(driver).gpus()] == expected


def test_a_driver_that_falls_silent_does_not_end_the_watch(driver: Driver) -> None:
    """The highest reading so far stays; asked directly, the failure has a name."""
    nvml = Nvml(driver)
    watch = DeviceWatch(nvml, 1)
    driver.used[1] = 9 * GIB
    watch.look([])
    driver.silent = True
    watch.look([])
    peaks = watch.peaks()
    assert (peaks.baseline_bytes, peaks.peak_bytes, peaks.other_processes) == (600 * MIB, 9 * GIB, 1)
    assert (peaks.held_before_bytes, peaks.process_peak_bytes) == (200 * MIB, None)
    assert peaks.throttle_reasons == ("software power cap",)
    with pytest.raises(NvmlReadError, match="does not say"):
        nvml.used_bytes(1)
    assert device_watches(nvml, [0, 1]) == []
    driver.silent = False
    assert [watch.peaks().index for watch in device_watches(nvml, [0, 1])] == [0, 1]
    driver.answers["nvmlDeviceGetHandleByIndex"] = driver._refuse
    assert (nvml.state(0), nvml.processes(0), nvml.held_bytes(0)) == ({}, None, None)


class Event:
    """A device event; the second one is 250 ms after the first."""

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.recorded = False

    def record(self) -> None:
        """It is put on the stream."""
        self.recorded = True

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds; both have to be on the stream."""
        assert self.recorded
        assert end.recorded
        return 250.0


SNAPSHOT = {
    "segments": [],
    "device_traces": [[{"action": "alloc", "addr": 1, "size": 512, "stream": 0, "time_us": 7, "frames": []}]],
    "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""},
}
ANSWERS = {
    "init": None,
    "set_device": None,
    "synchronize": None,
    "empty_cache": None,
    "reset_peak_memory_stats": None,
    "mem_get_info": (100 * GIB, 140 * GIB),
    "memory_reserved": 3 * GIB,
    "memory_stats_as_nested_dict": {
        "allocated_bytes": {"all": {"current": 1 * GIB, "peak": 2 * GIB, "allocated": 0, "freed": 0}},
        "reserved_bytes": {"all": {"current": 3 * GIB, "peak": 4 * GIB, "allocated": 0, "freed": 0}},
    },
    "memory_stats": {"num_alloc_retries": 2, "num_ooms": 1},
    "host_memory_stats": {"allocated_bytes.peak": 5 * MIB},
    "get_device_properties": SimpleNamespace(total_memory=140 * GIB),
    "set_per_process_memory_fraction": None,
}


@pytest.fixture
def calls(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """``torch.cuda`` with these answers; each function keeps its own signature, so that a wrong call fails."""
    from measure.worker.probes import device

    doubles = {name: create_autospec(getattr(torch.cuda, name), return_value=answer) for name, answer in ANSWERS.items()}
    for name, double in doubles.items():
        monkeypatch.setattr(torch.cuda, name, double)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    for name, answer in (("_record_memory_history", None), ("_snapshot", SNAPSHOT)):
        doubles[name] = create_autospec(getattr(torch.cuda.memory, name), return_value=answer)
        monkeypatch.setattr(torch.cuda.memory, name, doubles[name])
    monkeypatch.setattr(device, "open_nvml", lambda: Nvml(driver))
    return doubles


@pytest.fixture
def probe(calls: dict[str, Any], driver: Driver) -> Any:
    """A probe whose context took 450 MiB; where it needs a real tensor it gets one of the CPU."""
    from measure.worker.probes.device import CudaProbe

    calls["synchronize"].side_effect = lambda *_: driver.used.__setitem__(0, 500 * MIB + 450 * MIB + 3 * GIB)
    probe = CudaProbe(0)
    assert probe.device == torch.device("cuda", 0)
    assert calls["set_device"].call_args.args == (torch.device("cuda", 0),)
    probe._device = torch.device("cpu", 0)
    return probe


def test_levels_and_counters_come_from_the_allocator(probe: Any) -> None:
    """Context apart from what the allocator reserved, the driver's figure only where asked for, seconds from milliseconds."""
    assert probe.context_bytes == 450 * MIB
    levels = probe.levels(with_driver=True)
    assert (levels.allocated_bytes, levels.reserved_peak_bytes, levels.device_used_bytes) == (GIB, 4 * GIB, 40 * GIB)
    assert probe.levels(with_driver=False).device_used_bytes is None
    counters = probe.counters()
    assert (counters.retries, counters.out_of_memory, counters.pinned_peak_bytes) == (2, 1, 5 * MIB)
    probe.start_clock()
    wall_s, device_s = probe.stop_clock()
    assert device_s == 0.25
    assert wall_s >= 0


def test_a_limit_leaves_room_for_what_torch_does_not_hold(probe: Any, calls: dict[str, Any]) -> None:
    """24 GiB less the context is the allocator's share of the card; a limit that the context alone exceeds is refused."""
    cap = probe.cap(24 * GIB)
    allowed = 24 * GIB - 450 * MIB
    assert cap == {
        "kind": "cuda_memory_fraction",
        "limit_bytes": 24 * GIB,
        "outside_bytes": 450 * MIB,
        "allowed_bytes": allowed,
    }
    fraction, _ = calls["set_per_process_memory_fraction"].call_args.args
    assert isinstance(fraction, float)
    assert fraction == pytest.approx(allowed / (140 * GIB))
    with pytest.raises(ValueError, match="leaves nothing"):
        probe.cap(400 * MIB)


def test_a_history_is_kept_once(probe: Any, calls: dict[str, Any]) -> None:
    """It is recorded without stacks, packed with the phases, and recording ends."""
    assert probe.stop_history([]) is None
    probe.start_history()
    said = calls["_record_memory_history"].call_args.kwargs
    # With "all" torch would read every library's unwinding tables first.
    assert (said["enabled"], said["context"], said["stacks"]) == ("all", None, "python")
    packed = probe.stop_history([(1, "load")])
    assert packed is not None
    assert calls["_record_memory_history"].call_args.kwargs == {"enabled": None}
    assert probe.stop_history([]) is None


def test_a_card_that_the_driver_does_not_list_has_no_driver_figures(calls: dict[str, Any], driver: Driver) -> None:
    """Figures of another card would be worse than none; the limit then falls back to CUDA's own free memory."""
    from measure.worker.probes.device import CudaProbe

    driver.answers["nvmlDeviceGetCount"] = lambda: 0
    probe = CudaProbe(0)
    assert probe.context_bytes is None
    probe._device = torch.device("cpu", 0)
    assert probe.cap(80 * GIB)["outside_bytes"] == 40 * GIB - 3 * GIB
    assert calls["mem_get_info"].called


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
def test_page_locked_memory_that_is_refused_is_the_hosts(monkeypatch: pytest.MonkeyPatch, free_bytes: int, outcome: str) -> None:
    """CUDA calls both shortages alike, and its allocator's have torch's own name: a card with room has not run out."""
    from measure.worker.worker import _outcome

    monkeypatch.setattr(torch.cuda, "mem_get_info", create_autospec(torch.cuda.mem_get_info, return_value=(free_bytes, 80 * GIB)))
    assert _outcome(RuntimeError("CUDA error: out of memory")) == outcome


def test_what_a_case_before_still_gives_back_is_waited_for(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The card is counted as empty when its figure falls no more."""
    monkeypatch.setattr(device_watch, "_SETTLE_STEP_S", 0.0)
    falling = iter([30 * GIB, 20 * GIB, 5 * GIB, 600 * MIB, 600 * MIB, 600 * MIB])
    driver.answers["nvmlDeviceGetMemoryInfo"] = lambda _handle, *_: SimpleNamespace(used=next(falling))
    assert DeviceWatch(Nvml(driver), 0).peaks().baseline_bytes == 600 * MIB


def test_memory_of_the_cases_own_processes_is_told_apart(driver: Driver) -> None:
    """Bytes by process id; ids of another table, as a container shows them, leave it unknown, which is not nothing."""
    watch = DeviceWatch(Nvml(driver), 0)
    running = [SimpleNamespace(pid=11, usedGpuMemory=3 * GIB), SimpleNamespace(pid=12, usedGpuMemory=2 * GIB)]
    driver.answers["nvmlDeviceGetComputeRunningProcesses"] = lambda _handle: running
    watch.look([99])
    assert watch.peaks().process_peak_bytes is None
    watch._next_state_s = 0.0
    watch.look([11, 12, 13])
    assert watch.peaks().process_peak_bytes == 5 * GIB


def look(monkeypatch: pytest.MonkeyPatch, opened: tuple[Nvml | None, str], *files: Path) -> Any:
    """What is found on a machine with these device files."""
    monkeypatch.setattr(measure.run.readings.nvml, "_opened", lambda: opened)
    monkeypatch.setattr(measure.run.readings.nvml, "_DEVICE_FILES", files)
    return measure.run.readings.nvml.look_for_gpus()


def test_a_card_that_cannot_be_asked_is_not_taken_for_none(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without the driver's binding, or with parts of a card (MIG), a job is refused with the reason and not run on the CPU."""
    assert look(monkeypatch, (None, "no binding"), tmp_path / "none") == (None, (), None)
    assert look(monkeypatch, (None, "no binding"), tmp_path)[2] == "a GPU seems to be here, but no binding"
    nvml = Nvml(driver)
    assert len(look(monkeypatch, (nvml, ""))[1]) == len(NAMES)
    driver.answers["nvmlDeviceGetMigMode"] = lambda _handle: [1, 1]
    _, gpus, unusable = look(monkeypatch, (nvml, ""))
    assert gpus == ()
    assert "divided in parts" in unusable
    here = Machine(nvml, gpus, None, {}, unusable)
    with pytest.raises(UsageError, match=r"MIG.*--gpu cpu"):
        here.place({"model": "qwen2.5-0.5b"})
    assert here.place({"gpu": "cpu"})["gpu"] == "cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234")
    assert "part of a card" in look(monkeypatch, (nvml, ""))[2]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert look(monkeypatch, (nvml, "")) == (nvml, (), None)
    driver.answers["nvmlDeviceGetCount"] = lambda: driver._refuse(0)
    assert "does not describe its GPUs" in look(monkeypatch, (nvml, ""))[2]


@pytest.mark.parametrize("openings", [0, 1, 7])
def test_the_warm_parent_hands_no_connection_on(monkeypatch: pytest.MonkeyPatch, openings: int) -> None:
    """Every opening is closed, none too often; a library that is not loaded is not loaded for this.

    The library counts openings, and closing what is closed is no error.
    """
    left = ["opening"] * openings
    closed: list[str] = []
    library = SimpleNamespace(
        nvmlDeviceGetCount_v2=lambda _count: 0 if left else 1,
        nvmlShutdown=lambda: closed.append(left.pop() if left else "too often"),
    )

    def loaded(name: str, mode: int) -> Any:
        assert (name, mode) == ("libnvidia-ml.so.1", os.RTLD_NOLOAD)
        return library

    monkeypatch.setattr(measure.run.readings.nvml.ctypes, "CDLL", loaded)
    measure.run.readings.nvml.forget_nvml()
    assert closed == ["opening"] * openings


@pytest.mark.parametrize(("answer", "opened"), [(3, False), (0, True), (100, True)])
def test_a_driver_that_was_opened_past_torch_is_seen(monkeypatch: pytest.MonkeyPatch, answer: int, opened: bool) -> None:
    """The driver refuses to count before it is opened; whatever else it answers, its process must not fork."""
    from measure.worker import process_guard

    monkeypatch.setattr(process_guard.ctypes, "CDLL", lambda *_, **__: SimpleNamespace(cuDeviceGetCount=lambda _: answer))
    assert process_guard.driver_is_open() is opened
    monkeypatch.undo()
    assert process_guard.driver_is_open() is False


def test_a_card_that_a_fork_may_not_ask_has_no_driver_figures(calls: dict[str, Any], driver: Driver) -> None:
    """A connection that answers with errors leaves CUDA's own figures; the run goes on."""
    from measure.worker.probes.device import CudaProbe

    driver.answers["nvmlDeviceGetCount"] = lambda: driver._refuse(0)
    assert CudaProbe(0).context_bytes is None
    assert calls["synchronize"].called


def machine(driver: Driver) -> Machine:
    """A machine with the two cards."""
    nvml = Nvml(driver)
    gpus = nvml.gpus()
    return Machine(nvml, gpus, "h200-sxm", collect_environment(nvml, gpus))


def test_nodes_alike_share_a_setup_and_no_environment(driver: Driver) -> None:
    """Another host name, other cards of the kind and grown host memory: the same setup; another driver is another one."""
    here = machine(driver).environment
    cards = [{**gpu, "uuid_hash": "other"} for gpu in here["gpus"]]
    there = {**here, "machine": "other", "gpus": cards, "host_memory_bytes": 1}
    assert setup_key(here) == setup_key(there)
    assert environment_key(here) != environment_key(there)
    newer = {**here, "gpus": [{**gpu, "driver": "590.1"} for gpu in here["gpus"]]}
    assert setup_key(here) != setup_key(newer)
    assert json.dumps(here)


def test_offload_needs_a_compiler(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed compiles its Adam for the CPU: without a compiler the job is refused in a sentence, not tried."""
    import_or_skip("deepspeed")
    said = {"model": "qwen2.5-0.5b", "method": "full", "seq": 512, "sharding": "zero2"}
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UsageError, match=r"'c\+\+' is not here: install a C\+\+ compiler"):
        prepare({**said, "offload": "optimizer"}, RunOptions(workload="loop"), machine(driver), force=False)
    assert prepare(said, RunOptions(workload="loop"), machine(driver), force=False).scenario.recipe.sharding.name == "zero2"


def test_a_limit_above_the_card_is_refused(driver: Driver) -> None:
    """A shortage on this card must not be called one of a larger card."""
    said = {"model": "qwen2.5-0.5b", "method": "lora", "seq": 512}
    with pytest.raises(UsageError, match="memory limit is 180"):
        prepare(said, RunOptions(memory_limit_bytes=180 * GIB), machine(driver), force=False)
    assert (
        prepare(said, RunOptions(memory_limit_bytes=80 * GIB), machine(driver), force=False).scenario.hardware.gpu.id
        == "h200-sxm"
    )


@pytest.mark.parametrize(("driver_cuda", "built", "runs"), [(12080, "13.0", False), (12020, "12.8", True), (13000, "12.8", True)])
def test_a_torch_that_is_too_new_for_the_driver_is_refused(driver: Driver, driver_cuda: int, built: str, runs: bool) -> None:
    """A newer major version of CUDA needs a newer driver; a newer minor one does not, and an older build always runs."""
    driver.answers["nvmlSystemGetCudaDriverVersion"] = lambda: driver_cuda
    here = machine(driver)
    here.environment["torch_cuda"] = built
    said = {"model": "qwen2.5-0.5b", "method": "lora", "seq": 512}
    if runs:
        assert prepare(said, RunOptions(), here, force=False).scenario.hardware.gpu.id == "h200-sxm"
        return
    with pytest.raises(UsageError, match=r"built for CUDA 13.0 and the driver 580.159.04 goes up to CUDA 12.8"):
        prepare(said, RunOptions(), here, force=False)
    assert prepare({**said, "gpu": "cpu"}, RunOptions(), here, force=False).scenario.hardware.gpu.id == "cpu"
