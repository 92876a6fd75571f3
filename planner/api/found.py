"""What Python gets of a search: rows with the keywords that ask for each again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from planner.api.answers import REPORT_COLUMNS, plain_console
from planner.api.building import whole, whole_interval
from planner.domain.prediction import Verdict
from planner.domain.uncertainty.interval import Interval
from planner.searching.recipes.answer import FoundRecipes, Quantity, RecipeGroup
from planner.searching.recipes.attempt import Tried


@dataclass(frozen=True, slots=True)
class SearchRow:
    """One recipe that a search lists.

    Attributes:
        flags: keywords that ask for it again: ``planner.estimate(**row.flags)``.
        training: what is trained, as the search groups it.
        verdict: as ``plan`` gives it.
        probability: that it fits the GPU, 0 to 1; ``None`` where unknown.
        needs_bytes: minimum memory of one GPU.
        limit_bytes: what the job may use of one GPU; ``None`` where that is unknown.
        driver_bytes: what ``nvidia-smi`` shows, with the interval of 90 % of measurements.
        host_bytes: host RAM of one node at its peak.
        step_s: seconds of an optimizer step; ``None`` where the rates of the card are unknown.
        samples_per_s: of the whole job.
        tokens_per_s: real tokens of the whole job.
        sample_usd: US dollars for one sample; ``None`` without a price.
        run_time_s: seconds of the whole run; ``None`` where no samples were given.
        cost_usd: US dollars of the whole run.
    """

    flags: Mapping[str, str | bool]
    training: str
    verdict: Verdict
    probability: float | None
    needs_bytes: int
    limit_bytes: int | None
    driver_bytes: int
    driver_interval: Interval | None
    host_bytes: int
    step_s: float | None
    samples_per_s: float | None
    tokens_per_s: float | None
    sample_usd: float | None
    run_time_s: float | None
    cost_usd: float | None

    @property
    def fits(self) -> bool:
        """Whether the verdict is ``fits``."""
        return self.verdict == "fits"


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """What a search found.

    Attributes:
        rows: recipes that fit, best first within each way of training.
        nearest: for each way of training where nothing fits, the recipe that comes closest.
        verdict: that of the best recipe.
        n_fit: recipes that fit.
        n_tried: recipes that were estimated.
        solved: what was solved for: ``batch``, ``seq``, ``gpus`` or ``None``.
        notes: sentences about how it was searched.
        exit_code: what ``plan search`` would end with.
    """

    rows: tuple[SearchRow, ...]
    nearest: tuple[SearchRow, ...]
    verdict: Verdict
    n_fit: int
    n_tried: int
    solved: Quantity | None
    notes: tuple[str, ...]
    exit_code: int
    _found: FoundRecipes = field(repr=False, compare=False)

    @property
    def fits(self) -> bool:
        """Whether any recipe fits."""
        return self.n_fit > 0

    def to_json(self) -> str:
        """The document that ``plan search --json`` writes, ending in a newline."""
        from planner.report.search.document import search_json

        return search_json(self._found)

    def to_dict(self) -> dict[str, Any]:
        """The document that ``plan search --json`` writes, as a table."""
        document: dict[str, Any] = json.loads(self.to_json())
        return document

    def render(self, columns: int = REPORT_COLUMNS) -> str:
        """The report of the command line as plain text of so many columns."""
        from planner.report.render.human import to_text
        from planner.report.search.sections import search_sections

        return to_text(search_sections(self._found), plain_console(columns))

    def __str__(self) -> str:
        return self.render().rstrip("\n")


def search_answer_of(found: FoundRecipes, calibration: str | None) -> SearchAnswer:
    """What Python gets of a search that was made with the ``calibration`` asked for."""
    from planner.report.search.sections import exit_code

    rows = [_row(group, tried, calibration) for group in found.groups for tried in group.rows]
    nearest = [_row(group, group.nearest, calibration) for group in found.groups if group.nearest is not None]
    return SearchAnswer(
        rows=tuple(rows),
        nearest=tuple(nearest),
        verdict=found.verdict,
        n_fit=found.n_fit,
        n_tried=found.n_tried,
        solved=found.solved,
        notes=found.notes,
        exit_code=int(exit_code(found)),
        _found=found,
    )


def _row(group: RecipeGroup, tried: Tried, calibration: str | None) -> SearchRow:
    prediction, sure, time = tried.prediction, tried.prediction.uncertainty, tried.prediction.time
    memory = prediction.memory
    also = {"config": tried.config, "calibration": calibration}
    flags = {**tried.flags, **{name: value for name, value in also.items() if value is not None}}
    return SearchRow(
        flags=MappingProxyType(flags),
        training=group.title,
        verdict=prediction.verdict,
        probability=prediction.fits_probability,
        needs_bytes=whole(memory.must_have_bytes),
        limit_bytes=memory.limit_bytes,
        driver_bytes=whole(memory.driver_peak_bytes),
        driver_interval=whole_interval(dict(sure.memory).get("driver")) if sure else None,
        host_bytes=whole(prediction.host.per_node_bytes),
        step_s=None if time is None else float(time.step_s),
        samples_per_s=None if time is None else float(time.samples_per_s),
        tokens_per_s=None if time is None else float(time.tokens_per_s),
        sample_usd=tried.sample_usd,
        run_time_s=None if time is None or time.run_time_s is None else float(time.run_time_s),
        cost_usd=None if time is None or time.cost_usd is None else float(time.cost_usd),
    )
