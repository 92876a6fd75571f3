"""The probe of a CUDA device, on doubles of ``torch.cuda`` that keep its signatures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest

from measure.run.readings.nvml import Nvml
from planner.units import GIB, MIB
from tests.extras import import_or_skip
from tests.measure.driver_double import Driver

torch = import_or_skip("torch")


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
    """``torch.cuda`` with these answers; each function keeps its own signature,
    so that a wrong call fails.
    """
    from measure.worker.probes import device_memory

    doubles = {
        name: create_autospec(getattr(torch.cuda, name), return_value=answer)
        for name, answer in ANSWERS.items()
    }
    for name, double in doubles.items():
        monkeypatch.setattr(torch.cuda, name, double)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    for name, answer in (("_record_memory_history", None), ("_snapshot", SNAPSHOT)):
        doubles[name] = create_autospec(getattr(torch.cuda.memory, name), return_value=answer)
        monkeypatch.setattr(torch.cuda.memory, name, doubles[name])
    monkeypatch.setattr(device_memory, "open_nvml", lambda: Nvml(driver))
    return doubles


@pytest.fixture
def probe(calls: dict[str, Any], driver: Driver) -> Any:
    """A probe whose context took 450 MiB; where it needs a real tensor it gets one of the CPU."""
    from measure.worker.probes.device_memory import CudaProbe

    calls["synchronize"].side_effect = lambda *_: driver.used.__setitem__(0, 500 * MIB + 450 * MIB + 3 * GIB)
    probe = CudaProbe(0)
    assert probe.device == torch.device("cuda", 0)
    assert calls["set_device"].call_args.args == (torch.device("cuda", 0),)
    probe._device = torch.device("cpu", 0)
    return probe


def test_levels_and_counters_come_from_the_allocator(probe: Any) -> None:
    """Context apart from what the allocator reserved, the driver's figure only where asked for,
    seconds from milliseconds.
    """
    assert probe.context_bytes == 450 * MIB
    levels = probe.levels(with_driver=True)
    assert (levels.allocated_bytes, levels.reserved_peak_bytes, levels.device_used_bytes) == (
        GIB,
        4 * GIB,
        40 * GIB,
    )
    assert probe.levels(with_driver=False).device_used_bytes is None
    counters = probe.counters()
    assert (counters.retries, counters.out_of_memory, counters.pinned_peak_bytes) == (2, 1, 5 * MIB)
    probe.start_clock()
    wall_s, device_s = probe.stop_clock()
    assert device_s == 0.25
    assert wall_s >= 0


def test_a_limit_leaves_room_for_what_torch_does_not_hold(probe: Any, calls: dict[str, Any]) -> None:
    """24 GiB less the context is the allocator's share of the card;
    a limit that the context alone exceeds is refused.
    """
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


def test_a_card_that_the_driver_does_not_list_has_no_driver_figures(
    calls: dict[str, Any], driver: Driver
) -> None:
    """Figures of another card would be worse than none;
    the limit then falls back to CUDA's own free memory.
    """
    from measure.worker.probes.device_memory import CudaProbe

    driver.answers["nvmlDeviceGetCount"] = lambda: 0
    probe = CudaProbe(0)
    assert probe.context_bytes is None
    probe._device = torch.device("cpu", 0)
    assert probe.cap(80 * GIB)["outside_bytes"] == 40 * GIB - 3 * GIB
    assert calls["mem_get_info"].called


def test_a_card_that_a_fork_may_not_ask_has_no_driver_figures(calls: dict[str, Any], driver: Driver) -> None:
    """A connection that answers with errors leaves CUDA's own figures; the run goes on."""
    from measure.worker.probes.device_memory import CudaProbe

    driver.answers["nvmlDeviceGetCount"] = lambda: driver._refuse(0)
    assert CudaProbe(0).context_bytes is None
    assert calls["synchronize"].called
