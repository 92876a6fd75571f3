"""Recipes with answers that were made up."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from planner.domain.uncertainty.coefficients import Coefficients
from planner.searching.recipes.attempt import Tried
from planner.searching.recipes.space import Option


@dataclass(frozen=True)
class Answer:
    """Of an estimate: samples of the job in a second, bytes that must be held, and those of the card."""

    samples_per_s: float | None = 1.0
    need_bytes: float = 50.0
    limit_bytes: int | None = 100
    state_bytes: float = 0.0
    verdict: str = "fits"
    fits_probability: float | None = None
    warnings: tuple[str, ...] = ()


def tried(
    answer: Answer | None = None,
    *,
    flags: dict[str, str | bool] | None = None,
    gpus: int = 1,
    card: str = "x",
    price: float | None = None,
    n_changes: int = 0,
    warnings: tuple[str, ...] = (),
) -> Tried:
    """A recipe on ``gpus`` cards of one node."""
    answer = answer or Answer()
    memory = SimpleNamespace(
        must_have_bytes=answer.need_bytes, limit_bytes=answer.limit_bytes, state_bytes=answer.state_bytes
    )
    time = None if answer.samples_per_s is None else SimpleNamespace(samples_per_s=answer.samples_per_s)
    prediction = SimpleNamespace(
        memory=memory,
        time=time,
        verdict=answer.verdict,
        fits_probability=answer.fits_probability,
        warnings=answer.warnings,
    )
    hardware = SimpleNamespace(gpu=SimpleNamespace(id=card), gpus_per_node=gpus, nodes=1, world_size=gpus)
    scenario = SimpleNamespace(
        hardware=hardware, run=SimpleNamespace(usd_per_gpu_hour=price), warnings=warnings
    )
    option = Option(flags or {}, cast("Any", None), n_changes)
    said, asked = cast("Any", prediction), cast("Any", scenario)
    return Tried(flags or {}, asked, lambda: said, n_changes, Coefficients(), option)
