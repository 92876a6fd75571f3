"""Where the records of a personal calibration were measured, and whether a job would run there."""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.hardware import UNKNOWN_HOST
from planner.domain.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Environment:
    """One machine as its records describe it; empty where they do not say.

    ``gpu``, ``stacks`` and ``host`` are catalog ids; ``machine`` is the hashed name that ``measure`` gives a
    machine; ``drivers`` are families of the GPU's driver: ``570`` of ``570.86.15``.
    """

    gpu: str
    stacks: tuple[str, ...]
    host: str = ""
    machine: str = ""
    drivers: tuple[str, ...] = ()

    def covers(self, scenario: Scenario) -> bool:
        """Whether the job has this GPU and one of these stacks, and this host where the job names one."""
        host = scenario.hardware.host.id
        same_host = host in (UNKNOWN_HOST, self.host)
        return scenario.hardware.gpu.id == self.gpu and scenario.stack.id in self.stacks and same_host

    @property
    def label(self) -> str:
        """The environment in words: ``rtx4090, hf-trainer@5, driver 570``."""
        parts = (
            self.gpu,
            *self.stacks,
            f"host {self.host}" if self.host else "",
            *(f"driver {each}" for each in self.drivers),
        )
        return ", ".join(part for part in parts if part)
