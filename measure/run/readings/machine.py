"""What this machine can run: which GPUs it has, and what a case that names one means here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from measure.run.cases.case import CPU
from measure.run.readings.environment import collect_environment
from measure.run.readings.nvml import Gpu, Nvml, look_for_gpus
from planner.catalog.gpus import load_gpu, resolve_gpu_id
from planner.errors import UnknownNameError, UsageError
from planner.units import GIB

# Vendors' prefixes that the catalog's names do not carry.
_PREFIXES = ("NVIDIA ", "Tesla ", "GeForce ", "Quadro ")


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine.

    ``gpu_id`` is the catalog's name of its cards, ``None`` without one or where the catalog has none;
    ``unusable`` says why cards that are here cannot be measured on.
    """

    nvml: Nvml | None
    gpus: tuple[Gpu, ...]
    gpu_id: str | None
    environment: dict[str, Any]
    unusable: str | None = None

    def place(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """``values`` of a request with the card of this machine in them.

        Raises:
            UsageError: a GPU that is not here is asked for, more of them than there are,
            or the card has no name.
        """
        asked = values.get("gpu")
        if asked is not None and _is_cpu(asked):
            return {**values, "gpu": CPU}
        if not self.gpus:
            # A large model would fill the host, whose kernel then kills other programs, too.
            raise UsageError(
                f"{self.unusable or 'no GPU is here'}; measure trace counts memory without one, and "
                "--gpu cpu runs the steps on the CPU"
            )
        wanted = int(values.get("gpus") or 1)
        if wanted > len(self.gpus):
            raise UsageError(f"{wanted} GPUs are asked for and {len(self.gpus)} are here")
        if len(kinds := sorted({gpu.name for gpu in self.gpus[:wanted]})) > 1:
            raise UsageError(
                f"the GPUs here are not alike ({', '.join(kinds)}): choose some that are with "
                "CUDA_VISIBLE_DEVICES"
            )
        if self.gpu_id is None and asked is None:
            raise UsageError(
                f"the catalog does not know the card '{self.gpus[0].name}' of this machine: "
                "name it with --gpu"
            )
        if asked is not None and self.gpu_id is not None and resolve_gpu_id(str(asked)) != self.gpu_id:
            raise UsageError(
                f"this machine has {self.gpu_id}, not '{asked}'; --memory-limit {asked} asks whether the "
                "job would fit there"
            )
        return {**values, "gpu": self.gpu_id or asked}


def this_machine() -> Machine:
    """Look at the machine."""
    nvml, gpus, unusable = look_for_gpus()
    return Machine(
        nvml, gpus, catalog_id(gpus[0]) if gpus else None, collect_environment(nvml, gpus), unusable
    )


def catalog_id(gpu: Gpu) -> str | None:
    """The catalog's id of a card by its driver's name, ``None`` when it has none:
    sizes decide between cards of one name.
    """
    name = gpu.name
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    gb = round(gpu.memory_bytes / GIB)
    for candidate in (name, f"{name}-SXM", f"{name} {gb}GB", f"{name}-{gb}"):
        try:
            found = resolve_gpu_id(candidate)
        except (UnknownNameError, UsageError):
            continue
        label = load_gpu(found).marketing_memory_bytes
        # A name may stand for several sizes; a wrong one is worse than none.
        if label is None or abs(label - gpu.memory_bytes) < 0.1 * label:
            return found
    return None


def _is_cpu(name: object) -> bool:
    return str(name).strip().lower() == CPU
