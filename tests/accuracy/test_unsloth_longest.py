"""Longest sequences that Unsloth publishes, against ours on one card of each size."""

from __future__ import annotations

from functools import cache

import pytest

from planner.api.calibration_choice import chosen_calibration
from planner.domain.uncertainty.calibration import Calibration
from planner.domain.uncertainty.interval import TAIL
from tests.accuracy.longest import Answer, answer, longest_table, stored_answers


@cache
def answers() -> tuple[Answer, ...]:
    """Our answers to all published lengths, which the accuracy file keeps."""
    return stored_answers()


@pytest.mark.figures
def test_stored_answers_are_those_of_the_code() -> None:
    """Some of them, worked out anew with the calibration that ships."""
    model = chosen_calibration(None).model
    assert isinstance(model, Calibration)
    for stored in answers()[:: len(answers()) // 3]:
        assert answer(stored.case, model) == stored


def name(each: Answer) -> str:
    """Which published length."""
    return f"{each.case.column} {each.case.model} {each.case.vram_gb} GB"


def test_what_is_published_to_run_is_never_said_not_to_fit() -> None:
    """At each published length the job fits or is uncertain."""
    ran = [each for each in answers() if each.case.published_tokens]
    assert len(ran) == 16
    refused = {
        name(each): each.probability
        for each in ran
        if (each.probability or 0) < TAIL or each.verdict == "does_not_fit"
    }
    assert not refused


def test_the_even_chance_is_near_the_published_length() -> None:
    """Where we say one half lies between 0.9 and 1.1 times what is published;
    nothing fits where nothing did.

    On 8 GB the published length is that of an 80 GB card, carried on: an A100's context is 0.4 GiB larger
    than that of a card of that size, or some 2,000 tokens of Unsloth's.
    """
    far = {
        name(each): each.ratio
        for each in answers()
        if each.ratio is not None and each.case.vram_gb > 8 and not 0.9 <= each.ratio <= 1.1
    }
    assert not far
    smallest = [each for each in answers() if each.case.vram_gb == 8 and each.case.published_tokens]
    assert [abs(each.tokens - each.case.published_tokens) < 2_200 for each in smallest] == [True]
    assert not [name(each) for each in answers() if not each.case.published_tokens and each.tokens]


def test_unsloths_lengths_are_those_whose_reserved_memory_has_the_size_of_a_large_card() -> None:
    """Within 5 % from 40 GB on: all that its code of 2024-12 keeps is counted."""
    large = [each for each in answers() if each.case.column == "unsloth" and each.case.vram_gb >= 40]
    for each in large:
        if each.case.published_tokens > 20_000:
            assert each.reserved_tokens == pytest.approx(each.case.published_tokens, rel=0.05), name(each)


def test_published_lengths_are_those_whose_reserved_memory_has_the_cards_size() -> None:
    """Lengths of the Trainer follow from what was reserved on one A100, cached blocks included:
    each within 10 %.

    A full card gives those blocks back, so that on large ones the even chance does not lie far below them:
    7 % for the 70B model, 2 % for the 8B model on 80 GB.
    """
    ran = [each for each in answers() if each.case.column == "hf" and each.case.published_tokens]
    for each in ran:
        assert each.reserved_tokens == pytest.approx(each.case.published_tokens, rel=0.1), name(each)
    for each in ran:
        if each.case.vram_gb > 16:
            assert each.tokens >= 0.93 * each.reserved_tokens, name(each)


def test_the_table_has_a_row_for_each_length() -> None:
    """Two tables in Markdown, rows of as many cells as their heads."""
    lines = longest_table(answers()).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == len(answers()) + 4
    assert len({line.count("|") for line in rows}) == 1
    assert sum("OOM" in line for line in rows) == 2
