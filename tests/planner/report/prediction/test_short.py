"""The first answer: one screen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.domain.prediction import FailedRequest
from planner.domain.recipes.job_line import short_job_line
from planner.domain.scenario import RunPlan
from planner.domain.term import PHASE_WORDS, Phase
from planner.report.prediction.short import MAX_LINES, Room, short_sections
from planner.report.prediction.subject import Subject
from planner.report.render.layout import Note
from planner.searching.run_length import AtLength
from planner.searching.stack_needs import StackNeed
from planner.searching.unsaid import Unsaid
from planner.units import GIB, MIB
from tests.jobs import resolved, typed
from tests.planner.report.prediction.made import (
    draw,
    draw_short,
    lever,
    prediction,
    scenario,
    short_of_memory,
    subject,
)


def test_the_first_answer_shows_what_makes_it_fit_and_nothing_else() -> None:
    """Under "what would make it fit" stands what does;
    a job that nothing makes fit says so and shows what saves most.
    """
    short = [lever("no", {f"no{index}": "1"}, kind="free", verdict="does_not_fit") for index in range(5)]
    enough = [lever("yes", {"yes": "1"}), lever("also", {"also": "1"})]
    text = draw_short(Subject(scenario(), short_of_memory(), [*short, *enough]))
    assert "--yes 1" in text
    assert "--also 1" in text
    assert text.index("--yes 1") < text.index("--also 1")
    assert "--no" not in text
    most = replace(
        lever("most", {"most": "1"}, kind="training", verdict="does_not_fit"), saves_bytes=30 * GIB
    )
    nothing = draw_short(Subject(scenario(), short_of_memory(), [*short, most]))
    assert "Nothing that was tried makes it fit; what saves most" in nothing
    assert "--most 1" in nothing


def test_where_it_stops_is_said_of_what_does_not_fit() -> None:
    """Part, phase, request and what is free; also why a request fails that is smaller."""
    made = short_of_memory()
    failed = FailedRequest("forward", "layer 16", "down_proj", "to", 86 * MIB, 0, 0, 0, 76 * MIB, 9, None)
    made = replace(made, memory=replace(made.memory, failed=failed))
    line = "Stops at layer 16, down_proj (forward): 86.0 MiB asked, 76.0 MiB free"
    assert draw_short(Subject(scenario(), made)).splitlines()[2] == line
    small = replace(failed, n_bytes=2 * MIB, unreserved_bytes=18 * MIB)
    assert small.text.endswith("2.0 MiB asked, 18.0 MiB free, too little for the segment it needs")
    whole = replace(failed, phase="load", part="load", module="")
    assert whole.text == "stops (loading the model): 86.0 MiB asked, 76.0 MiB free"
    fits = replace(prediction(), memory=replace(prediction().memory, failed=failed))
    assert "Stops" not in draw_short(Subject(scenario(), fits))


def test_a_model_that_nobody_divided_is_told_with_what_dividing_it_gives() -> None:
    """Where weights and states alone are more than the card; not where somebody asked for ddp."""
    flags = "--model 70b --method lora --gpu h100-sxm:8 --seq 512"
    made = short_of_memory()
    found = [
        replace(lever("divided", {"sharding": "fsdp"}, kind="time"), saves_bytes=2 * GIB),
        replace(lever("more", {"sharding": "fsdp", "offload": "optimizer+params"}), saves_bytes=3 * GIB),
        replace(lever("states", {"sharding": "zero2"}, kind="time"), saves_bytes=4 * GIB),
    ]
    left = float(made.memory.must_have_bytes) - 2 * GIB
    line = f"Each GPU holds the whole model (ddp assumed); --sharding fsdp needs {left / GIB:.2f} GiB."
    assert float(made.memory.state_bytes) > 2 * GIB
    made = replace(made, memory=replace(made.memory, limit_bytes=2 * GIB))
    assert line in draw_short(Subject(resolved(flags), made, found)).splitlines()
    assert "whole model" not in draw_short(Subject(resolved(flags, sharding="ddp"), made, found))
    roomy = replace(made, memory=replace(made.memory, limit_bytes=round(float(made.memory.state_bytes))))
    assert "whole model" not in draw_short(Subject(resolved(flags), roomy, found))


def test_a_warning_of_the_first_answer_has_no_id_of_its_rule() -> None:
    """It is in the details, by which plan rules lists it."""
    warned = Subject(replace(scenario(), warnings=("Something is odd (1 GiB) [odd-rule]",)), prediction())
    assert "Warning: Something is odd (1 GiB)\n" in draw_short(warned)
    assert "[odd-rule]" in draw(warned)


def test_what_a_line_says_already_is_no_warning_besides() -> None:
    """A card without CUDA, and one without rates, are told by the verdict and by the step."""
    said = ("No CUDA (x) [not-a-cuda-device]", "No rates (x) [gpu-speed-unknown]", "More [other]")
    text = draw_short(Subject(replace(scenario(), warnings=said), prediction()))
    assert ("No CUDA" in text, "No rates" in text, "Warning: More" in text) == (False, False, True)


def test_of_several_stacks_the_one_that_is_enough_is_the_lever() -> None:
    """A free stack that is not enough does not hide one that makes the job fit and costs time."""
    stacks = [
        lever("another stack: axolotl", {"stack": "axolotl"}, kind="free", verdict="does_not_fit"),
        lever("another stack: unsloth", {"stack": "unsloth"}, kind="time"),
    ]
    needs = [StackNeed("unsloth", 20 * GIB, 20 * GIB, "fits", 1.0)]
    text = draw_short(Subject(scenario(), short_of_memory(), stacks, stacks=needs))
    assert "--stack unsloth" in text
    assert "--stack axolotl" not in text
    assert "Nothing that was tried" not in text


def test_each_kind_of_change_is_shown_before_a_second_of_one() -> None:
    """Two ways over host RAM do not push out the one that changes the training."""
    found = [
        *(lever(f"over host RAM {index}", {f"host{index}": "1"}, kind="money") for index in range(3)),
        lever("a larger card", {"gpu": "large"}, kind="money"),
        lever("a larger card", {"gpu": "larger"}, kind="money"),
        lever("adapters", {"method": "qlora"}, kind="training"),
    ]
    text = draw_short(Subject(scenario(), short_of_memory(), found))
    shown = ("--host0", "--host1", "--gpu large ", "--method qlora")
    assert [text.index(flag) for flag in shown] == sorted(text.index(flag) for flag in shown)
    assert "--host2" not in text
    assert "--gpu larger" not in text


def test_who_stays_with_the_software_is_shown_what_is_free_there() -> None:
    """Another stack is free, too, and does not push out a fused loss."""
    found = [
        lever("stack unsloth", {"stack": "unsloth"}, kind="free"),
        lever("fused loss", {"loss": "liger"}, kind="free"),
        lever("smaller", {"batch": "1"}, kind="time"),
        lever("over host RAM", {"offload": "optimizer"}, kind="money"),
        lever("a larger card", {"gpu": "large"}, kind="money"),
    ]
    text = draw_short(Subject(scenario(), short_of_memory(), found))
    assert "--loss liger" in text
    assert "--gpu large" not in text


def test_a_lever_that_is_shown_is_no_assumption_besides() -> None:
    """One change has one line; an assumption that no lever shows stays."""
    unsaid = [Unsaid(f"{name}=1", f"--{name} 2", -GIB, 1.1, "fits") for name in ("batch", "lora-rank")]
    shown = lever("less", {"batch": "2"}, kind="time")
    text = draw_short(Subject(scenario(), prediction(), [shown], unsaid=unsaid))
    assert text.count("--batch 2") == 1
    assert text.count("--lora-rank 2") == 1


def test_of_a_job_that_does_not_fit_nobody_asks_what_needs_still_more() -> None:
    """Only assumptions that would bring it nearer are shown; of a job that fits, both directions."""
    more = Unsaid("batch=1", "--batch 4", 3 * GIB, 1.0, "does_not_fit")
    less = Unsaid("load_dtype=fp32", "--load-dtype bf16", -3 * GIB, 1.0, "does_not_fit")
    text = draw_short(replace(subject(), prediction=short_of_memory(), unsaid=[more, less]))
    assert "--load-dtype bf16" in text
    assert "--batch 4" not in text
    assert "--batch 4" in draw_short(replace(subject(), unsaid=[more, less]))


@pytest.mark.parametrize(("phase", "named"), [("load", True), ("adapters", True), ("loss", False)])
def test_a_peak_before_the_first_step_is_named(phase: Phase, named: bool) -> None:
    """No setting of the step moves it."""
    made = prediction()
    made = replace(made, memory=replace(made.memory, limiting_phase=phase))
    assert (PHASE_WORDS[phase] in draw_short(Subject(scenario(), made))) == named


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_first_answer_is_short_whatever_there_is_to_say(width: int) -> None:
    """Levers shrink first, then assumptions; verdict, time, largest parts and a warning stay,
    and nothing is wider than the terminal.
    """
    flags: dict[str, str | bool | None] = typed(
        "--sharding zero3 --offload optimizer+params --quant-storage bf16"
    )
    levers = [lever(f"lever {index}", {**flags, "batch": str(index)}) for index in range(9)]
    stacks = [
        StackNeed(f"a-long-stack-name-{index}", 30 * GIB, 31 * GIB, "fits", 0.9, ("packing",))
        for index in range(9)
    ]
    unsaid = [Unsaid(f"setting={index}", f"--setting {index}", GIB, 1.1, "fits") for index in range(6)]
    made = short_of_memory()
    long = replace(
        scenario(),
        model=replace(
            scenario().model, id="an-organisation/with-a-very-long-name-of-a-model-instruct-v0.3" * 2
        ),
        warnings=tuple(f"warning {index} " * 12 for index in range(9)),
    )
    at_length = AtLength(256, 400.0, 1.5)
    text = draw_short(
        Subject(long, made, levers, unsaid=unsaid, stacks=stacks, at_length=at_length), width=width
    )
    lines = text.splitlines()
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("DOES NOT FIT")
    marks = (
        "Step with enough memory: 2.01 s",
        "Run: 10,000 full samples x 3 epochs",
        "--tokens-per-sample 256",
        "Warning: warning 0",
    )
    for mark in (*marks, "At the peak, in GiB: weights"):
        assert mark in text, mark


def test_levers_go_before_the_card_and_the_stack() -> None:
    """A job's line that is longer than the terminal is whole, and the screen is as short."""
    long = replace(scenario(), model=replace(scenario().model, id="an-organisation/with-a-long-name"))
    levers = [lever(f"lever {index}", {"flag": str(index)}, kind="free") for index in range(9)]
    made = replace(prediction(), warnings=("a warning " * 12,))
    unsaid = [Unsaid(f"setting={index}", f"--setting {index}", GIB, 1.1, "fits") for index in range(3)]
    stacks = [
        StackNeed(f"a-stack-name-{index}", 30 * GIB, 31 * GIB, "fits", 0.9, ("packing",))
        for index in range(4)
    ]
    text = draw_short(Subject(long, made, levers, unsaid=unsaid, stacks=stacks), width=80)
    assert short_job_line(long) in " ".join(text.split())
    assert len(text.splitlines()) <= MAX_LINES


def test_the_first_answer_has_one_meaning_for_each_number() -> None:
    """The need that is compared with the card is in the verdict;
    what nvidia-smi would show is a number of its own.
    """
    made = prediction()
    memory = replace(
        made.memory,
        must_have_bytes=6 * GIB,
        driver_peak_bytes=8 * GIB,
        uncapped_driver_bytes=9 * GIB,
        limit_bytes=8 * GIB,
    )
    lines = draw_short(Subject(scenario(), replace(made, memory=memory))).splitlines()
    assert lines[0].startswith("FITS: needs 6.00 of 8.00 GiB per GPU")
    assert lines[1] == "It fills the card: nvidia-smi would show 8.00 GiB; with more memory 9.00 GiB."
    assert lines.count(lines[0]) == 1


def test_host_ram_that_is_judged_is_in_the_first_answer() -> None:
    """Where the host's memory is known, what a node needs of it is beside what the GPU needs;
    mapped files do not count.
    """
    made = prediction()
    host = replace(
        made.host, per_node_bytes=9 * GIB, required_per_node_bytes=4 * GIB, available_bytes=8 * GIB
    )
    assert "Host RAM: a node needs 4.00 of 8.00 GiB." in draw_short(subject(host=host))
    assert "Host RAM" not in draw_short(subject())
    whole = " ".join(draw(subject(host=host)).split())
    assert "A node (1 process) needs 4.00 GiB; 50 % of the 8.00 GiB that it has." in whole
    assert "It uses up to 5.00 GiB more for mapped files" in whole


def test_run_time_and_cost_are_asked_for_or_offered() -> None:
    """With samples and a price the run is there; without, the way to ask for it is."""
    assert "Run: 10,000 samples x 3 epochs: 1 h 02 min, 0.46 USD" in draw_short(subject())
    made = prediction()
    assert made.time is not None
    brief = draw_short(subject(time=replace(made.time, cost_usd=0.004)))
    assert ", <0.01 USD" in brief
    unasked = replace(made, time=replace(made.time, run_time_s=None, cost_usd=None))
    text = draw_short(Subject(replace(scenario(), run=RunPlan()), unasked))
    assert "Run:" not in text
    assert "--samples and --price" in text


def test_warnings_are_whole_where_there_is_room() -> None:
    """What a warning advises stands at its end: it is cut only where the answer would be too long."""
    long = (
        "This is what may be wrong about the answer above, and the way to say it otherwise: "
        + "--a-long-flag " * 3
        + "end"
    )
    made = replace(scenario(), warnings=(long,))
    text = draw_short(Subject(made, replace(short_of_memory(), warnings=())))
    assert "end" in text.split()
    crowded = draw_short(
        Subject(made, short_of_memory(), [lever(f"{n}", {f"flag{n}": "1"}) for n in range(9)]), width=60
    )
    assert crowded.count("\n") <= MAX_LINES


def test_warnings_beyond_the_first_are_counted() -> None:
    """What is not shown is said to be there."""
    made = replace(scenario(), warnings=("one", "two", "three", "four", "five"))
    (section,) = short_sections(Subject(made, prediction()), Room(warnings=2, blanks=False))
    notes = [block.text for block in section.blocks if isinstance(block, Note)]
    assert "Warning: two" in notes
    assert "Warning: three" not in notes
    # One more is the prediction's own.
    assert "4 more warnings: --details" in notes


def test_a_column_of_one_verdict_is_left_out() -> None:
    """What comes after a change is shown where a change alters it."""
    kept = [lever("kept", {"kept": "1"}, kind="free", verdict="fits")]
    unsaid = [Unsaid("batch=1", "--batch 4", GIB // 1024, 1.1, "fits")]
    text = draw_short(Subject(scenario(), prediction(), kept, unsaid=unsaid))
    assert "then" not in text.split()
    assert "fits" not in text.split()
    other = replace(unsaid[0], verdict="does_not_fit")
    assert "does not fit" in draw_short(Subject(scenario(), prediction(), kept, unsaid=[other]))


def test_memory_that_stays_is_the_same() -> None:
    """A change that two decimals do not show is neither more nor less."""
    unsaid = [Unsaid("batch=1", "--batch 4", -1024, 3.03, "fits")]
    (line,) = (
        line
        for line in draw_short(Subject(scenario(), prediction(), unsaid=unsaid)).splitlines()
        if "--batch 4" in line
    )
    assert line.split()[-3:] == ["same", "x", "3.03"]


def test_a_warning_is_cut_after_assumptions_are_gone() -> None:
    """Why a job does not fit may stand at the end of a warning; other settings say less."""
    long = "The cause of all of this is far behind the first words of this sentence " * 3 + "end"
    made = replace(scenario(), warnings=(long, long + " two"))
    levers = [lever(f"{n}", {f"a-long-flag-{n}": "1"}) for n in range(4)]
    unsaid = [Unsaid(f"setting={index}", f"--setting {index}", GIB, 1.1, "fits") for index in range(3)]
    stacks = [StackNeed(f"a-stack-name-{n}", 30 * GIB, 31 * GIB, "fits", 0.9, ()) for n in range(6)]
    text = draw_short(Subject(made, short_of_memory(), levers, unsaid=unsaid, stacks=stacks), width=80)
    assert text.count("\n") <= MAX_LINES
    assert text.split().count("end") == 2
