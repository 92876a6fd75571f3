"""What several terms and pools are made of, counted once for a job."""

from __future__ import annotations

from dataclasses import dataclass

from planner.memory.activations import Activations, activations
from planner.memory.loss import LossBytes, loss_bytes
from planner.memory.sharding import Gathered, gathered_parameter_bytes
from planner.program.job import Job


@dataclass(frozen=True, slots=True)
class Parts:
    """The activations of a job, its loss, and the parameters that its engine gathers."""

    activations: Activations
    loss: LossBytes
    gathered: Gathered


def parts_of(job: Job) -> Parts:
    """The parts of a job."""
    return Parts(activations(job), loss_bytes(job), gathered_parameter_bytes(job))
