"""The environment of a measurement for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.units import format_bytes

_NO_GPU = "none: measure run uses the CPU, which says nothing about a GPU"
_NO_NAME = "the catalog does not know this card: name it with --gpu"
_STATE = {
    "sm_clock_mhz": "clock {} MHz",
    "sm_clock_max_mhz": "of {} MHz",
    "temperature_c": "{} C",
    "power_mw": "{:.0f} W",
    "power_limit_mw": "of {:.0f} W",
}


def environment_text(key: str, gpu_id: str | None, environment: Mapping[str, Any], unusable: str | None = None) -> str:
    """One line for each fact; sizes in GiB.  ``key`` and ``gpu_id`` are those of records made here; ``unusable``: why not."""
    rows = [("gpu", unusable or _NO_GPU)] if not environment["gpus"] else [("gpu", gpu_id or _NO_NAME)]
    states = environment["gpu_state"] or [{}] * len(environment["gpus"])
    for number, (gpu, state) in enumerate(zip(environment["gpus"], states, strict=True)):
        rows.append((f"card {number}", f"{gpu['name']}, {format_bytes(gpu['memory_bytes'])}, {_state_text(state)}".rstrip(", ")))
    if environment["gpus"]:
        rows.append(("driver", f"{environment['gpus'][0]['driver']}, up to CUDA {environment['gpus'][0]['cuda_driver']}"))
    limit = environment["container_limit_bytes"]
    rows += [
        ("cpu", f"{environment['cpu']}, {environment['cpu_cores']} cores, {environment['cpu_threads']} threads for this process"),
        ("host RAM", format_bytes(environment["host_memory_bytes"])),
        ("limit of container", "none" if limit is None else format_bytes(limit)),
        ("system", f"{environment['os']}, Python {environment['python']}"),
        ("torch built for CUDA", environment["torch_cuda"] or "none: a build for the CPU, or no torch"),
        ("libraries", ", ".join(f"{name} {version}" for name, version in environment["libraries"].items()) or "none"),
        ("variables", ", ".join(f"{name}={value}" for name, value in environment["variables"].items()) or "none"),
        ("machine", environment["machine"]),
        ("environment_key", key),
    ]
    width = max(len(name) for name, _ in rows)
    return "".join(f"{name:{width}}  {text}\n" for name, text in rows)


def _state_text(state: Mapping[str, Any]) -> str:
    """Clock, temperature and power of this moment, as far as the driver says them."""
    parts = []
    for name, words in _STATE.items():
        if name in state:
            value = state[name] / 1000 if name.endswith("_mw") else state[name]
            parts.append(words.format(value))
    slowed = ", ".join(state.get("throttle_reasons", ()))
    return ", ".join(parts).replace(", of ", " of ") + (f"; slowed by: {slowed}" if slowed else "")
