"""The cells of the matrix: which job is run through both instruments, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal
from zlib import crc32

from matrix.models import MODELS, write_config
from planner.domain.scenario import Scenario
from tests.jobs import resolved

Widths = Literal["small", "real"]
METHODS = ("full", "lora", "qlora", "int8")
# Batch and length: a long sample shows what grows with its square,
# a batch of four what is copied only for several samples.
_LONG, _SEVERAL = (1, 2048), (4, 512)
SHAPES = {
    ("real", "sdpa"): (_SEVERAL, _LONG),
    ("small", "sdpa"): (_SEVERAL, _LONG),
    ("small", "eager"): (_LONG,),
}
# Position tables that end below the longer length.
_SHORT = {"gpt2-large": 1024}


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One job.  ``priority`` 0 is the part of the matrix that is run first and alone shows every
    mechanism.
    """

    priority: int
    widths: Widths
    model: str
    method: str
    checkpointing: bool
    attention: str
    batch: int
    seq_tokens: int

    @property
    def key(self) -> tuple[str, ...]:
        """What tells this cell from the others, as text."""
        sizes = (str(self.batch), str(self.seq_tokens))
        return (self.widths, self.model, self.method, str(self.checkpointing).lower(), self.attention, *sizes)


def all_cells() -> list[Cell]:
    """The whole matrix, in the order in which it is run: shuffled,
    so that a run that is stopped leaves a fair sample.
    """
    return sorted(_cells(), key=lambda cell: (cell.priority, crc32(" ".join(cell.key).encode())))


def _cells() -> Iterator[Cell]:
    for (widths, attention), model, method, checkpointing in product(SHAPES, MODELS, METHODS, (False, True)):
        for priority, (batch, length) in enumerate(SHAPES[widths, attention]):
            seq = min(length, _SHORT.get(model, length))
            yield Cell(priority, widths, model, method, checkpointing, attention, batch, seq)  # type: ignore[arg-type]


@cache
def _folder() -> TemporaryDirectory[str]:
    """A folder of this process alone, which goes when the process does."""
    return TemporaryDirectory(prefix="matrix-configs-")


@cache
def _config(model: str, widths: Widths) -> Path:
    return write_config(model, Path(_folder().name), small=widths == "small")


def scenario_of(cell: Cell) -> Scenario:
    """The job of a cell on a card of unlimited memory.

    Raises:
        PlannerError: a combination that is refused; says why.
    """
    flags = {
        "model": str(_config(cell.model, cell.widths)),
        "method": cell.method,
        "gpu": "a100-80gb",
        "seq": cell.seq_tokens,
        "batch": cell.batch,
        "gradient_checkpointing": cell.checkpointing,
        "attention": cell.attention,
        # The trace runs a loop of its own, on a model that it builds.
        "switches": "runs_trainer=false,loader_reserves=nothing,loads_sorted=false",
    }
    scenario = resolved(flags)
    unlimited = replace(scenario.hardware.gpu, visible_memory_bytes=None)
    return replace(scenario, hardware=replace(scenario.hardware, gpu=unlimited))
