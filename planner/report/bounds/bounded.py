"""What every format says of a job whose architecture is not modelled."""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.prediction import Verdict
from planner.domain.scenario import Scenario
from planner.errors import ExitCode
from planner.memory.bounds import Bounds
from planner.report.prediction.subject import EXIT_CODES


@dataclass(frozen=True, slots=True)
class Bounded:
    """``scenario``: the job, whose model is counted and no more; ``settle``: the line for the dry run."""

    architecture: str
    scenario: Scenario
    bounds: Bounds
    settle: str = ""

    @property
    def verdict(self) -> Verdict:
        """Only where both ends are on one side of the card's limit; of mixtures and recurrent ones too few
        are known for an upper end that decides.
        """
        limit = self.bounds.limit_bytes
        if limit is None:
            return "no_verdict"
        if self.bounds.low_bytes > limit:
            return "does_not_fit"
        return "fits" if self.bounds.range.decides and self.bounds.high_bytes <= limit else "uncertain"

    @property
    def exit_code(self) -> ExitCode:
        """What the verdict ends with."""
        return EXIT_CODES[self.verdict]
