"""How far a campaign is: a bar and a live table on a terminal, a line for each case elsewhere.
On standard error.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

from measure.output import write_remark
from measure.run.assemble import MeasuredRecord
from planner.printing import moves_the_cursor, printable, width_of
from planner.units import MIB, format_bytes, format_seconds

_ROWS = 12


def result_row(label: str, measured: MeasuredRecord) -> tuple[str, str, str, str, str]:
    """A finished case for a table: label, outcome, reserved memory, step time, quality."""
    record = measured.record
    memory = "-" if record.peak_memory_mib is None else format_bytes(record.peak_memory_mib * MIB)
    step = "-" if record.step_time_s is None else format_seconds(record.step_time_s)
    return label, record.outcome, memory, step, measured.attachments["quality"]["verdict"]


HEADER = ("case", "outcome", "reserved", "step", "quality")


class PlainProgress:
    """One line when a case begins and one when it ends."""

    def __init__(self, total: int) -> None:
        self._total, self._number = total, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def begin(self, label: str, eta_s: float | None) -> None:
        """A case begins."""
        self._number += 1
        eta = "" if eta_s is None else f", about {format_seconds(eta_s)} left"
        write_remark(f"[{self._number}/{self._total}] {label}{eta}")

    def end(self, label: str, measured: MeasuredRecord) -> None:
        """A case is over."""
        _, outcome, memory, step, quality = result_row(label, measured)
        write_remark(f"    {outcome}, reserved {memory}, step {step}, {quality}")


class LiveProgress:
    """A bar with the estimated end, the running case, and the last results."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
        )
        self._bar = Bar(*columns)
        self._task = self._bar.add_task("starting", total=total)
        self._rows: list[tuple[str, ...]] = []
        self._live: Any = Live(console=Console(stderr=True, width=width_of(sys.stderr)), refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.__enter__()
        self._draw()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def begin(self, label: str, eta_s: float | None) -> None:
        """A case begins."""
        eta = "" if eta_s is None else f", about {format_seconds(eta_s)} left"
        self._bar.update(self._task, description=printable(f"{label}{eta}"))
        self._draw()

    def end(self, label: str, measured: MeasuredRecord) -> None:
        """A case is over."""
        self._rows.append(result_row(label, measured))
        self._bar.advance(self._task)
        self._draw()

    def _draw(self) -> None:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(*HEADER)
        for row in self._rows[-_ROWS:]:
            table.add_row(*(Text(printable(cell)) for cell in row))
        self._live.update(Group(table, self._bar))


def open_progress(total: int) -> PlainProgress | LiveProgress:
    """What fits standard error."""
    return LiveProgress(total) if moves_the_cursor(sys.stderr) else PlainProgress(total)
