"""What one report is about, and the views on its terms that every format shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from planner.domain.prediction import PhasePeak, Prediction, Verdict
from planner.domain.recipes.recipe import Number
from planner.domain.scenario import Scenario
from planner.domain.term import DRIVER_TERMS, RESERVED_TERMS, Term
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import ExitCode
from planner.searching.levers import Lever
from planner.searching.run_length import AtLength
from planner.searching.stack_needs import StackNeed
from planner.searching.unsaid import Unsaid

if TYPE_CHECKING:
    from planner.allocator.documents.timeline import Timeline

EXIT_CODES: dict[Verdict, ExitCode] = {
    "fits": ExitCode.FITS,
    "does_not_fit": ExitCode.GPU_MEMORY_SHORT,
    "uncertain": ExitCode.UNCERTAIN,
    "host_memory_short": ExitCode.HOST_MEMORY_SHORT,
    "no_verdict": ExitCode.NOT_MODELLED,
}

Level = Literal["allocated", "reserved", "driver"]


@dataclass(frozen=True, slots=True)
class Subject:
    """One prediction with its scenario.  ``levers`` and ``unsaid`` are ``None`` where nobody looked for any.

    ``coefficients`` are those that the prediction was made with.  ``stacks``: what the common ones need,
    where none is given.  ``at_length``: the run at an example of a real length, where its length is asked for
    and that of samples is not given.  ``timeline``: memory over the step, where it is to be drawn.
    """

    scenario: Scenario
    prediction: Prediction
    levers: Sequence[Lever] | None = None
    explain: bool = False
    coefficients: Coefficients = field(default_factory=Coefficients)
    unsaid: Sequence[Unsaid] | None = None
    stacks: Sequence[StackNeed] = ()
    at_length: AtLength | None = None
    timeline: Timeline | None = None

    @property
    def shown_peak_bytes(self) -> Number:
        """The peak that the verdict speaks of: the driver's, or, where the job does not fit,
        what must be held at once.
        """
        memory = self.prediction.memory
        return (
            memory.must_have_bytes if self.prediction.verdict == "does_not_fit" else memory.driver_peak_bytes
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Of the job and of the estimate, each once:
        the estimate may repeat what the intake already warned about.
        """
        return tuple(dict.fromkeys((*self.scenario.warnings, *self.prediction.warnings)))


def exit_code_of(prediction: Prediction) -> ExitCode:
    """Exit code that a verdict means."""
    return EXIT_CODES[prediction.verdict]


def rests_on_unknown_host(scenario: Scenario, prediction: Prediction) -> bool:
    """Whether the verdict is about the GPU alone: state or experts are kept in host RAM,
    and nobody said how much of that there is.

    Block inputs that need no more of it than loading the checkpoint does are no condition.
    """
    host = prediction.host
    slight = (
        scenario.recipe.offloads_activations and host.required_per_node_bytes <= host.setup_per_node_bytes
    )
    keeps = scenario.recipe.offloads_something or scenario.stack.host_experts != "none"
    return keeps and host.available_bytes is None and not slight


def peaks_to_show(prediction: Prediction) -> PhasePeak:
    """The three levels at the peak: as this card would show them,
    or without its limit where the job does not fit.
    """
    memory = prediction.memory
    return PhasePeak(
        memory.limiting_phase,
        memory.allocated_peak_bytes,
        memory.reserved_peak_bytes,
        memory.driver_peak_bytes,
    )


def level_of(term: Term) -> Level:
    """The lowest of the three totals that contains the term."""
    if term.name in RESERVED_TERMS:
        return "reserved"
    return "driver" if term.name in DRIVER_TERMS else "allocated"


def terms_at_peak(prediction: Prediction) -> tuple[Term, ...]:
    """Terms alive in the limiting phase, by level and then by size, those of no bytes left out."""
    phase = prediction.memory.limiting_phase
    alive = [term for term in prediction.memory.terms if phase in term.phases and float(term.n_bytes) >= 1]
    levels: tuple[Level, ...] = ("allocated", "reserved", "driver")
    return tuple(sorted(alive, key=lambda term: (levels.index(level_of(term)), -float(term.n_bytes))))


def terms_elsewhere(prediction: Prediction) -> tuple[Term, ...]:
    """Terms that are alive in other phases only, largest first, those of no bytes left out."""
    phase = prediction.memory.limiting_phase
    others = [
        term for term in prediction.memory.terms if phase not in term.phases and float(term.n_bytes) >= 1
    ]
    return tuple(sorted(others, key=lambda term: -float(term.n_bytes)))
