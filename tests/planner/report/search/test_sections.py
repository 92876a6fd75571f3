"""The answer of a search in sections, of recipes that were made by hand."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any, cast

import pytest

from planner.domain.prediction import Prediction
from planner.domain.uncertainty.coefficients import Coefficients
from planner.report.render.layout import Commands, Grid, Note
from planner.report.search.sections import exit_code, rows_of, search_sections, wrapped
from planner.searching.recipes.answer import FoundRecipes, OtherStack, RecipeGroup
from planner.searching.recipes.attempt import Tried
from planner.searching.recipes.space import Option
from planner.units import GIB
from tests.planner.report.prediction import made


def recipe(batch: int = 2, *, rate: float = 8.0, need: float = 5.0, **changed: Any) -> Tried:
    """A recipe of this micro-batch and speed that needs so many of the card's 23.03 GiB."""
    asked, said = made.scenario(), made.prediction()
    asked = replace(asked, recipe=replace(asked.recipe, batch=replace(asked.recipe.batch, micro_batch=batch)))
    assert said.time is not None
    memory = replace(said.memory, must_have_bytes=need * GIB, driver_peak_bytes=need * GIB)
    time = replace(said.time, samples_per_s=rate, tokens_per_s=1024 * rate)
    prediction: Prediction = replace(said, **{"memory": memory, "time": time, **changed})
    flags = {"method": "qlora", "batch": str(batch)}
    return Tried(flags, asked, lambda: prediction, 0, Coefficients(), Option(flags, cast("Any", None), 0))


def answer(*groups: RecipeGroup, **changed: Any) -> FoundRecipes:
    """A search that found these groups."""
    n_fit, n_tried = (sum(getattr(group, name) for group in groups) for name in ("n_fit", "n_tried"))
    found = FoundRecipes(groups, "fits", n_fit, n_tried, 0, 0.95, ())
    return replace(found, **changed)


def text_of(found: FoundRecipes) -> dict[str, list[str]]:
    """The notes of each section, by its title; the first one is the head."""
    return {
        section.title if index else "head": [
            block.text for block in section.blocks if isinstance(block, Note)
        ]
        for index, section in enumerate(search_sections(found))
    }


MISS = recipe(need=25.0, verdict="does_not_fit", fits_probability=0.0)
MISSED = RecipeGroup("qlora", (), 0, 7, nearest=MISS)
SHORT: dict[str, Any] = {"verdict": "does_not_fit"}


def test_recipes_are_numbered_over_all_groups() -> None:
    """Table and commands know them by the same number; a nearest miss has one as well."""
    found = answer(RecipeGroup("lora", (recipe(2), recipe(4)), 2, 9), MISSED)
    sections = search_sections(found)
    grids = [block for section in sections for block in section.blocks if isinstance(block, Grid)]
    assert [row.cells[0] for grid in grids[:2] for row in grid.rows] == ["1", "2", "3"]
    (commands,) = [block for section in sections for block in section.blocks if isinstance(block, Commands)]
    assert [line for line in commands.lines if line.startswith("#")] == ["# 1", "# 2", "# 3"]
    assert commands.lines[1] == "plan --method qlora --batch 2"
    assert rows_of(MISSED) == (MISS,)
    assert [section.title for section in sections][1:3] == ["lora: 2 of 9 fit", "qlora: none of 7 fits"]


@pytest.mark.parametrize(
    ("need", "changed", "said"),
    [
        (25.0, {}, "25.00 GiB, 1.97 GiB too much: 9 % more than the card's 23.03 GiB"),
        (69.09, {}, "46.06 GiB too much: 3.0 times the card's"),
        (
            23.0,
            {"verdict": "uncertain", "fits_probability": 0.5},
            "23.00 of the card's 23.03 GiB; the chance",
        ),
        (5.0, {"verdict": "no_verdict"}, "say --gpu-memory"),
    ],
)
def test_a_miss_is_told_by_what_it_lacks(need: float, changed: dict[str, Any], said: str) -> None:
    """Of GPU memory, of certainty, of a limit."""
    prediction: dict[str, Any] = {"verdict": "does_not_fit", "fits_probability": 0.0, **changed}
    group = RecipeGroup("qlora", (), 0, 7, nearest=recipe(need=need, **prediction))
    (note, *_rest) = next(
        notes for title, notes in text_of(answer(group, **SHORT)).items() if title.startswith("qlora")
    )
    assert said in note


def test_a_miss_of_host_ram_says_how_much_more() -> None:
    """Four GiB of one that is there."""
    host = replace(made.prediction().host, available_bytes=GIB)
    group = RecipeGroup("full", (), 0, 1, nearest=recipe(verdict="host_memory_short", host=host))
    found = text_of(answer(group, verdict="host_memory_short"))
    assert "4.00 GiB of host RAM on a node, 3.00 GiB more" in found["full: none of 1 fits"][0]


def test_the_number_that_was_asked_for_stands_with_the_next_one() -> None:
    """And with the fastest, where that is another."""
    rows = (recipe(8, rate=5.0, fits_probability=0.9567), recipe(4, rate=6.0))
    group = RecipeGroup("qlora", rows, 2, 9, above=recipe(9, need=24.0, fits_probability=0.1))
    head = text_of(answer(group, solved="batch"))["head"][0]
    assert "largest micro-batch: 8 (chance 95.6 %). 9 would need 24.00 GiB (chance 10.0 %)." in head
    assert "The fastest of what fits: 4." in head


def test_without_offload_is_told_beside_with_it() -> None:
    """What the search moved to the host by itself says how much RAM that needs."""
    plain, moved = recipe(2), replace(recipe(8), offloads=True)
    head = text_of(answer(RecipeGroup("a", (moved, plain), 2, 9), solved="batch"))["head"][0]
    assert "largest micro-batch: 2; with offload 8, which needs 4.00 GiB of host RAM in a node" in head
    alone = text_of(answer(RecipeGroup("a", (moved,), 1, 9), solved="batch"))["head"][0]
    assert "none without offload; with offload 8" in alone


def test_what_needs_no_host_ram_is_listed_first_as_the_headline_says_it() -> None:
    """Else the first command to copy would be another than the first number."""
    plain, moved = recipe(2), replace(recipe(8), offloads=True)
    sections = search_sections(answer(RecipeGroup("a", (moved, plain), 2, 9), solved="batch"))
    (commands,) = [block for section in sections for block in section.blocks if isinstance(block, Commands)]
    assert commands.lines[1] == "plan --method qlora --batch 2"


def test_of_many_numbers_that_were_tried_the_ends_are_told() -> None:
    """The steps of a search for the largest help nobody."""
    tried = (("length", tuple(map(str, range(64, 4097, 64)))), ("batch", ("8", "2")))
    sections = search_sections(answer(RecipeGroup("a", (recipe(2),), 1, 9), tried=tried))
    (grid,) = [section.blocks[0] for section in sections if section.title == "What was tried"]
    assert isinstance(grid, Grid)
    assert [row.cells[1] for row in grid.rows] == ["64 to 4096", "2, 8"]


def test_ways_of_training_that_a_rule_forbids_are_named_once() -> None:
    """By the rule."""
    refused = [RecipeGroup(name, (), 0, 0, refused="no such kernel") for name in ("full", "lora")]
    found = text_of(answer(RecipeGroup("qlora", (recipe(),), 1, 1), *refused))
    assert found["Refused"] == ["full; lora: no such kernel"]


def test_warnings_name_recipes_unless_all_have_them() -> None:
    """The scenario that was made by hand has one; a second recipe has another."""
    rows = (recipe(2, warnings=()), recipe(4, warnings=("tight",)))
    found = text_of(answer(RecipeGroup("a", rows, 2, 9)))
    assert found[""][-2:] == ["Warning: the desktop holds memory", "Warning about 2: tight"]


def test_other_software_is_compared_with_what_was_found() -> None:
    """By speed, or by the number that was asked for."""
    group = RecipeGroup("qlora", (recipe(2, rate=8.0),), 1, 9)
    other = OtherStack(recipe(4, rate=16.0), group.rows[0])
    (line,) = [each for each in text_of(answer(group, other_stack=other))["head"] if "Other software" in each]
    assert "trains 16.0 samples/s instead of 8.00 (micro-batch 4, 5.00 GiB)" in line
    found = text_of(answer(group, other_stack=other, solved="batch"))["head"]
    assert any("fits batch 4; here 2 fits without offload" in each for each in found)


def test_the_exit_code_is_that_of_the_best_recipe() -> None:
    """Of ``plan``."""
    assert exit_code(answer(MISSED, **SHORT)) == 3
    assert exit_code(answer(RecipeGroup("a", (recipe(),), 1, 1))) == 0


@pytest.mark.parametrize(
    "words",
    [
        ["plan"],
        ["plan", "--model", "a b", "--dora", "--gpu", "h100-sxm:8"],
        ["plan", *(word for index in range(20) for word in (f"--flag-{index}", "x" * index))],
        ["plan", "--config", "y" * 200, "--batch", "2"],
    ],
)
def test_a_command_in_lines_is_the_same_command(words: list[str]) -> None:
    """A shell drops the ends of lines; a flag stays with its value, and only one alone is too wide."""
    lines = list(wrapped(words))
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == words
    for line in lines:
        assert len(line) <= 80 or len(shlex.split(line.rstrip("\\"))) == 2
        assert not line.rstrip(" \\").split()[-1].startswith("--flag")
