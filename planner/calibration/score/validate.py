"""Predictions against records: per source and overall."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from planner.calibration.score.metrics import (
    BoundSummary,
    ErrorSummary,
    NamedComparison,
    OomSummary,
    average,
    count_verdicts,
    summarise,
    summarise_bounds,
)
from planner.calibration.score.phases import PhaseErrors, PhaseScore, score_phases, summarise_phases
from planner.calibration.score.ranking import RankAgreement, joined, rank_agreement
from planner.calibration.score.rows import Comparison, RowScore, is_cpu, score_record
from planner.domain.run_record import RunRecord
from planner.domain.uncertainty.calibration import Calibration
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import InputFileError, UsageError
from planner.predicting import PRIORS
from planner.records import Quarantined, RecordSet
from planner.records.parsing import told_at_once

OVERALL = "overall"
# A mean over groups takes a group only where it has this many compared rows: one row is an anecdote.
MIN_GROUP_ROWS = 3


@dataclass(frozen=True, slots=True)
class SourceScore:
    """Errors over the rows of one source, or of all of them.

    ``n_censored`` rows filled the card, so that their reading is capped by it.  ``not_modelled_rows`` have no
    prediction and are in no other number; ``not_timed_rows`` have one, but no time.  ``offload_throughput``:
    of those rows of ``throughput`` that offload, whose time the host decides.  ``*_ranks``: whether
    configurations of one document are put in the measured order.
    """

    source: str
    n_rows: int
    n_censored: int
    not_modelled_rows: tuple[RowScore, ...]
    not_timed_rows: tuple[RowScore, ...]
    memory: ErrorSummary | None
    throughput: ErrorSummary | None
    offload_throughput: ErrorSummary | None
    throughput_ranks: RankAgreement | None
    memory_ranks: RankAgreement | None
    host_memory: ErrorSummary | None
    host_bound: BoundSummary | None
    oom: OomSummary

    @property
    def not_modelled(self) -> int:
        """How many rows have no prediction."""
        return len(self.not_modelled_rows)


@dataclass(frozen=True, slots=True)
class Validation:
    """Scores of record files.

    ``calibration`` names the coefficients; ``is_held_out``: each group has those of a fit without it.
    ``unread`` lists lines that are no record or name what no catalog knows, with the reason.  ``cpu_rows``
    are runs without a GPU, which are in no number of a GPU.  ``phases`` are the phases of every record that
    carries readings, by its id.
    """

    sources: tuple[SourceScore, ...]
    overall: SourceScore
    rows: tuple[RowScore, ...]
    calibration: str
    unread: tuple[str, ...] = ()
    is_held_out: bool = False
    cpu_rows: tuple[RowScore, ...] = ()
    phases: Mapping[str, tuple[PhaseScore, ...]] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def phase_errors(self) -> tuple[PhaseErrors, ...]:
        """Errors of each phase and level over all records that carry readings;
        a CPU has no level that could be compared.
        """
        return summarise_phases(self.phases)


Model = Coefficients | Calibration


def validate(records: RecordSet, model: Model | Callable[[RunRecord], Model] = PRIORS) -> Validation:
    """Predict every record and compare;
    ``model`` may be a function that says which coefficients a record is predicted with.

    ``overall`` averages each error over source groups with at least ``MIN_GROUP_ROWS`` compared rows,
    unweighted; its counts are sums.

    A record with a name that no catalog knows, or a value that cannot be used, is listed among ``unread``.

    Raises:
        InputFileError: no record at all can be used; names file and line of the first.
    """
    scored: list[RowScore] = []
    unusable: list[Quarantined] = []
    for record in records.records:
        try:
            row = score_record(record, model(record) if callable(model) else model)
            scored.append(_without_loading(row, records))
        except UsageError as error:
            path, _, line = records.places[record.id].rpartition(":")
            unusable.append(Quarantined(path, int(line), str(error), "unreadable"))
    if unusable and not scored:
        raise InputFileError(unusable[0].path, f"no row can be used: {told_at_once(unusable)}")
    rows = tuple(row for row in scored if not is_cpu(row.record))
    return Validation(
        sources=tuple(
            score_source(name, group) for name, group in _grouped(rows, lambda row: row.record.source)
        ),
        overall=_overall(rows),
        rows=rows,
        calibration="calibrated" if callable(model) else model.name,
        is_held_out=callable(model),
        unread=tuple(f"{each.place}: {each.reason}" for each in (*records.quarantined, *unusable)),
        cpu_rows=tuple(row for row in scored if is_cpu(row.record)),
        phases={row.record.id: phases for row in scored if (phases := _phases(row, records))},
    )


def score_source(name: str, rows: Sequence[RowScore]) -> SourceScore:
    """Errors over ``rows``, each row with the same weight."""
    return SourceScore(
        source=name,
        n_rows=len(rows),
        n_censored=sum(row.record.censored is True for row in rows),
        not_modelled_rows=tuple(row for row in rows if row.not_modelled),
        not_timed_rows=tuple(row for row in rows if row.not_timed),
        memory=summarise(_named(rows, lambda row: row.memory)),
        throughput=summarise(_named(rows, lambda row: row.throughput)),
        offload_throughput=summarise(_named(filter(offloads, rows), lambda row: row.throughput)),
        throughput_ranks=_ranks(rows, lambda row: row.throughput),
        memory_ranks=_ranks(rows, lambda row: row.memory),
        host_memory=summarise(_named(rows, lambda row: row.host_memory)),
        host_bound=summarise_bounds(_named(rows, lambda row: row.host_bound)),
        oom=count_verdicts((row.record.outcome == "oom", row.oom) for row in rows if row.oom is not None),
    )


def offloads(row: RowScore) -> bool:
    """Whether the row's job keeps something in host RAM or on NVMe."""
    return row.scenario is not None and row.scenario.recipe.offloads_something


def _without_loading(row: RowScore, records: RecordSet) -> RowScore:
    """Without host RAM where ``measure run`` made random weights on the GPU, in the place of a checkpoint.

    What a job offloads is in host RAM whatever its values are.
    """
    if row.host_memory is None or offloads(row) or is_cpu(row.record):
        return row
    from planner.records.measured import raw_of

    raw = raw_of(records.attachments.get(row.record.id, {}))
    if raw is None or raw.options.get("checkpoint") is not None:
        return row
    return replace(row, host_memory=None, has_random_weights=True)


def _ranks(rows: Sequence[RowScore], pick: Callable[[RowScore], Comparison | None]) -> RankAgreement | None:
    """Pairs are made inside each document only."""
    documents = [document for _, document in _grouped(rows, lambda row: row.record.source)]
    return joined(rank_agreement(each for row in document if (each := pick(row))) for document in documents)


def _phases(row: RowScore, records: RecordSet) -> tuple[PhaseScore, ...]:
    attachments = records.attachments.get(row.record.id)
    if attachments is None or row.prediction is None:
        return ()
    from planner.records.measured import raw_of

    return score_phases(row.record, raw_of(attachments), row.prediction.memory)


def _named(rows: Iterable[RowScore], pick: Callable[[RowScore], Comparison | None]) -> list[NamedComparison]:
    return [(row.record.id, comparison) for row in rows if (comparison := pick(row)) is not None]


def _grouped(rows: Iterable[RowScore], key: Callable[[RowScore], str]) -> list[tuple[str, list[RowScore]]]:
    groups: dict[str, list[RowScore]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.items())


def _overall(rows: Sequence[RowScore]) -> SourceScore:
    pooled = score_source(OVERALL, rows)
    groups = [
        score_source(name, group) for name, group in _grouped(rows, lambda row: row.record.source_group)
    ]
    return replace(
        pooled,
        memory=_macro(group.memory for group in groups),
        throughput=_macro(group.throughput for group in groups),
        host_memory=_macro(group.host_memory for group in groups),
    )


def _macro(summaries: Iterable[ErrorSummary | None]) -> ErrorSummary | None:
    return average([each for each in summaries if each is not None and each.n >= MIN_GROUP_ROWS])
