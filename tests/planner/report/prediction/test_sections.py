"""The report on a prediction made by hand: what each format says, and that it says the same."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from rich.console import Console

from planner.catalog.hf_config import model_from_config
from planner.catalog.stacks import load_stack
from planner.domain.hardware import GpuSpec, Hardware, HostSpec
from planner.domain.job_line import job_line
from planner.domain.prediction import HostPrediction, MemoryPrediction, PhasePeak, Prediction, TimePrediction
from planner.domain.recipe import Adapter, Batch, Numerics, Recipe
from planner.domain.scenario import Assumption, RunPlan, Scenario
from planner.domain.term import HostTerm, Phase, Term, TimeTerm
from planner.errors import ExitCode
from planner.printing import printable
from planner.report.prediction.explain import formula_text
from planner.report.prediction.schema import PredictionDocument, prediction_json_schema
from planner.report.prediction.sections import build_sections
from planner.report.prediction.short import MAX_LINES, Room, short_sections, short_text
from planner.report.prediction.subject import Subject, exit_code_of, terms_at_peak
from planner.report.prediction.to_json import prediction_document, to_json
from planner.report.render import human
from planner.report.render.bar import letter_line, scale_line, segment_cells
from planner.report.render.layout import Column, Grid, Note, Row, Section, Segment, StackedBar
from planner.report.render.markdown import to_markdown
from planner.report.render.numbers import chance_text, duration, duration_range, gib, percent, rate
from planner.searching.levers import Lever, StackNeed
from planner.searching.run_length import AtLength
from planner.searching.unsaid import Unsaid
from planner.units import GIB, GIGA, MIB, TERA

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}
BACKWARD: frozenset[Phase] = frozenset({"backward"})
ALWAYS: frozenset[Phase] = frozenset({"forward", "loss", "backward", "optimizer_step"})


def lever(description: str = "shorter", flags: Mapping[str, str | bool | None] | None = None, **changed: object) -> Lever:
    """A lever as the search hands it over, after which the job fits."""
    said = {"seq": "512"} if flags is None else flags
    made = Lever("training", description, said, 3 * GIB // 2, 0.55, 0, None, "fits", 0.97)
    return replace(made, **changed)  # type: ignore[arg-type]


def gpu() -> GpuSpec:
    """A card of 24 GiB, 23.53 of them visible."""
    return GpuSpec(
        id="rtx4090",
        name="NVIDIA GeForce RTX 4090",
        vendor="nvidia",
        generation="ada",
        compute_capability="8.9",
        marketing_memory_bytes=24 * GIB,
        visible_memory_bytes=24 * GIB - 480 * MIB,
        memory_bandwidth_bytes_per_s=1008.0 * GIGA,
        bf16_flop_per_s=165.0 * TERA,
        fp16_flop_per_s=165.0 * TERA,
        fp32_flop_per_s=82.6 * TERA,
        int8_op_per_s=None,
        interconnect="pcie",
        interconnect_bytes_per_s=None,
        pcie_generation=4,
        pcie_lanes=16,
        tdp_w=450.0,
        origins=(("visible_memory_bytes", "measured"),),
        source="made by hand",
    )


def scenario() -> Scenario:
    """A QLoRA job on that card."""
    recipe = Recipe(
        method="lora",
        numerics=Numerics("bf16", "bf16", "nf4", double_quant=True),
        adapter=Adapter(16, ("all-linear",), 0.0, (), "fp32"),
        optimizer="adamw_torch",
        sharding="none",
        offload="none",
        gradient_checkpointing=True,
        checkpoint_reentrant=False,
        checkpoint_every=1,
        attention="sdpa",
        loss="hf",
        batch=Batch(2, 8, 1024, "longest", 800.0),
    )
    names = ("method", "quantization", "double_quant", "lora_rank", "optimizer", "precision", "loss")
    assumptions = tuple(Assumption(name, "value", "default:hf-trainer@5") for name in names)
    model = replace(
        model_from_config(LLAMA, "config"), id="llama-2-7b", params_origin="published-exact", published_params=6738415616
    )
    return Scenario(
        model=model,
        hardware=Hardware(gpu(), 1, 1, HostSpec("unknown"), gpu_reserved_bytes=512 * MIB),
        recipe=recipe,
        stack=load_stack("hf-trainer@5"),
        run=RunPlan(10_000, 3.0, 0.44),
        assumptions=(*assumptions, Assumption("model", "llama-2-7b", "catalog", "a size alone means this reference model")),
        warnings=("the desktop holds memory",),
    )


def prediction() -> Prediction:
    """An answer with numbers that are easy to check by hand."""
    terms = (
        Term(
            "weights",
            "base weights in nf4",
            3_500_000_000,
            "replicated",
            ALWAYS,
            "planner.units:format_gib",
            "6738415616 x 0.52 B",
        ),
        Term("adapters", "LoRA matrices", 160_000_000, "replicated", ALWAYS, "planner.units:format_gib"),
        Term("saved_activations", "block inputs", 1_073_741_824.5, "transient", BACKWARD, "planner.units:format_bytes"),
        Term("logits_and_loss", "logits", 900_000_000, "transient", frozenset({"loss"}), "planner.units:format_bytes"),
        Term("gathered_parameters", "nothing gathered", 0, "transient", BACKWARD, "planner.units:format_bytes"),
        Term("allocator_slack", "caching allocator", 200_000_000, "transient", ALWAYS, "planner.units:format_bytes"),
        Term("context", "CUDA context", 450 * MIB, "replicated", ALWAYS, "planner.units:format_bytes"),
    )
    allocated = 3_500_000_000 + 160_000_000 + 1_073_741_824.5
    reserved, driver = allocated + 200_000_000, allocated + 200_000_000 + 450 * MIB
    phases = (PhasePeak("loss", 4_560_000_000, 4_760_000_000, 5_231_859_200), PhasePeak("backward", allocated, reserved, driver))
    memory = MemoryPrediction(
        terms=terms,
        phases=phases,
        limiting_phase="backward",
        allocated_peak_bytes=allocated,
        reserved_peak_bytes=reserved,
        driver_peak_bytes=driver,
        uncapped_driver_bytes=driver,
        must_have_bytes=driver,
        limit_bytes=24 * GIB - 992 * MIB,
    )
    host = HostPrediction(
        (HostTerm("process_baseline", 4 * GIB, "planner.units:format_bytes", pinned=True),), *(4 * GIB,) * 7, None
    )
    parts = (
        TimeTerm("matmuls", 2.5, "planner.units:format_seconds", 0.5, "3 x forward"),
        TimeTerm("optimizer", 0.01, "planner.units:format_seconds"),
    )
    time = TimePrediction(parts, 2.01, 7.96, 6368.0, 8151.0, 1.1e14, 0.331, 3768.0, 0.46)
    return Prediction(memory, host, time, "fits", "the peak is 17.9 GiB below the limit", None, "uncalibrated", ("uncalibrated",))


def draw(subject: Subject, *, width: int = 100, color: bool = False) -> str:
    """The human report as text of one width."""
    console = Console(
        file=io.StringIO(),
        width=width,
        color_system="standard" if color else None,
        force_terminal=color,
        highlight=False,
        no_color=False,
    )
    return human.to_text(build_sections(subject), console)


def subject(**changed: object) -> Subject:
    """The hand-made job; ``changed`` replaces fields of the prediction."""
    return Subject(scenario(), replace(prediction(), **changed))  # type: ignore[arg-type]


def short_of_memory(limit_bytes: int = 4 * GIB) -> Prediction:
    """The hand-made prediction on a card that is too small."""
    made = prediction()
    return replace(made, verdict="does_not_fit", memory=replace(made.memory, limit_bytes=limit_bytes))


def test_bytes_are_printed_as_gib_of_two_to_the_thirty() -> None:
    """One GiB is 2^30 bytes; what would round to nothing is said to be small, and nothing at all is zero."""
    assert gib(2**30) == "1.00"
    assert gib(10**9) == "0.93"
    assert gib(1) == "<0.01"
    assert gib(0) == "0.00"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0412, "0.0412"), (3.2149, "3.21"), (99.96, "100.0"), (2931.4, "2,931"), (0, "0.00"), (math.inf, "unknown")],
)
def test_rates_have_three_significant_digits(value: float, text: str) -> None:
    """Small rates keep their digits, large ones get thousands separators, an infinite one is unknown."""
    assert rate(value) == text


def test_percent_never_shows_something_as_nothing() -> None:
    """A share that is not zero is not printed as zero."""
    assert percent(0.314) == "31.4 %"
    assert percent(0.0001) == "<0.1 %"
    assert percent(0.0) == "0.0 %"


def test_control_characters_do_not_reach_the_terminal() -> None:
    """An escape sequence in a name is replaced, plain text stays as it is."""
    assert printable("a\x1b[31mb\nc\udc80") == "a?[31mb?c?"
    assert printable("Größe") == "Größe"


def test_the_verdict_comes_first_with_peak_and_limit() -> None:
    """The first line says whether it fits, the peak against the limit in GiB, and that nothing is calibrated."""
    first = draw(subject()).splitlines()[0]
    assert first == "FITS: needs at least 5.03 of 23.03 GiB per GPU; not calibrated, no interval"


def test_a_calibrated_verdict_gives_its_probability() -> None:
    """With a calibration the first line gives the chance that the job fits."""
    first = draw(subject(fits_probability=0.973, calibration="fit-2024")).splitlines()[0]
    assert first.endswith("chance to fit 97 %")


@pytest.mark.parametrize(
    ("probability", "text"),
    [
        (1.0, "> 99 %"),
        (0.995, "> 99 %"),
        (0.99, "99 %"),
        (0.9499, "94 %"),
        (0.29, "29 %"),
        (0.051, "6 %"),
        (0.01, "1 %"),
        (0.004, "< 1 %"),
        (0.0, "< 1 %"),
    ],
)
def test_chances_are_rounded_towards_doubt(probability: float, text: str) -> None:
    """Neither certainty nor an edge is reached by rounding: 94.99 % is not the 95 % from which a job fits."""
    assert chance_text(probability) == text


def test_two_durations_share_their_unit() -> None:
    """The unit stands once where both have the same."""
    assert duration_range(0.573, 0.962) == "573 to 962 ms"
    assert duration_range(0.85, 1.2) == "850 ms to 1.20 s"
    assert duration_range(3600, 7200) == "1 h 00 min to 2 h 00 min"


@pytest.mark.parametrize(
    ("verdict", "words", "code"),
    [
        ("fits", "FITS", ExitCode.FITS),
        ("does_not_fit", "DOES NOT FIT", ExitCode.GPU_MEMORY_SHORT),
        ("uncertain", "UNCERTAIN", ExitCode.UNCERTAIN),
        ("host_memory_short", "HOST RAM TOO SMALL", ExitCode.HOST_MEMORY_SHORT),
        ("no_verdict", "NO VERDICT", ExitCode.NOT_MODELLED),
    ],
)
def test_each_verdict_has_its_words_and_exit_code(verdict: str, words: str, code: ExitCode) -> None:
    """Words on the first line, exit code and JSON agree on the verdict."""
    made = subject(verdict=verdict)
    assert draw(made).startswith(f"{words}: ")
    assert exit_code_of(made.prediction) == code
    assert json.loads(to_json(made))["exit_code"] == code


def test_what_does_not_fit_says_how_much_it_needs() -> None:
    """Without room the first line gives the least that is needed, not a peak that the card has cut off."""
    made = short_of_memory()
    memory = replace(made.memory, driver_peak_bytes=4 * GIB, must_have_bytes=6 * GIB)
    text = draw(Subject(scenario(), replace(made, memory=memory)))
    assert text.startswith("DOES NOT FIT: needs at least 6.00 of 4.00 GiB per GPU; ")
    assert re.search(r"^driver +5\.03 +126 % ", text, re.MULTILINE)
    assert re.search(r"^needs at least +6\.00 +150 % ", text, re.MULTILINE)
    assert "The first three are what a card with room would show" in text


def test_a_full_card_shows_what_it_would_show_and_says_so() -> None:
    """A job that fits as cached blocks are returned is shown at the limit, and what a larger card would show beside it."""
    made = prediction()
    memory = replace(made.memory, driver_peak_bytes=4 * GIB, limit_bytes=4 * GIB)
    text = draw(Subject(scenario(), replace(made, memory=memory)))
    assert re.search(r"^driver +4\.00 +100 % ", text, re.MULTILINE)
    assert "A larger card would show 5.03 GiB" in text


@pytest.mark.parametrize("width", range(60, 121, 10))
def test_formulas_are_whole_or_left_out(width: int) -> None:
    """Names to copy are never broken: where they would have to be, the tables keep their numbers and drop the column."""
    made = prediction()
    named = replace(made.memory.terms[0], formula="planner.memory.weights:quantization_constant_bytes")
    text = draw(
        Subject(scenario(), replace(made, memory=replace(made.memory, terms=(named, *made.memory.terms[1:])))), width=width
    )
    assert re.search(r"^a  base weights in nf4 +3\.26 +64\.7 % +replicated", text, re.MULTILINE)
    assert ("weights:quantization_constant_bytes" in text) == ("weights:" in text) == (width >= 90)


def test_sections_come_in_reading_order() -> None:
    """Verdict, warnings, job, levels, terms, phases, host, time, run, assumptions."""
    text = draw(subject())
    marks = [
        "FITS",
        "Warning: the desktop holds memory",
        "llama-2-7b (6.74 B parameters)",
        "GPU memory in GiB",
        "Terms at the peak (backward, 1st micro-step)",
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
    """A term that is dead at the peak is listed without a share; a term of zero bytes is not listed at all."""
    text = draw(subject())
    assert re.search(r"^logits +0\.84 +transient +loss, 1st micro-step$", text, re.MULTILINE)
    assert "nothing gathered" not in text


def test_the_limiting_phase_is_marked() -> None:
    """Exactly the limiting phase carries the mark."""
    marked = [line.split(",")[0] for line in draw(subject()).splitlines() if "<- limits" in line]
    assert marked == ["backward"]


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("explain", [False, True])
def test_no_line_is_wider_than_the_terminal(width: int, explain: bool) -> None:
    """Nothing overflows, also with long names and with the formulas."""
    made = short_of_memory()
    long_term = Term(
        "weights", "a very long label " * 5, GIB, "sharded", ALWAYS, "planner.memory.sharding:a_very_long_function_name_indeed"
    )
    made = replace(made, memory=replace(made.memory, terms=(*made.memory.terms, long_term)), reason="word " * 60)
    flags = {f"sharding{index}": "optimizer+params" for index in range(6)}
    text = draw(Subject(scenario(), made, [lever("weights in host RAM " * 5, flags)], explain), width=width)
    assert all(f"--{name} {value}" in text for name, value in flags.items())
    assert max(len(line) for line in text.splitlines()) <= width


def test_plain_text_has_no_escape_codes_and_no_trailing_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is no terminal gets plain text, even where the environment asks for colours of a terminal."""
    monkeypatch.setenv("TERM", "xterm-256color")
    text = human.to_text(build_sections(subject()), human.make_console(io.StringIO()))
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())


class FakeTerminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A colour terminal gets colours, and none with NO_COLOR."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in human.to_text(build_sections(subject()), human.make_console(FakeTerminal()))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in human.to_text(build_sections(subject()), human.make_console(FakeTerminal()))


def test_colours_change_no_character() -> None:
    """Colours change how the report looks, not what it says: the bar has its letters under the colours, too."""
    console = Console(file=io.StringIO(), width=80, color_system="standard", force_terminal=True, highlight=False)
    coloured = short_text(subject(), console)
    assert coloured.count("\x1b[30;10") >= 5
    without_codes = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert draw_short(subject()) == "".join(f"{line.rstrip()}\n" for line in without_codes.splitlines())


@pytest.mark.parametrize(
    ("columns", "width"), [(None, 80), ("0", 80), ("-3", 80), ("x", 80), ("9" * 30, 80), ("40", 40), ("7", 40), ("132", 132)]
)
def test_a_width_that_is_none_is_passed_over(monkeypatch: pytest.MonkeyPatch, columns: str | None, width: int) -> None:
    """Where no terminal says its width, COLUMNS does; 80 otherwise, and never so few that nothing can be said."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    console = human.make_console(io.StringIO())
    assert console.width == width
    text = short_text(subject(), console)
    assert text.startswith("FITS: ")
    assert len(text.splitlines()) <= MAX_LINES
    assert max(map(len, text.splitlines())) <= width


WIDE = Grid(
    (Column("id", whole=True), Column("parameters", "right"), Column("only where there is room", wide_only=True), Column("way")),
    (
        Row(("a-model-with-a-long-name", "1,234,567,890", "extra", "published-exactly"), "good"),
        Row(("another\x1b[31m", "", "", "")),
    ),
)


def test_a_table_without_room_becomes_a_list() -> None:
    """No title is broken into letters, no number loses its last digits."""
    text = human.to_text((Section("", (WIDE,)),), Console(file=io.StringIO(), width=40, color_system=None))
    assert text.splitlines() == [
        "a-model-with-a-long-name",
        "  parameters: 1,234,567,890",
        "  way: published-exactly",
        "another?[31m",
    ]


def test_a_table_that_has_room_stays_one() -> None:
    """Above the width of its words, with the columns for a wide terminal or without."""
    for width, columns in ((120, 4), (70, 3)):
        text = human.to_text((Section("", (WIDE,)),), Console(file=io.StringIO(), width=width, color_system=None))
        assert len(re.split(r"\s{2,}", text.splitlines()[0])) == columns


def test_an_old_windows_console_gets_no_escape_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would show them, as rich writes to it in another way than by text."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    coloured = short_text(subject(), human.make_console(Terminal()))
    monkeypatch.setattr(human, "detect_legacy_windows", lambda: True)
    assert "\x1b[" in coloured
    assert "\x1b" not in short_text(subject(), human.make_console(Terminal()))


def test_bar_cells_add_up() -> None:
    """The cells of all segments equal the rounded total, however thin the segments are."""
    bar = StackedBar(tuple(Segment("x", 3.3) for _ in range(10)), 100.0)
    assert sum(segment_cells(bar, 100)) == 33
    assert letter_line(bar, 100) == "x" * 33 + "." * 67


def test_the_limit_is_marked_inside_the_bar_when_the_job_is_too_large() -> None:
    """The mark stands under the cell where the card ends, and at the right end when everything fits."""
    too_large = StackedBar((Segment("a", 4.0 * GIB),), 2.0 * GIB)
    assert letter_line(too_large, 80) == "a" * 80
    assert scale_line(too_large, 80).index("^") == 39
    assert scale_line(StackedBar((Segment("a", 1.0 * GIB),), 2.0 * GIB), 80).index("^") == 79
    assert scale_line(StackedBar((Segment("a", 99.0 * GIB),), 1.0 * GIB), 80) == "^ limit 1.00 GiB"
    assert "limit unknown" in scale_line(StackedBar((Segment("a", 1.0 * GIB),), None), 80)


def test_levers_say_what_they_save_and_cost() -> None:
    """Each lever comes with its flags, what it saves and costs, and whether the job then fits; also for a job that fits."""
    levers = [
        lever("one kernel", {"loss": "liger"}, kind="free", step_time_ratio=1.0),
        lever("states in host RAM", {"offload": "optimizer"}, kind="money", host_bytes=67 * GIB, step_time_ratio=1.23),
        lever("half the rank", {"lora-rank": "8"}, saves_bytes=GIB // 10, verdict="does_not_fit"),
    ]
    for made in (prediction(), short_of_memory()):
        text = draw(Subject(scenario(), made, levers))
        assert re.search(r"--loss liger +one kernel +1\.50 GiB +free +fits", text)
        assert re.search(r"--offload optimizer .* 1\.50 GiB +67 GiB RAM, step x 1\.23 +fits", text)
        assert re.search(r"--lora-rank 8 +half the rank +0\.10 GiB +training +does not fit", text)
    assert "save memory" not in draw(Subject(scenario(), prediction(), None))


def test_the_first_answer_shows_what_makes_it_fit_and_nothing_else() -> None:
    """Under "what would make it fit" stands what does; a job that nothing makes fit says so and shows what saves most."""
    short = [lever("no", {f"no{index}": "1"}, kind="free", verdict="does_not_fit") for index in range(5)]
    enough = [lever("yes", {"yes": "1"}), lever("also", {"also": "1"})]
    text = draw_short(Subject(scenario(), short_of_memory(), [*short, *enough]))
    assert "--yes 1" in text
    assert "--also 1" in text
    assert text.index("--yes 1") < text.index("--also 1")
    assert "--no" not in text
    most = replace(lever("most", {"most": "1"}, kind="training", verdict="does_not_fit"), saves_bytes=30 * GIB)
    nothing = draw_short(Subject(scenario(), short_of_memory(), [*short, most]))
    assert "Nothing that was tried makes it fit; what saves most" in nothing
    assert "--most 1" in nothing


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


def draw_short(made: Subject, *, width: int = 80) -> str:
    """The first answer as text of one width."""
    return short_text(made, Console(file=io.StringIO(), width=width, color_system=None, highlight=False))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_first_answer_is_short_whatever_there_is_to_say(width: int) -> None:
    """Levers shrink first, then assumptions; verdict, time, bar and a warning stay, and nothing is wider than the terminal."""
    flags: dict[str, str | bool | None] = {"sharding": "zero3", "offload": "optimizer+params", "quant-storage": "bf16"}
    levers = [lever(f"lever {index}", {**flags, "batch": str(index)}) for index in range(9)]
    stacks = [StackNeed(f"a-long-stack-name-{index}", 30 * GIB, 31 * GIB, "fits", 0.9, ("packing",)) for index in range(9)]
    unsaid = [Unsaid(f"setting={index}", f"--setting {index}", GIB, 1.1, "fits") for index in range(6)]
    made = short_of_memory()
    long = replace(
        scenario(),
        model=replace(scenario().model, id="an-organisation/with-a-very-long-name-of-a-model-instruct-v0.3" * 2),
        warnings=tuple(f"warning {index} " * 12 for index in range(9)),
    )
    at_length = AtLength(256, 400.0, 1.5)
    text = draw_short(Subject(long, made, levers, unsaid=unsaid, stacks=stacks, at_length=at_length), width=width)
    lines = text.splitlines()
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("DOES NOT FIT")
    assert any(line.startswith("DOES NOT FIT") for line in lines[-2:])
    marks = ("Step, with room: 2.01 s", "Run: 10,000 full samples x 3 epochs", "--tokens-per-sample 256", "Warning: warning 0")
    for mark in (*marks, "w weights"):
        assert mark in text, mark


def test_the_first_answer_has_one_meaning_for_each_number() -> None:
    """The need that is compared with the card is in the verdict; what it uses with room is a number of its own."""
    made = prediction()
    memory = replace(
        made.memory, must_have_bytes=6 * GIB, driver_peak_bytes=8 * GIB, uncapped_driver_bytes=9 * GIB, limit_bytes=8 * GIB
    )
    lines = draw_short(Subject(scenario(), replace(made, memory=memory))).splitlines()
    assert lines[0].startswith("FITS: needs at least 6.00 of 8.00 GiB per GPU")
    assert lines[1] == "It fills the card: 8.00 GiB; with more room it would use 9.00 GiB."
    assert lines[-1] == lines[0]


def test_host_ram_that_is_judged_is_in_the_first_answer() -> None:
    """Where the host's memory is known, what a node needs of it is beside what the GPU needs; mapped files do not count."""
    made = prediction()
    host = replace(made.host, per_node_bytes=9 * GIB, required_per_node_bytes=4 * GIB, available_bytes=8 * GIB)
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
    unasked = replace(made, time=replace(made.time, run_time_s=None, cost_usd=None))
    text = draw_short(Subject(replace(scenario(), run=RunPlan()), unasked))
    assert "Run:" not in text
    assert "--samples and --price" in text


def test_warnings_are_whole_where_there_is_room() -> None:
    """What a warning advises stands at its end: it is cut only where the answer would be too long."""
    long = "This is what may be wrong about the answer above, and the way to say it otherwise: " + "--a-long-flag " * 3 + "end"
    made = replace(scenario(), warnings=(long,))
    text = draw_short(Subject(made, replace(short_of_memory(), warnings=())))
    assert "end" in text.split()
    crowded = draw_short(Subject(made, short_of_memory(), [lever(f"{n}", {f"flag{n}": "1"}) for n in range(9)]), width=60)
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


def test_an_unknown_card_is_said_plainly() -> None:
    """Without a limit there are no shares, and the report says that it is unknown."""
    made = prediction()
    unknown = Subject(
        replace(scenario(), hardware=replace(scenario().hardware, gpu=replace(gpu(), visible_memory_bytes=None))),
        replace(made, verdict="no_verdict", memory=replace(made.memory, limit_bytes=None), time=None),
    )
    text = draw(unknown)
    assert text.startswith("NO VERDICT: needs at least 5.03 GiB per GPU of unknown size")
    assert "Not predicted: the rates of this card are not known." in text
    assert json.loads(to_json(unknown))["memory"]["limit_bytes"] is None


def test_assumptions_are_all_there_with_their_origin() -> None:
    """Every assumption is printed with its value beside its origin, lines of files included; a note gets a line of its own."""
    made = scenario()
    from_file = (Assumption("seq", "512", "job.toml:4"), Assumption("batch", "2", "job.toml:5"))
    text = draw(Subject(replace(made, assumptions=(*made.assumptions, *from_file)), prediction()))
    rows = text[text.index("Assumptions and their origins") :]
    assert re.search(r"^default:hf-trainer@5 +method=value, quantization=value, double_quant=value", rows, re.MULTILINE)
    assert re.search(r"^catalog +model=llama-2-7b$", rows, re.MULTILINE)
    assert re.search(r"^job\.toml +seq=512 \(line 4\), batch=2 \(line 5\)$", rows, re.MULTILINE)
    assert all(f"{each.name}={each.value}" in rows for each in made.assumptions)
    assert "model: a size alone means this reference model" in rows


def documented(n_bytes: int) -> int:
    """Bytes of something, stored in ``n_bytes``.

    Formula: the number itself, see :func:`other`.  Source: a book,
    second line.

    More about it.  Ignored: nothing.
    """
    return n_bytes


def test_explain_reads_the_docstring_of_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """Summary, formula and source come from the function that the term names; a name that does not exist says nothing."""
    import planner.units

    monkeypatch.setattr(planner.units, "documented", documented, raising=False)
    text = formula_text("planner.units:documented")
    assert (text.summary, text.rule, text.ignored, text.source) == (
        "Bytes of something, stored in n_bytes.",
        "the number itself, see other.",
        "nothing.",
        "a book, second line.",
    )
    assert formula_text("planner.memory.cache:idle_by_phase").rule.startswith("coefficient slack_fraction of")
    assert formula_text("planner.units:no_such_function").summary == ""
    assert formula_text("os:system").summary == ""


def test_explain_shows_formula_numbers_and_what_is_counted() -> None:
    """With --explain every term appears with the function that computed it and the numbers that went in."""
    text = draw(Subject(scenario(), prediction(), explain=True))
    assert re.search(r"base weights in nf4 +3\.26 GiB = 6738415616 x 0\.52 B", text)
    assert re.search(r"^function +planner\.units:format_gib$", text, re.MULTILINE)
    assert "function " not in draw(subject())


def test_json_is_valid_by_its_own_models_and_complete() -> None:
    """The text parses into the published models, and holds integer bytes, terms, phases, assumptions and the verdict."""
    made = Subject(scenario(), short_of_memory(), [lever(step_time_ratio=math.inf)], explain=True)
    text = to_json(made)
    document = PredictionDocument.model_validate_json(text)
    assert document == prediction_document(made)
    data = json.loads(text)
    assert data["schema"] == "planner/prediction@1"
    assert isinstance(data["memory"]["driver_peak_bytes"], int)
    assert [term["label"] for term in data["memory"]["terms"]] == [term.label for term in made.prediction.memory.terms]
    assert [phase["phase"] for phase in data["memory"]["phases"]] == ["loss", "backward"]
    assert len(data["assumptions"]) == len(made.scenario.assumptions)
    (found,) = data["levers"]
    assert (found["flags"], found["flags_text"], found["fits"]) == ({"seq": "512"}, "--seq 512", True)
    assert (found["saves_bytes"], found["step_time_ratio"]) == (1610612736, None)
    assert data["explanations"][0]["formula"] == "planner.units:format_gib"
    assert data["scenario"]["recipe"]["lora_rank"] == 16


def test_json_has_no_nan_and_no_infinity() -> None:
    """A number that is not finite becomes null."""
    made = prediction()
    assert made.time is not None
    time = replace(made.time, step_s=math.inf, tokens_per_s=math.nan, terms=(TimeTerm("matmuls", math.inf, "planner.units:x"),))
    data = json.loads(to_json(subject(time=time)), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert data["time"]["step_s"] is None
    assert data["time"]["tokens_per_s"] is None
    assert data["time"]["terms"][0]["seconds"] is None


def test_every_key_of_the_json_is_in_the_schema() -> None:
    """The published schema describes each object of a real document, key by key, and forbids others."""
    schema = prediction_json_schema()

    def check(value: object, node: dict[str, object], place: str) -> None:
        if "$ref" in node:
            node = schema["$defs"][str(node["$ref"]).rsplit("/", 1)[1]]
        options = [option for option in node.get("anyOf", []) if option.get("type") != "null"]  # type: ignore[attr-defined]
        if options and value is not None:
            check(value, options[0], place)
        elif isinstance(value, dict) and node.get("additionalProperties") is False:
            assert set(value) == set(node["required"]) | ({"schema"} & set(value)), place  # type: ignore[call-overload]
            for key, item in value.items():
                check(item, node["properties"][key], f"{place}.{key}")  # type: ignore[index]
        elif isinstance(value, list) and "items" in node:
            for item in value:
                check(item, node["items"], place)  # type: ignore[arg-type]

    check(json.loads(to_json(Subject(scenario(), prediction(), explain=True))), schema, "$")
    assert schema["additionalProperties"] is False


def test_markdown_has_a_table_for_every_grid_and_escapes_cells() -> None:
    """Markdown says the same as the human report, as tables, and a pipe in a name does not break a row."""
    made = replace(prediction(), reason="a|b <script> *c*")
    text = to_markdown(build_sections(Subject(scenario(), made)))
    assert text.startswith("**FITS: needs at least 5.03 of 23.03 GiB per GPU")
    assert r"A\|b \<script\> \*c\*" in text
    assert "## Terms at the peak (backward, 1st micro-step)" in text
    assert "| **= driver** | **5.03** |" in text
    rows = [line for line in text.splitlines() if line.startswith("| a |")]
    assert rows == [r"| a | base weights in nf4 | 3.26 | 64.7 % | replicated | planner.units:format\_gib |"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0000412, "0.0412 ms"), (0.0621, "62.1 ms"), (4.814, "4.81 s"), (3600.0, "1 h 00 min")]
)
def test_short_durations_keep_their_digits(seconds: float, text: str) -> None:
    """What takes less than a millisecond is not printed as nothing."""
    assert duration(seconds) == text
