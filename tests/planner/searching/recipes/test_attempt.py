"""One recipe of a search: its words, what a sample takes and costs, its room, and its rank."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.searching.recipes.attempt import rank, state_of, words_of
from tests.planner.searching.recipes.made import Answer, tried


def test_flags_become_words_of_a_command() -> None:
    """Switches have no value, and one that begins with a hyphen is tied to its flag."""
    flags = {"gpu": "4090", "gradient_checkpointing": True, "double_quant": False, "price": "-1"}
    assert words_of(flags) == [
        *("--gpu", "4090", "--gradient-checkpointing", "--no-double-quant", "--price=-1"),
    ]
    assert words_of({}) == []


def test_a_recipe_is_asked_for_with_the_file_below_its_flags() -> None:
    """``plan --config FILE`` and then what goes over it."""
    made = tried(flags={"batch": "4"})
    assert made.arguments == ("--batch", "4")
    assert replace(made, config="a.yaml").arguments == ("--config", "a.yaml", "--batch", "4")


def test_a_sample_costs_what_all_gpus_cost_meanwhile() -> None:
    """Eight GPUs at 2 dollars an hour make four samples in a second: a quarter of 16 / 3600 dollars each."""
    made = tried(Answer(samples_per_s=4.0), gpus=8, price=2.0)
    assert made.sample_s == 0.25
    assert made.sample_usd == pytest.approx(0.25 * 16 / 3600)
    assert tried(Answer(samples_per_s=4.0), gpus=8).sample_usd is None
    unknown = tried(Answer(samples_per_s=None), price=2.0)
    assert (unknown.sample_s, unknown.sample_usd) == (None, None)


@pytest.mark.parametrize(
    ("need", "limit", "room"),
    [(75, 100, 0.25), (125, 100, -0.25), (0, 100, 1.0), (75, None, -75), (3, 0, -2)],
)
def test_room_is_what_is_left_of_the_card(need: float, limit: int | None, room: float) -> None:
    """A share of it, below zero where the job does not fit; without a size, fewer bytes are roomier."""
    assert tried(Answer(need_bytes=need, limit_bytes=limit)).room == pytest.approx(room)


def test_warnings_are_said_once() -> None:
    """The job's first, then those of its estimate."""
    assert tried(Answer(warnings=("b", "c")), warnings=("a", "b")).warnings == ("a", "b", "c")


def test_the_fastest_comes_first_and_the_cheapest_before_it() -> None:
    """Without prices time decides.  With them dollars do: eight cards are four times as fast, and dearer."""
    one, eight = tried(Answer(samples_per_s=1.0)), tried(Answer(samples_per_s=4.0), gpus=8)
    assert rank(eight) < rank(one)
    one, eight = (
        tried(Answer(samples_per_s=rate), gpus=gpus, price=1.0) for rate, gpus in ((1.0, 1), (4.0, 8))
    )
    assert rank(one) < rank(eight)


def test_of_equally_fast_ones_the_plainest_and_then_the_roomiest_is_first() -> None:
    """0.3 % are no difference, two percent are one."""
    plain, changed = tried(Answer(samples_per_s=1.0)), tried(Answer(samples_per_s=1.003), n_changes=1)
    assert rank(plain) < rank(changed)
    assert rank(tried(Answer(samples_per_s=1.02), n_changes=1)) < rank(plain)
    assert rank(tried(Answer(need_bytes=10))) < rank(tried(Answer(need_bytes=20)))


def test_a_recipe_whose_time_nobody_knows_is_last() -> None:
    """However roomy it is."""
    unknown = tried(Answer(samples_per_s=None, need_bytes=1))
    assert rank(tried(Answer(samples_per_s=1e-9, need_bytes=99))) < rank(unknown)


@pytest.mark.parametrize(
    ("verdict", "chance", "state"),
    [
        ("fits", 0.9, "fits"),
        ("uncertain", 0.9, "fits"),
        ("fits", 0.899, "uncertain"),
        ("uncertain", 0.1, "uncertain"),
        ("fits", None, "fits"),
        ("uncertain", None, "uncertain"),
        ("does_not_fit", 1.0, "does_not_fit"),
        ("host_memory_short", 1.0, "host_memory_short"),
        ("no_verdict", None, "no_verdict"),
    ],
)
def test_the_chance_decides_between_fitting_and_uncertain_alone(
    verdict: str, chance: float | None, state: str
) -> None:
    """From nine in ten a job fits here; what does not fit, or lacks host RAM, stays what it is."""
    assert state_of(tried(Answer(verdict=verdict, fits_probability=chance)).prediction, 0.9) == state
