"""Every estimate of a search, kept by what it trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from planner.errors import RefusedCombinationError, UsageError
from planner.intake.resolve import LookedUp
from planner.searching.recipes.attempt import DEFAULT_CONFIDENCE, Model, Tried, attempt, state_of
from planner.searching.recipes.space import Option, OptionGroup, Space, TypedFlags
from planner.words import words

# Estimates an option with sizes of its choosing; says whether any fits.
Explorer = Callable[["Pool", Option, Model], bool]
Training = tuple[tuple[str, str], ...]
"""Settings that tell ways of training apart, with their values."""
MAX_ESTIMATES = 20_000
# What trains something else, so that recipes with and without it are not ranked against each other.
_TRAININGS = words("method stack quantization precision load_dtype adapter_dtype seq padding lora_rank")


@dataclass(slots=True)
class Pool:
    """Every estimate of a search, by what it trains.

    ``found``: an earlier place, whose model is that of all.  ``left_out``:
    places where nothing can be tried, a sentence each.
    """

    space: Space
    confidence: float = DEFAULT_CONFIDENCE
    by_training: dict[Training, list[Tried]] = field(default_factory=dict)
    refusals: dict[Training, list[RefusedCombinationError]] = field(default_factory=dict)
    n_tried: int = 0
    found: LookedUp | None = None
    left_out: list[str] = field(default_factory=list)

    def tries(self, option: Option, model: Model, more: TypedFlags) -> Tried | None:
        """Estimate one recipe and keep it; ``None`` where a rule refuses it.

        Raises:
            UsageError: too many estimates.
        """
        answer = attempt(self.space, option, model, more)
        key = self.training_of(option.flags)
        self.by_training.setdefault(key, [])
        if not isinstance(answer, Tried):
            self.refusals.setdefault(key, []).append(answer)
            return None
        self.n_tried += 1
        if self.n_tried > MAX_ESTIMATES:
            raise UsageError(
                f"more than {MAX_ESTIMATES:,} recipes to estimate: give fewer choices to the flags"
            )
        self.by_training[key].append(answer)
        return answer

    def explore(
        self, options: OptionGroup, model: Model, explorer: Explorer
    ) -> Literal["first", "offloading", "none"]:
        """Explore each option, those that offload only where no other fits;
        where the first that fits was found.
        """
        # A list, so that each one is explored.
        if any([explorer(self, option, model) for option in options.first]):  # noqa: C419
            return "first"
        if any([explorer(self, option, model) for option in options.offloading]):  # noqa: C419
            return "offloading"
        return "none"

    def explore_all(self, options: OptionGroup, model: Model, explorer: Explorer) -> None:
        """Explore each option, those that offload too, wherever others fit."""
        for option in (*options.first, *options.offloading):
            explorer(self, option, model)

    def fits(self, tried: Tried | None) -> bool:
        """Whether a recipe counts as fitting."""
        if tried is None or tried.is_too_large:
            return False
        return state_of(tried.prediction, self.confidence) == "fits"

    def training_of(self, flags: TypedFlags) -> Training:
        """What a recipe trains: the settings that tell ways of training apart, with their values."""
        named = [name for name in _TRAININGS if name == "method" or name in self.space.choices]
        typed = {**{name: str(self.space.of_file(name)) for name in named}, **flags}
        return tuple((name, str(typed[name])) for name in named)

    def title_of(self, training: Training) -> str:
        """A way of training in words."""
        title = ", ".join(
            value if name == "method" else f"{name.replace('_', ' ')} {value}" for name, value in training
        )
        tried = self.by_training[training]
        if tried and title == "lora" and (base := tried[0].scenario.recipe.numerics.quantization) != "none":
            return f"lora on {base}"
        return title
