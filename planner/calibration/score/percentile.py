"""Readings that are a percentile over the steps, not the most:
they are of a batch that is shorter than the longest.
"""

from __future__ import annotations

from dataclasses import replace

from planner.domain.run_record import RunRecord
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.drawn_lengths import longest_of_batch_tokens
from planner.program.job import job_of


def at_percentile(record: RunRecord, scenario: Scenario) -> Scenario:
    """The scenario of the step whose memory ``record`` gives: that of ``record`` itself,
    with the length of that step's batch.

    The length is one that the same share of the batches does not exceed
    (:func:`planner.memory.drawn_lengths.longest_of_batch_tokens`); readings that are the most of all steps
    change nothing.
    """
    if record.peak_memory_percentile is None:
        return scenario
    tokens = int(
        longest_of_batch_tokens(job_of(scenario, Coefficients()), record.peak_memory_percentile / 100)
    )
    recipe = scenario.recipe
    return replace(scenario, recipe=replace(recipe, batch=replace(recipe.batch, seq_len=tokens)))
