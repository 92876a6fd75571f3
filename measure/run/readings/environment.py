"""What a measurement was made on: everything that can move a number,
and a key that is the same only where all of it is.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from measure.run.readings.host_memory import cgroup_bytes
from measure.run.readings.nvml import Gpu, Nvml
from planner.units import format_bytes

LIBRARIES = (
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "bitsandbytes",
    "deepspeed",
    "flash-attn",
    "liger-kernel",
    "triton",
)
_VARIABLES = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_MODULE_LOADING",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "NVIDIA_TF32_OVERRIDE",
    "NCCL_P2P_DISABLE",
    "OMP_NUM_THREADS",
    "DS_PIN_MEMORY_BACKEND",
)
_KEY_DIGITS = 12
_CUDA_LINE = re.compile(r"^cuda\b[^=]*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
# What differs between two runs on one machine: readings of the moment;
# the total of a virtual machine grows as it is used.
_NOT_IN_KEY = frozenset({"gpu_state", "host_memory_bytes"})
# Which one of several machines alike it is.
_WHICH_MACHINE = frozenset({"machine", "os"})


def collect_environment(nvml: Nvml | None, gpus: tuple[Gpu, ...]) -> dict[str, Any]:
    """Facts about machine, driver and libraries as JSON values; what is not known is ``None`` or left out."""
    import psutil

    return {
        "machine": machine_hash(),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "cpu_cores": psutil.cpu_count(logical=False),
        "cpu_threads": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "host_memory_bytes": psutil.virtual_memory().total,
        "container_limit_bytes": cgroup_bytes("max"),
        "gpus": [
            {
                "name": gpu.name,
                "uuid_hash": gpu.uuid_hash,
                "memory_bytes": gpu.memory_bytes,
                "driver": gpu.driver,
                "cuda_driver": gpu.cuda_driver,
            }
            for gpu in gpus
        ],
        "gpu_state": [{"index": gpu.index, **nvml.state(gpu.index)} for gpu in gpus]
        if nvml is not None
        else [],
        "torch_cuda": torch_cuda(),
        "libraries": library_versions(),
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def environment_key(environment: Mapping[str, Any]) -> str:
    """Twelve hex digits: records may be merged only where they agree."""
    kept = {name: value for name, value in environment.items() if name not in _NOT_IN_KEY}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:_KEY_DIGITS]


def setup_key(environment: Mapping[str, Any]) -> str:
    """Twelve hex digits that two machines share whose cards, driver and software are the same,
    as nodes of one cluster are.
    """
    kept = {name: value for name, value in environment.items() if name not in _NOT_IN_KEY | _WHICH_MACHINE}
    kept["gpus"] = [
        {name: value for name, value in gpu.items() if name != "uuid_hash"}
        for gpu in environment.get("gpus", ())
    ]
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:_KEY_DIGITS]


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """What differs between two environments, each as ``name: one, other``."""
    names = sorted((first.keys() | second.keys()) - _NOT_IN_KEY)
    return [
        f"{name}: {first.get(name)}, {second.get(name)}"
        for name in names
        if first.get(name) != second.get(name)
    ]


def library_versions() -> dict[str, str]:
    """Installed versions of the libraries that run the step."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def torch_cuda() -> str | None:
    """The CUDA version that the installed torch was built with,
    read from its files because importing it is slow.
    """
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    match = _CUDA_LINE.search(Path(found.origin).with_name("version.py").read_text(encoding="utf-8"))
    return match[1] if match else None


def machine_hash() -> str:
    """Eight hex digits that tell machines apart and name none."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def cpu_name(source: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's own name."""
    try:
        for line in source.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


_NO_GPU = "none: measure run uses the CPU, which says nothing about a GPU"
_NO_NAME = "the catalog does not know this card: name it with --gpu"
_STATE = {
    "sm_clock_mhz": "clock {} MHz",
    "sm_clock_max_mhz": "of {} MHz",
    "temperature_c": "{} C",
    "power_mw": "{:.0f} W",
    "power_limit_mw": "of {:.0f} W",
}


def environment_text(
    key: str, gpu_id: str | None, environment: Mapping[str, Any], unusable: str | None = None
) -> str:
    """One line for each fact; sizes in GiB.
    ``key`` and ``gpu_id`` are those of records made here; ``unusable``: why not.
    """
    rows = [("gpu", unusable or _NO_GPU)] if not environment["gpus"] else [("gpu", gpu_id or _NO_NAME)]
    states = environment["gpu_state"] or [{}] * len(environment["gpus"])
    for number, (gpu, state) in enumerate(zip(environment["gpus"], states, strict=True)):
        text = f"{gpu['name']}, {format_bytes(gpu['memory_bytes'])}, {_state_text(state)}"
        rows.append((f"card {number}", text.rstrip(", ")))
    if environment["gpus"]:
        first = environment["gpus"][0]
        rows.append(("driver", f"{first['driver']}, up to CUDA {first['cuda_driver']}"))
    limit = environment["container_limit_bytes"]
    cores, threads = environment["cpu_cores"], environment["cpu_threads"]
    rows += [
        ("cpu", f"{environment['cpu']}, {cores} cores, {threads} threads for this process"),
        ("host RAM", format_bytes(environment["host_memory_bytes"])),
        ("limit of container", "none" if limit is None else format_bytes(limit)),
        ("system", f"{environment['os']}, Python {environment['python']}"),
        ("torch built for CUDA", environment["torch_cuda"] or "none: a build for the CPU, or no torch"),
        (
            "libraries",
            ", ".join(f"{name} {version}" for name, version in environment["libraries"].items()) or "none",
        ),
        (
            "variables",
            ", ".join(f"{name}={value}" for name, value in environment["variables"].items()) or "none",
        ),
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
