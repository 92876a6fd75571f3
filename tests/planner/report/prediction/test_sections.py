"""The report on a prediction made by hand: what each section says, and their order."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from planner.domain.recipes.job_line import job_line
from planner.domain.scenario import Assumption
from planner.domain.term import Term, TimeTerm
from planner.report.prediction.sections import step_note
from planner.report.prediction.subject import Subject, terms_at_peak
from planner.report.prediction.to_json import to_json
from planner.units import GIB
from tests.planner.report.prediction.made import (
    ALWAYS,
    draw,
    gpu,
    lever,
    prediction,
    scenario,
    short_of_memory,
    subject,
)


def test_what_does_not_fit_says_how_much_it_needs() -> None:
    """The first line gives the least that is needed, the table what a card with enough memory would show."""
    made = short_of_memory()
    memory = replace(made.memory, must_have_bytes=6 * GIB)
    text = draw(Subject(scenario(), replace(made, memory=memory)))
    assert text.startswith("DOES NOT FIT: needs 6.00 of 4.00 GiB per GPU; ")
    assert re.search(r"^driver +5\.03 +126 % ", text, re.MULTILINE)
    assert re.search(r"^needs +6\.00 +150 % ", text, re.MULTILINE)
    assert "The first three are what a card with enough memory would show" in text


def test_a_full_card_shows_what_it_would_show_and_says_so() -> None:
    """A job that fits as cached blocks are returned is shown at the limit,
    and what a larger card would show beside it.
    """
    made = prediction()
    memory = replace(made.memory, driver_peak_bytes=4 * GIB, limit_bytes=4 * GIB)
    text = draw(Subject(scenario(), replace(made, memory=memory)))
    assert re.search(r"^driver +4\.00 +100 % ", text, re.MULTILINE)
    assert "A larger card would show 5.03 GiB" in text


def test_code_is_named_by_the_explanation_alone() -> None:
    """Who asks where the bytes go has no use for names of functions."""
    made = prediction()
    named = replace(made.memory.terms[0], formula="planner.memory.weights:quantization_constant_bytes")
    answer = replace(made, memory=replace(made.memory, terms=(named, *made.memory.terms[1:])))
    text = draw(Subject(scenario(), answer))
    assert re.search(r"^a  base weights in nf4 +3\.26 +64\.7 % +replicated", text, re.MULTILINE)
    assert "quantization_constant_bytes" not in text


def test_sections_come_in_reading_order() -> None:
    """Verdict, warnings, job, levels, terms, phases, host, time, run, assumptions."""
    text = draw(subject())
    marks = [
        "FITS",
        "Warning: the desktop holds memory",
        "llama-2-7b (6.74 B parameters)",
        "GPU memory in GiB",
        "Terms at the peak (backward, 1st micro-batch)",
        "Peak of each phase",
        "Host RAM in GiB",
        "Time of one optimizer step",
        "Whole run",
        "Assumptions and their origins",
    ]
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)
    assert text.splitlines()[0] == text.splitlines()[-1]


def test_the_job_is_one_line() -> None:
    """Model, method, cards, sizes and stack, in the words that people use."""
    assert job_line(scenario()) == (
        "llama-2-7b (6.74 B parameters), qlora nf4+dq r=16, 1 x NVIDIA GeForce RTX 4090, "
        "seq 1024 x micro-batch 2 x accumulation 8, hf-trainer@5"
    )


def test_terms_at_the_peak_add_up_to_the_levels() -> None:
    """The terms alive in the limiting phase sum to the driver peak, and each running total is printed."""
    made = prediction()
    terms = terms_at_peak(made)
    assert sum(float(term.n_bytes) for term in terms) == made.memory.driver_peak_bytes
    text = draw(subject())
    for level, size in (("allocated", "4.41"), ("reserved", "4.59"), ("driver", "5.03")):
        assert re.search(rf"= {level} +{re.escape(size)} ", text), level


def test_terms_of_other_phases_are_named_with_their_phase() -> None:
    """A term that is dead at the peak is listed without a share;
    a term of zero bytes is not listed at all.
    """
    text = draw(subject())
    assert re.search(r"^logits +0\.84 +transient +loss, 1st micro-batch$", text, re.MULTILINE)
    assert "nothing gathered" not in text


def test_the_limiting_phase_is_marked() -> None:
    """Exactly the limiting phase carries the mark."""
    marked = [line.split(",")[0] for line in draw(subject()).splitlines() if "<- peak" in line]
    assert marked == ["backward"]


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("explain", [False, True])
def test_no_line_is_wider_than_the_terminal(width: int, explain: bool) -> None:
    """Nothing overflows, also with long names and with the formulas."""
    made = short_of_memory()
    long_term = Term(
        "weights",
        "a very long label " * 5,
        GIB,
        "sharded",
        ALWAYS,
        "planner.memory.outside:a_very_long_function_name_indeed",
    )
    made = replace(
        made, memory=replace(made.memory, terms=(*made.memory.terms, long_term)), reason="word " * 60
    )
    flags = {f"sharding{index}": "optimizer+params" for index in range(6)}
    text = draw(Subject(scenario(), made, [lever("weights in host RAM " * 5, flags)], explain), width=width)
    assert all(f"--{name} {value}" in text for name, value in flags.items())
    assert max(len(line) for line in text.splitlines()) <= width


def test_levers_say_what_they_save_and_cost() -> None:
    """Each lever comes with its flags, what it saves and costs, and whether the job then fits;
    also for a job that fits.
    """
    levers = [
        lever("one kernel", {"loss": "liger"}, kind="free", step_time_ratio=1.0),
        lever(
            "states in host RAM",
            {"offload": "optimizer"},
            kind="money",
            host_bytes=67 * GIB,
            step_time_ratio=1.23,
        ),
        lever("half the rank", {"lora-rank": "8"}, saves_bytes=GIB // 10, verdict="does_not_fit"),
    ]
    for made in (prediction(), short_of_memory()):
        text = draw(Subject(scenario(), made, levers))
        assert re.search(r"--loss liger +one kernel +1\.50 GiB +free +fits", text)
        assert re.search(r"--offload optimizer .* 1\.50 GiB +67 GiB RAM, step x 1\.23 +fits", text)
        assert re.search(r"--lora-rank 8 +half the rank +0\.10 GiB +changes training +does not fit", text)
    assert "save memory" not in draw(Subject(scenario(), prediction(), None))


def test_an_unknown_card_is_said_plainly() -> None:
    """Without a limit there are no shares, and the report says that it is unknown."""
    made = replace(prediction(), time=None, untimed="the rates of this card are not known")
    unknown = Subject(
        replace(
            scenario(), hardware=replace(scenario().hardware, gpu=replace(gpu(), visible_memory_bytes=None))
        ),
        replace(made, verdict="no_verdict", memory=replace(made.memory, limit_bytes=None)),
    )
    text = draw(unknown)
    assert text.startswith("NO VERDICT: needs 5.03 GiB per GPU of unknown size")
    assert "Not predicted: the rates of this card are not known." in text
    assert json.loads(to_json(unknown))["memory"]["limit_bytes"] is None


def test_assumptions_are_all_there_with_their_origin() -> None:
    """Every assumption is printed with its value beside its origin, lines of files included;
    a note gets a line of its own.
    """
    made = scenario()
    from_file = (Assumption("seq", "512", "job.toml:4"), Assumption("batch", "2", "job.toml:5"))
    text = draw(Subject(replace(made, assumptions=(*made.assumptions, *from_file)), prediction()))
    rows = text[text.index("Assumptions and their origins") :]
    assert re.search(
        r"^default:hf-trainer@5 +method=value, quantization=value, double_quant=value", rows, re.MULTILINE
    )
    assert re.search(r"^catalog +model=llama-2-7b$", rows, re.MULTILINE)
    assert re.search(r"^job\.toml +seq=512 \(line 4\), batch=2 \(line 5\)$", rows, re.MULTILINE)
    assert all(f"{each.name}={each.value}" in rows for each in made.assumptions)
    assert "model: a size alone means this reference model" in rows


def test_explain_shows_formula_numbers_and_what_is_counted() -> None:
    """With --explain every term appears with the function that computed it and the numbers that went in."""
    text = draw(Subject(scenario(), prediction(), explain=True))
    assert re.search(r"base weights in nf4 +3\.26 GiB = 6738415616 x 0\.52 B", text)
    assert re.search(r"^function +planner\.units:format_gib$", text, re.MULTILINE)
    assert "function " not in draw(subject())


def test_a_phase_of_every_micro_step_is_named_once() -> None:
    """Off the peak: by its plain name where the first and the later ones have the term."""
    made = prediction()
    both = Term(
        "dequantization",
        "expanded weights",
        GIB,
        "transient",
        frozenset({"backward_2", "forward", "backward", "optimizer_step"}),
        "planner.units:format_bytes",
    )
    memory = replace(made.memory, terms=(*made.memory.terms, both), limiting_phase="loss")
    text = draw(Subject(scenario(), replace(made, memory=memory)))
    row = next(line for line in text.splitlines() if line.startswith("expanded weights"))
    assert row.split("transient")[1].strip().startswith("forward, 1st micro-batch; backward;")


def test_a_step_that_waits_for_the_host_says_so() -> None:
    """Where a tenth of it or more is issue time that no kernel hides; the speed of the host is assumed."""
    made = prediction()
    assert made.time is not None
    for seconds, hidden, answers in ((0.5, 0.1, True), (0.5, 0.4, False)):
        launch = TimeTerm("launch", seconds, "planner.units:format_seconds", hidden)
        time = replace(made.time, terms=(*made.time.terms, launch))
        text = draw(Subject(scenario(), replace(made, time=time)))
        assert ("The host sets the pace" in text) == answers
        assert ("at an assumed speed" in step_note(replace(made, time=time)).text) == answers
