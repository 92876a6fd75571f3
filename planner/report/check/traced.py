"""What the dry run of a config file by its own tool says, beside what is predicted."""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import ExitCode


@dataclass(frozen=True, slots=True)
class Traced:
    """``code``: what the dry run alone would end with, 0, 3 or 4, or why there is none in ``failure``.

    ``assumed``: what had to be guessed, a line each.  ``limit_bytes``: the most that torch may reserve.
    """

    code: ExitCode
    failure: str = ""
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    limit_bytes: int | None = None
    assumed: tuple[str, ...] = ()

    @property
    def answered(self) -> bool:
        """Whether there is a peak."""
        return self.reserved_bytes is not None
