"""What is written down of a machine, and which part of it moves numbers."""

from __future__ import annotations

import json
from pathlib import Path

from measure.run.readings.environment import cpu_name, differences, environment_key, setup_key
from tests.measure.driver_double import Driver, machine


def test_environments_differ_by_what_moves_numbers() -> None:
    """Clocks of the moment do not make another environment; a driver does, and the difference is named."""
    one = {"cpu": "x", "gpu_state": [{"sm_clock_mhz": 300}], "libraries": {"torch": "2.13"}}
    assert environment_key(one) == environment_key({**one, "gpu_state": []})
    other = {**one, "libraries": {"torch": "2.11"}}
    assert environment_key(one) != environment_key(other)
    assert differences(one, other) == ["libraries: {'torch': '2.13'}, {'torch': '2.11'}"]


def test_the_processor_has_a_name(tmp_path: Path) -> None:
    """From the first entry of the kernel's table."""
    source = tmp_path / "cpuinfo"
    source.write_text("processor\t: 0\nmodel name\t: AMD EPYC 9B14\n")
    assert cpu_name(source) == "AMD EPYC 9B14"


def test_nodes_alike_share_a_setup_and_no_environment(driver: Driver) -> None:
    """Another host name, other cards of the kind and grown host memory: the same setup;
    another driver is another one.
    """
    here = machine(driver).environment
    cards = [{**gpu, "uuid_hash": "other"} for gpu in here["gpus"]]
    there = {**here, "machine": "other", "gpus": cards, "host_memory_bytes": 1}
    assert setup_key(here) == setup_key(there)
    assert environment_key(here) != environment_key(there)
    newer = {**here, "gpus": [{**gpu, "driver": "590.1"} for gpu in here["gpus"]]}
    assert setup_key(here) != setup_key(newer)
    assert json.dumps(here)
