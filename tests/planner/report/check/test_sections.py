"""The report of one config, and the table of several, of answers that were made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.configs.writing.edits import REMOVED, Edit
from planner.errors import ExitCode
from planner.report.check.checked import Checked, Fix, Written
from planner.report.check.sections import BRIEF_ABOVE, check_sections, fix_lines
from planner.report.check.traced import Traced
from planner.report.prediction.subject import Subject
from planner.report.render.layout import Block, Commands, Grid, Note
from planner.units import GIB
from tests.planner.report.prediction import made

FITS = Checked("runs/a.yaml", "trl 1.16.0", made.subject(), command="plan check a.yaml", launch="trl sft")
SHORT = replace(FITS, config="runs/b.yaml", subject=Subject(made.scenario(), made.short_of_memory()))
BAD = Checked("runs/c.yaml", failure="no such key", failure_code=ExitCode.USAGE)


def fix(*edits: Edit, fits: bool = True) -> Fix:
    """A change that saves 1.5 GiB and makes steps slower."""
    return Fix(made.lever(verdict="fits" if fits else "does_not_fit"), 3 * GIB // 2, edits)


SEQ = fix(Edit(Path("runs/b.yaml"), ("max_length",), 512))


def blocks(*checked: Checked, allowed: tuple[ExitCode, ...] = ()) -> list[Block]:
    """All blocks of a report in their order."""
    return [block for section in check_sections(checked, allowed) for block in section.blocks]


def notes(*checked: Checked, allowed: tuple[ExitCode, ...] = ()) -> list[str]:
    """The texts of its notes."""
    return [block.text for block in blocks(*checked, allowed=allowed) if isinstance(block, Note)]


def test_a_job_that_fits_ends_with_the_line_for_a_launch_script() -> None:
    """The check, then the start; without one that is known, the check alone."""
    assert blocks(FITS)[-1] == Commands(("plan check a.yaml && trl sft",))
    assert blocks(replace(FITS, launch=""))[-1] == Commands(("plan check a.yaml",))


def test_a_job_that_does_not_fit_ends_with_what_to_do() -> None:
    """The file of the remedy has a name of its own; a verdict that is allowed may be launched."""
    found = blocks(replace(SHORT, remedy=(SEQ,)))
    assert Commands(("plan check a.yaml --write runs/b-fits.yaml",)) in found
    assert found[-1] == found[0]
    unsure = replace(FITS, subject=made.subject(verdict="uncertain"))
    assert not isinstance(blocks(unsure)[-1], Commands)
    assert isinstance(blocks(unsure, allowed=(ExitCode.UNCERTAIN,))[-1], Commands)


def test_a_config_without_an_answer_is_its_reason() -> None:
    """With its name once, whether or not the reason has it."""
    assert notes(BAD) == ["CANNOT BE USED: runs/c.yaml: no such key"]
    assert notes(replace(BAD, failure="runs/c.yaml:3 is odd")) == ["CANNOT BE USED: runs/c.yaml:3 is odd"]


def test_beside_what_is_enough_nothing_else_is_offered() -> None:
    """Where nothing is enough alone, everything is, and what is enough together."""
    little = replace(fix(fits=False), lever=made.lever("smaller", {"batch": "1"}, verdict="does_not_fit"))
    said = notes(replace(SHORT, fixes=(little, SEQ)))
    assert any(text.startswith("Shorter: saves 1.50 GiB") for text in said)
    assert not any(text.startswith("Smaller") for text in said)
    said = notes(replace(SHORT, fixes=(little,), remedy=(little, SEQ)))
    assert [text.partition(":")[0] for text in said if "saves" in text] == ["Smaller", "Smaller", "Shorter"]
    assert "No change of this job that is modelled saves memory." in notes(replace(SHORT, fixes=()))


def test_lines_of_another_file_stand_below_its_name() -> None:
    """What no file can say is a flag; nobody looks for a card in a file."""
    config, engine = Path("runs/b.yaml"), Path("runs/ds.json")
    change = fix(Edit(config, ("a",), 1), Edit(engine, ("zero", "stage"), 3), Edit(engine, ("x",), REMOVED))
    lines = fix_lines("runs/b.yaml", change)
    assert lines[0] == "a: 1"
    assert lines[1] == f"in {engine}:"
    assert lines[-1] == "x: take it out"
    assert fix_lines("a", Fix(made.lever(flags={"gpu": "h100"}), 0)) == ("--gpu h100",)
    assert fix_lines("a", Fix(made.lever(flags={"batch": "1"}), 0)) == (
        "--batch 1   (no key of these files)",
    )


def test_several_are_a_table_below_their_folder() -> None:
    """4.84 GiB of 23.03; each line says the verdict, the last one counts them."""
    found = blocks(FITS, SHORT, BAD)
    assert found[0] == Note("In runs:", "dim")
    assert isinstance(found[1], Grid)
    cells = [row.cells for row in found[1].rows]
    assert [(each[0], each[2], each[5]) for each in cells] == [
        ("FITS", "23.03", "a.yaml"),
        ("DOES NOT FIT", "4.00", "b.yaml"),
        ("CANNOT BE USED", "", "c.yaml"),
    ]
    assert cells[0][1] == cells[1][1] == f"{(4933741824.5 + 450 * 2**20) / GIB:.2f}"
    said = notes(FITS, SHORT, BAD)
    assert "c.yaml: no such key" in said
    assert said[-1] == "Of 3: fits: 1, does not fit: 1, cannot be used: 1; exit code 2"
    assert not any("In " in text for text in notes(FITS, replace(BAD, config="c.yaml")))


@pytest.mark.parametrize(("count", "said"), [(BRIEF_ABOVE, True), (BRIEF_ABOVE + 1, False)])
def test_of_many_the_way_to_fit_is_not_said(count: int, said: bool) -> None:
    """Only what needs attention."""
    found = notes(*[replace(SHORT, remedy=(SEQ,))] * count)
    assert any(text.startswith("With max_length: 512: fits") for text in found) is said


def test_unknown_keys_are_counted_and_remarks_said_once() -> None:
    """Twenty are named, without the name of the config itself; keys with the same remark share it."""
    keys = tuple(f"runs/a.yaml:k{index}" for index in range(22))
    remarks = (("runs/a.yaml:x", "is ignored"), ("runs/ds.json:y", "is ignored"))
    said = notes(replace(FITS, ignored=keys, remarks=remarks))
    named = ", ".join(f"k{index}" for index in range(20))
    assert f"Unknown keys, ignored: {named} and 2 more (--json lists all)" in said
    assert "x, ds.json:y: is ignored" in said
    assert "Unknown key, ignored: k0" in notes(replace(FITS, ignored=keys[:1]))


def test_a_written_file_is_read_again() -> None:
    """Its verdict and its launch line stand for the old ones."""
    after = replace(FITS, command="plan check new.yaml")
    said = blocks(replace(SHORT, remedy=(SEQ,), written=Written(("new.yaml", "new_ds.json"), after)))
    assert Note("Written: new.yaml and new_ds.json (shorter). Read again:", "strong") in said
    assert said[-1] == Commands(("plan check new.yaml && trl sft",))


def test_the_dry_run_stands_below() -> None:
    """With its verdict, or why there is none."""
    ran = Traced(ExitCode.GPU_MEMORY_SHORT, "", 3 * GIB, 4 * GIB, 2 * GIB, ("a guess",))
    line, guess = notes(replace(BAD, traced=ran))[1:]
    assert "DOES NOT FIT; reserved 4.00 of 2.00 GiB, allocated 3.00" in line
    assert guess.strip() == "a guess"
    failed = Traced(ExitCode.USAGE, "it ended early")
    assert notes(replace(BAD, traced=failed))[1:] == ["Dry run of c.yaml: none, it ended early"]
