"""The command line: every command, exit code and message, as a user meets them."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from measure.cli.main import main as measure
from planner import __version__
from planner.api.answering import EXAMPLE
from planner.catalog.gpus import gpu_ids
from planner.catalog.models import model_ids
from planner.catalog.stacks import stack_ids
from planner.cli.app import app
from planner.cli.commands import predict as predict_module
from planner.cli.commands.schema import DOCUMENTS
from planner.cli.main import main
from planner.intake.given.fields import headings
from planner.intake.given.flags import request_fields
from planner.report.prediction.document import PredictionDocument
from planner.units import GIB

ROOT = Path(__file__).resolve().parents[2]
JOB = ["--model", "7b", "--method", "qlora", "--gpu", "4090", "--seq", "1024"]
TOO_LARGE = ["--model", "7b", "--method", "full", "--gpu", "4090", "--seq", "4096"]
EVERY_FLAG = """
--model --method --quantization --double-quant --quant-storage
--gpu --gpus --gpu-memory --gpu-reserved --host --host-memory --link --nodes
--seq --batch --grad-accum --padding --tokens-per-sample
--lora-rank --lora-targets --lora-dropout --modules-to-save --adapter-dtype
--optimizer --precision --load-dtype --sharding --offload --attention --loss --stack
--gradient-checkpointing --no-gradient-checkpointing --checkpoint-reentrant --no-checkpoint-reentrant
--samples --epochs --price --config --format --json --explain --force --version
"""

Captured = pytest.CaptureFixture[str]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, outside the checkout's folder."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-m", "planner", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=variables, check=False)


def refused(capsys: Captured, *arguments: str, code: int = 2) -> str:
    """The one sentence on standard error with which ``arguments`` are refused."""
    assert main(list(arguments)) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("plan: ")
    assert "Traceback" not in err
    return err


def test_a_prediction_needs_no_sub_command(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's command prints a report on standard output, nothing on standard error,
    and exits with 0.
    """
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(JOB) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].startswith("FITS: needs ")
    assert lines[0].endswith("chance to fit > 99 %")
    assert lines.count(lines[0]) == 1
    step = r"^Step: \d+ ms \(90 % interval [\d,]+ (ms )?to [\d.,]+ m?s\); [\d,]+ tokens/s$"
    assert re.search(step, out, re.MULTILINE)
    assert "llama-2-7b, qlora nf4 r=8, seq 1024, batch 1, 1 x rtx4090" in out
    assert err == ""
    assert len(lines) <= 22
    assert max(map(len, lines)) <= 80


def test_details_show_all_of_it(capsys: Captured) -> None:
    """The whole report is one flag away, and begins and ends with the verdict of the first answer."""
    assert main([*JOB, "--details"]) == 0
    out = capsys.readouterr().out
    assert "Calibration default: " in out
    assert "Peak of each phase" in out
    assert "Host RAM in GiB" in out
    main(JOB)
    short = capsys.readouterr().out.splitlines()
    assert short[0] == out.splitlines()[0] == out.splitlines()[-1]


def test_a_job_that_does_not_fit_exits_with_3(capsys: Captured) -> None:
    """Full fine-tuning of 7B on one card of 24 GiB runs out of memory: said first, and in the exit code."""
    assert main(TOO_LARGE) == 3
    assert capsys.readouterr().out.startswith("DOES NOT FIT: needs ")


def test_too_little_host_memory_exits_with_5(capsys: Captured) -> None:
    """A host that is known to be too small is its own verdict."""
    assert main([*JOB, "--host-memory", "1GiB"]) == 5
    assert capsys.readouterr().out.startswith("HOST RAM TOO SMALL: ")


def test_an_unknown_card_size_exits_with_6(capsys: Captured) -> None:
    """A card whose visible memory nobody knows gets numbers but no verdict, and the way out is named."""
    assert main(["--model", "7b", "--method", "qlora", "--gpu", "b100", "--seq", "1024"]) == 6
    out = capsys.readouterr().out
    assert out.startswith("NO VERDICT: needs ")
    assert "--gpu-memory" in out


def test_an_architecture_without_formulas_exits_with_6(capsys: Captured, tmp_path: Path) -> None:
    """A config.json of an architecture that is not modelled is refused rather than guessed."""
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "mamba9", "hidden_size": 64}')
    message = refused(
        capsys, "--model", str(config), "--method", "lora", "--gpu", "4090", "--seq", "128", code=6
    )
    assert "mamba9" in message


@pytest.mark.parametrize(
    ("flag", "value", "nearest"),
    [
        ("--model", "llama-2-7bb", "llama-2-7b"),
        ("--gpu", "rtx4091", "rtx4090"),
        ("--gpu", "4900", "nearest: rtx4090"),
        ("--method", "qlorra", "qlora"),
        ("--optimizer", "adamw_troch", "adamw_torch"),
        ("--stack", "hf-trainer@55", "hf-trainer@5"),
        ("--sharding", "zero33", "zero3"),
        ("--format", "jsn", "json"),
    ],
)
def test_unknown_names_list_the_nearest(capsys: Captured, flag: str, value: str, nearest: str) -> None:
    """A misspelt name is a usage error that says what could have been meant."""
    arguments = [*JOB, flag, value]
    message = refused(capsys, *arguments)
    assert f"'{value}'" in message
    assert nearest in message


@pytest.mark.parametrize(
    ("words", "way"),
    [
        ("serach --model 7b", "nearest: search; plan --help lists the commands"),
        ("7b qlora 4090", "settings are given by flags (--model 7b)"),
    ],
)
def test_an_unknown_command_is_one_sentence(capsys: Captured, words: str, way: str) -> None:
    """The nearest command, or how a setting is given; without a question inside of it."""
    message = refused(capsys, *words.split())
    assert way in message
    assert "?" not in message


def test_a_price_alone_asks_for_the_samples_only(capsys: Captured) -> None:
    """What is given is not asked for again."""
    assert main([*JOB, "--price", "2"]) == 0
    assert "--samples for time and cost" in capsys.readouterr().out


@pytest.mark.parametrize("missing", ["--model", "--method", "--gpu", "--seq"])
def test_a_missing_flag_is_named_with_an_example(capsys: Captured, missing: str) -> None:
    """Leaving out what has no default names exactly that flag and shows a command that works."""
    at = JOB.index(missing)
    message = refused(capsys, *JOB[:at], *JOB[at + 2 :])
    assert f"missing {missing};" in message
    assert EXAMPLE in message


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "--model nosuch --gpu 4099 --method lora --stack trll",
            ("unknown model 'nosuch'", "unknown GPU '4099'", "unknown stack 'trll'", "missing --seq"),
        ),
        ("--model 7b --method lorra --batch zero", ("unknown method 'lorra'", "batch must be")),
    ],
)
def test_all_errors_are_told_at_once(capsys: Captured, words: str, said: tuple[str, ...]) -> None:
    """Nobody mends one to be told of the next."""
    sentence = refused(capsys, *words.split())
    assert all(each in sentence for each in said)


def test_no_arguments_at_all_name_everything_that_is_missing(capsys: Captured) -> None:
    """Plain `plan` says what it needs instead of guessing a job."""
    assert "missing --model, --method, --gpu, --seq;" in refused(capsys)


def test_the_example_in_the_message_works(capsys: Captured) -> None:
    """The example that is shown on a mistake is a command that runs."""
    assert main(EXAMPLE.split()[1:]) == 0
    assert capsys.readouterr().out.startswith("FITS")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--seq", "0"),
        ("--seq", "-5"),
        ("--batch", "nan"),
        ("--lora-rank", "1e99"),
        ("--lora-dropout", "1.5"),
        ("--gpu-memory", "24"),
    ],
)
def test_numbers_out_of_range_are_refused_with_the_range(capsys: Captured, flag: str, value: str) -> None:
    """Negative, zero, huge and NaN numbers, and sizes without a unit,
    are usage errors that name the field.
    """
    assert flag.removeprefix("--").replace("-", "_") in refused(capsys, *JOB, flag, value)


def test_an_unknown_flag_names_near_ones(capsys: Captured) -> None:
    """A misspelt flag exits with 2 and points to the right one."""
    message = refused(capsys, *JOB, "--lora-rnak", "8")
    assert "--lora-rnak" in message
    assert "--lora-rank" in message


def test_a_flag_without_its_value_is_not_unknown(capsys: Captured) -> None:
    """As of a variable of the shell that is empty."""
    assert "'--price' requires an argument" in refused(capsys, "--model", "7b", "--price")


def test_an_unknown_command_is_refused(capsys: Captured) -> None:
    """A misspelt sub-command exits with 2 and one sentence."""
    message = refused(capsys, "modls")
    assert "modls" in message
    assert "plan --help lists the commands" in message


def test_prediction_flags_before_a_sub_command_are_not_dropped(capsys: Captured) -> None:
    """`plan --seq 4 models` is refused: the list would not depend on the flag."""
    assert "--seq belongs to a prediction" in refused(capsys, "--seq", "4", "models")


def test_flags_may_be_written_with_underscores(capsys: Captured) -> None:
    """`--lora_rank` and `--lora-rank` are one flag."""
    assert main([*JOB, "--lora_rank", "4", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert main([*JOB, "--lora-rank", "4", "--json"]) == 0
    assert written == json.loads(capsys.readouterr().out)
    assert written["scenario"]["recipe"]["lora_rank"] == 4


def test_json_parses_and_carries_the_exit_code(capsys: Captured) -> None:
    """`--json` is `--format json`;
    the document is valid by its schema and its exit code is that of the process.
    """
    code = main([*TOO_LARGE, "--json"])
    text = capsys.readouterr().out
    document = PredictionDocument.model_validate_json(text)
    assert document.exit_code == code == 3
    assert main([*TOO_LARGE, "--format", "json"]) == 3
    assert capsys.readouterr().out == text


def test_totals_of_the_json_equal_their_terms(capsys: Captured) -> None:
    """The allocated peak is the sum of the allocated terms alive in the limiting phase."""
    main([*JOB, "--json"])
    memory = json.loads(capsys.readouterr().out)["memory"]
    alive = [term["bytes"] for term in memory["terms"] if term["at_peak"] and term["level"] == "allocated"]
    assert sum(alive) == pytest.approx(memory["allocated_peak_bytes"], abs=len(alive))


def test_markdown_is_a_third_format(capsys: Captured) -> None:
    """`--format markdown` writes headings and tables."""
    assert main([*JOB, "--format", "markdown"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("**FITS: ")
    assert "| `--stack unsloth` |" in out
    assert "## Assumptions and their origins" not in out
    main([*JOB, "--details", "--format", "markdown"])
    assert "## Assumptions and their origins" in capsys.readouterr().out


def test_explain_finds_the_docstring_of_every_formula(capsys: Captured) -> None:
    """Every term, host term and part of the step names a function that exists and says what it counts."""
    main(
        [
            "--model",
            "7b",
            "--method",
            "full",
            "--gpu",
            "h100-sxm:8",
            "--sharding",
            "zero3",
            "--offload",
            "optimizer",
            "--seq",
            "2048",
            "--explain",
            "--json",
        ]
    )
    explained = json.loads(capsys.readouterr().out)["explanations"]
    assert {each["topic"] for each in explained} == {"GPU memory", "Host RAM", "Step time"}
    assert [each["formula"] for each in explained if not each["summary"]] == []


def test_explain_adds_the_formulas_to_the_report(capsys: Captured) -> None:
    """Functions and sources appear with --explain only, all coefficients with --details, too."""
    main([*JOB, "--explain"])
    short = capsys.readouterr().out
    assert "\nFormulas\n" in short
    main([*JOB, "--explain", "--details"])
    whole = capsys.readouterr().out
    assert "\nCoefficients" in whole
    assert "\nCoefficients" not in short
    assert 3 * len(short.splitlines()) < len(whole.splitlines())
    main(JOB)
    assert "\nFormulas\n" not in capsys.readouterr().out


def test_a_config_file_is_merged_and_flags_win(capsys: Captured, tmp_path: Path) -> None:
    """Values come from the file with file and line as origin; a flag beside it wins."""
    config = tmp_path / "job.toml"
    config.write_text('model = "7b"\nmethod = "qlora"\ngpu = "4090"\nseq = 512\nbatch = 2\n')
    assert main(["--config", str(config), "--batch", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    origins = {each["name"]: each["origin"] for each in document["assumptions"]}
    assert document["scenario"]["recipe"]["seq_len"] == 512
    assert document["scenario"]["recipe"]["micro_batch"] == 1
    assert origins["seq"] == f"{config}:4"
    assert origins["batch"] == "cli"


def test_a_broken_config_file_names_file_and_line(capsys: Captured, tmp_path: Path) -> None:
    """A mistake in the file is one sentence with its place; so is a file that is not there."""
    config = tmp_path / "job.toml"
    config.write_text('model = "7b"\nsqe = 512\n')
    assert f"{config}:2" in refused(capsys, "--config", str(config))
    assert "nowhere.toml" in refused(capsys, "--config", str(tmp_path / "nowhere.toml"))


def test_run_time_and_cost_appear_when_asked_for(capsys: Captured) -> None:
    """With samples, epochs and a price the report says how long the run takes and what it costs."""
    asked = [*JOB, "--samples", "10000", "--epochs", "3", "--price", "0.5"]
    main(asked)
    out = capsys.readouterr().out
    assert re.search(r"^Run: 10,000 full samples x 3 epochs: 6 h .* USD$", out, re.MULTILINE)
    main([*asked, "--details"])
    assert "1 GPU at 0.5 USD an hour each." in capsys.readouterr().out
    main(JOB)
    out = capsys.readouterr().out
    assert "Run:" not in out
    assert "--samples and --price" in out


def test_a_run_of_unknown_lengths_is_shown_at_a_real_one(capsys: Captured) -> None:
    """Beside the run with full samples stands what the flag that it names gives;
    with the flag there is one answer alone.
    """
    asked = [*JOB, "--padding", "longest", "--batch", "4", "--samples", "10000", "--price", "0.5"]
    main(asked)
    line = next(
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("With --tokens-per-sample 256, ")
    )
    main([*asked, "--tokens-per-sample", "256"])
    out = capsys.readouterr().out
    assert "With --tokens-per-sample" not in out
    said = re.search(r"^Run: 10,000 samples: (.*?) \(.*\), (.*) USD$", out, re.MULTILINE)
    assert said is not None
    assert line.endswith(f"for example: {said[1]}, {said[2]} USD")


@pytest.mark.parametrize(
    ("arguments", "code", "suggestion"),
    [
        (
            ["--model", "lama-2-7b", "--method", "qlora", "--gpu", "4090", "--seq", "512", "--json"],
            2,
            "llama-2-7b",
        ),
        (["--modle", "7b", "--format", "json"], 2, "--model"),
        (["search", "--json", "--model", "7b", "--gpu", "rtx409"], 2, "rtx4090"),
        (["validate", "nothing.txt", "--format=json"], 2, None),
        (["schema", "predictions", "--json"], 2, None),
        (["--model", "7b", "--json"], 2, None),
    ],
)
def test_a_failure_is_a_document_where_json_is_asked_for(
    capsys: Captured, arguments: list[str], code: int, suggestion: str | None
) -> None:
    """Standard output holds code, message and the nearest names by the schema;
    standard error has the message as before.
    """
    assert main(arguments) == code
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["schema"] == "planner/error@1"
    error = document["error"]
    assert error["code"] == code
    assert err == f"plan: {error['message']}\n"
    assert suggestion is None or suggestion in error["suggestions"]
    main(["schema", "error"])
    schema = json.loads(capsys.readouterr().out)
    assert set(document) == set(schema["required"])
    assert set(error) == set(schema["$defs"]["ErrorPart"]["required"])


def test_a_failure_is_text_alone_otherwise(capsys: Captured) -> None:
    """Nothing is on standard output where nobody asked for JSON."""
    assert main(["--model", "lama-2-7b", "--method", "qlora", "--gpu", "4090", "--seq", "512"]) == 2
    assert capsys.readouterr().out == ""


def test_host_memory_in_json_is_what_the_verdict_compares(capsys: Captured) -> None:
    """A script that compares what a node needs with what it has comes to the verdict;
    mapped files are a number of their own.
    """
    job = ["--model", "7b", "--method", "full", "--gpu", "4090:2", "--seq", "512", "--sharding", "zero3"]
    job += ["--offload", "optimizer+params", "--gradient-checkpointing", "--json", "--host-memory"]
    verdicts = set()
    for has in ("64GiB", "128GiB", "140GiB", "160GiB", "256GiB"):
        main([*job, has])
        written = json.loads(capsys.readouterr().out)
        host = written["host"]
        assert (host["required_per_node_bytes"] > host["available_bytes"]) == (
            written["verdict"] == "host_memory_short"
        )
        verdicts.add(written["verdict"])
    assert len(verdicts) == 2
    # The files of this checkpoint are more than the node has, and are given back when memory is short.
    main([*JOB, "--host-memory", "10GiB", "--json"])
    written = json.loads(capsys.readouterr().out)
    assert written["verdict"] == "fits"
    host = written["host"]
    assert host["required_per_node_bytes"] + host["reclaimable_per_node_bytes"] > host["available_bytes"]


def test_a_card_that_others_fill_has_nothing_left(capsys: Captured) -> None:
    """Others can hold all of a card, never more: no limit and no share of it is below zero."""
    job = ["--model", "7b", "--method", "qlora", "--gpu", "4090", "--seq", "1024", "--gpu-reserved", "30GiB"]
    assert main(job) == 2
    capsys.readouterr()
    assert main([*job, "--force", "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["memory"]["limit_bytes"] == 0
    assert document["fits_probability"] == 0
    assert document["reason"].endswith("are missing at the peak (loss, later micro-batches)")
    main([*job, "--force", "--details"])
    text = capsys.readouterr().out
    assert "nothing is left on the card" in text
    assert "limit 0.00 GiB" in text


def test_force_lets_a_refused_combination_go_on(capsys: Captured) -> None:
    """4-bit weights cannot be trained in full: refused, or a warning with --force."""
    job = ["--model", "7b", "--method", "full", "--quantization", "nf4", "--gpu", "h100-sxm", "--seq", "512"]
    refused(capsys, *job)
    main([*job, "--force"])
    out, err = capsys.readouterr()
    assert "Warning: " in out
    assert err == ""


VALUED = [field.flag for field in request_fields() if field.kind != "flag" and field.name != "model"]
AWKWARD = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [
            "",
            "0",
            "-1",
            "1e400",
            "nan",
            "inf",
            "9" * 40,
            "1_0",
            "24GiB",
            "bf16",
            "zero3",
            "\x1b[2J",
            "\udc80",
            ":",
            "4090:0",
            "none",
        ]
    ),
    st.integers().map(str),
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(extra=st.lists(st.tuples(st.sampled_from(VALUED), AWKWARD), max_size=3))
def test_no_value_makes_a_traceback(capsys: Captured, extra: list[tuple[str, str]]) -> None:
    """Whatever is given to the flags, the answer is a report or one sentence, and never an internal error."""
    code = main([*JOB, *(f"{flag}={value}" for flag, value in extra)])
    out, err = capsys.readouterr()
    assert code in (0, 2, 3, 4, 5, 6), err
    assert "Traceback" not in err
    assert bool(out) != bool(err)
    assert err.count("\n") <= 1


def test_help_lists_every_flag_and_command(capsys: Captured) -> None:
    """`plan --help` names each sub-command, then each flag of the issue and each field of the table."""
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    in_turn = ["Commands:", "Options:", *(f"\n{heading}:" for heading in dict.fromkeys(headings().values()))]
    places = [out.index(each) for each in in_turn]
    assert places == sorted(places)
    assert places[-1] < out.index("--price")
    words = out.replace(",", " ").split()
    wanted = {*EVERY_FLAG.split(), *(field.flag for field in request_fields())}
    assert wanted - set(words) == set()
    assert {"search", "models", "gpus", "stacks", "schema", "rules"} <= set(words)


COMMANDS = ["check", "search", "models", "gpus", "stacks", "rules", "validate", "calibrate", "schema"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(capsys: Captured, command: str) -> None:
    """Each sub-command explains itself, without types of Python and without doubled brackets."""
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"plan {command}" in out
    assert "<str>" not in out
    assert "<list" not in out
    assert "[[" not in out
    assert "...]..." not in out


def test_without_a_calibration_there_is_a_point_estimate(capsys: Captured) -> None:
    """`--calibration none` gives the priors, and says so; an unknown name lists the known ones."""
    assert main([*JOB, "--calibration", "none"]) == 0
    out = capsys.readouterr().out
    assert "not calibrated, no interval" in out.splitlines()[0]
    assert "90 % interval" not in out
    assert main([*JOB, "--calibration", "nobody"]) == 2
    assert "unknown calibration 'nobody'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        ([*JOB, "--calibration", "qqq"], "(allowed: default, "),
        ([*JOB, "--calibration", "nope"], "'nope' (allowed: default, none)"),
        ([*JOB, "--gpu", "all"], "plan search --gpu any"),
        ([*JOB, "--stack", "qqq"], "(plan stacks lists them)"),
        ([*JOB, "--model", "nope"], "(no known name is near it: give a Hub id (owner/name) or the path of a"),
        ([*JOB, "--switches", "qqq=true"], "(plan stacks --json has them)"),
        (["schema", "qqq"], "(allowed: prediction, "),
    ],
)
def test_an_unknown_name_tells_where_the_known_ones_are(
    capsys: Captured, words: list[str], way_out: str
) -> None:
    """Also where no known name is near it."""
    assert way_out in refused(capsys, *words)


def test_version_is_printed(capsys: Captured) -> None:
    """`plan --version` prints name and version."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"plan {__version__}\n"


def test_models_lists_the_whole_catalog(capsys: Captured) -> None:
    """Every model is listed with its count, how that was checked, and its source;
    names too long for their column are wrapped.
    """
    assert main(["models", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "planner/models@1"
    assert [each["id"] for each in document["models"]] == list(model_ids())
    assert all(each["params"] > 0 and each["params_origin"] and each["source"] for each in document["models"])
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    assert all(each["id"][:20] in out for each in document["models"])
    assert "What a size alone stands for" in out
    assert main(["models", "qwen2.5-7b"]) == 0
    assert "What a size alone stands for" not in capsys.readouterr().out


def test_gpus_lists_the_whole_catalog_and_marks_what_has_no_source(capsys: Captured) -> None:
    """Every card is listed; an unsourced number carries a question mark, a sourced one does not."""
    assert main(["gpus", "--json"]) == 0
    cards = {each["id"]: each for each in json.loads(capsys.readouterr().out)["gpus"]}
    assert list(cards) == list(gpu_ids())
    assert main(["gpus"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert cards["a10g"]["origins"]["bf16_flop_per_s"] == "unsourced"
    assert " 70.0? " in lines["a10g"]
    assert cards["a10"]["origins"]["visible_memory_bytes"] != "unsourced"
    assert " 22.03 " in lines["a10"]


def test_a_part_of_a_name_lists_those_cards_alone(capsys: Captured) -> None:
    """``plan gpus 4090`` shows desktop and laptop;
    a name that nothing holds is answered like a wrong --gpu.
    """
    assert main(["gpus", "4090", "--json"]) == 0
    assert [each["id"] for each in json.loads(capsys.readouterr().out)["gpus"]] == [
        "rtx4090",
        "rtx4090-laptop",
        "rtx4090d",
    ]
    assert main(["gpus", "7900 xtx"]) == 0
    assert "(24)" in capsys.readouterr().out
    assert main(["gpus", "nosuchcard"]) == 2
    assert "unknown GPU 'nosuchcard'" in capsys.readouterr().err


@pytest.mark.parametrize("size", ["8gb", "8 GiB", "48GB"])
def test_a_size_lists_the_cards_that_are_sold_with_it(capsys: Captured, size: str) -> None:
    """And none whose name has the digits of it at the end of a larger number."""
    assert main(["gpus", size, "--json"]) == 0
    sold = {card["marketing_memory_bytes"] for card in json.loads(capsys.readouterr().out)["gpus"]}
    assert sold == {int(re.findall(r"\d+", size)[0]) * GIB}
    assert main(["gpus", "7gb"]) == 2


@pytest.mark.parametrize("memory", [[], ["--gpu-memory", "192GB"]])
def test_a_device_without_cuda_has_no_verdict_and_a_lower_bound(capsys: Captured, memory: list[str]) -> None:
    """Weights and states are the same anywhere; the allocator is not,
    so no memory that is named makes a verdict.
    """
    job = ["--model", "7b", "--method", "full", "--seq", "512", "--json"]
    assert main([*job, "--gpu", "mi300x", *memory]) == 6
    answer = json.loads(capsys.readouterr().out)
    main([*job, "--gpu", "h200-sxm"])
    assert answer["fits_probability"] is None
    states = re.search(r"not a CUDA device; .* at least ([0-9.]+) GiB", answer["reason"])
    terms = json.loads(capsys.readouterr().out)["memory"]["terms"]
    held = sum(
        term["bytes"] for term in terms if term["name"] in ("weights", "master_weights", "optimizer_states")
    )
    assert states is not None
    assert float(states[1]) == pytest.approx(held / 2**30, abs=0.01)


def test_stacks_lists_the_whole_catalog(capsys: Captured) -> None:
    """Every stack is listed; JSON has each switch with what settled it."""
    assert main(["stacks", "--json"]) == 0
    stacks = json.loads(capsys.readouterr().out)["stacks"]
    assert [each["id"] for each in stacks] == list(stack_ids())
    assert all(each["settled"] for each in stacks)
    assert main(["stacks"]) == 0
    out = capsys.readouterr().out
    assert all(each["id"] in out for each in stacks)


def test_rules_prints_the_table_of_combinations(capsys: Captured) -> None:
    """Both kinds of rule are listed, each with its sentence."""
    assert main(["rules", "--json"]) == 0
    rules = json.loads(capsys.readouterr().out)["rules"]
    assert {each["level"] for each in rules} == {"refuse", "not-modelled", "warn"}
    assert all(each["sentence"] for each in rules)
    assert main(["rules"]) == 0
    out = capsys.readouterr().out
    assert all(each["id"] in out for each in rules)


@pytest.mark.parametrize("command", ["models", "gpus", "stacks", "rules"])
def test_lists_fit_into_100_columns_and_have_a_markdown_form(capsys: Captured, command: str) -> None:
    """No line of a list is wider than 100 columns, and `--format markdown` writes a table."""
    assert main([command]) == 0
    assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= 100
    assert main([command, "--format", "markdown"]) == 0
    assert "\n| " in capsys.readouterr().out


@pytest.mark.parametrize("document", DOCUMENTS)
def test_schema_prints_a_json_schema(capsys: Captured, document: str) -> None:
    """Each schema names itself and its properties; without a name it is that of a prediction."""
    assert main(["schema", document]) == 0
    schema = json.loads(capsys.readouterr().out)
    tool = "measure" if document == "trace" else "planner"
    assert schema["$id"] == f"{tool}/{document}@{2 if document == 'validate' else 1}"
    assert schema["properties"]
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["$id"] == "planner/prediction@1"


@pytest.mark.parametrize("command", ["models", "gpus", "stacks", "rules"])
def test_a_list_is_what_its_schema_says(capsys: Captured, command: str) -> None:
    """The fields of a list's entries are those of the schema, under the same id."""
    assert main([command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    main(["schema", command])
    schema = json.loads(capsys.readouterr().out)
    assert (document["schema"], list(document)) == (schema["$id"], list(schema["properties"]))
    entry = schema["properties"][command]["items"]["$ref"].rpartition("/")[2]
    assert list(document[command][0]) == list(schema["$defs"][entry]["properties"])


def test_an_unknown_schema_names_the_known_ones(capsys: Captured) -> None:
    """A misspelt document is a usage error."""
    assert "prediction" in refused(capsys, "schema", "predicton")


def test_an_unexpected_failure_is_one_sentence(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug exits with 1 and asks for a report; the traceback is shown with PLANNER_DEBUG=1 only."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(predict_module, "predict", broken)
    monkeypatch.delenv("PLANNER_DEBUG", raising=False)
    message = refused(capsys, *JOB, code=1)
    assert "internal error (ZeroDivisionError: a bug), please report" in message
    monkeypatch.setenv("PLANNER_DEBUG", "1")
    assert main(JOB) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_exits_with_130(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends quietly with the shell's own code for it."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(predict_module, "predict", interrupted)
    assert main(JOB) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(("method", "shown"), [("full", False), ("lora", True)])
def test_only_a_job_with_adapters_has_a_phase_that_adds_them(
    method: str, shown: bool, capsys: Captured
) -> None:
    """The table of phases lists what the job goes through."""
    main(["--model", "1b", "--method", method, "--gpu", "4090", "--seq", "512", "--details"])
    assert ("adding the adapters" in capsys.readouterr().out) is shown


class ClosedPipe:
    """Standard output whose reader has gone."""

    def write(self, text: str) -> int:
        """Fail as a closed pipe does."""
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    def flush(self) -> None:
        """Nothing is held back."""

    def isatty(self) -> bool:
        """A pipe is no terminal."""
        return False


def test_a_reader_that_stops_early_is_no_failure(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """`plan ... | head -1` ends without a message."""
    monkeypatch.setattr(sys, "stdout", ClosedPipe())
    assert main(["--version"]) == 0
    sys.stdout.close()
    monkeypatch.undo()
    assert capsys.readouterr().err == ""


class FullDisk(ClosedPipe):
    """Standard output on a disk without room."""

    def write(self, text: str) -> int:
        """Fail as a full disk does."""
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_and_a_closed_output_are_no_internal_errors(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing can be written, that is said; who closes the output wants the exit code."""
    monkeypatch.setattr(sys, "stdout", FullDisk())
    assert main(JOB) == 2
    monkeypatch.setattr(sys, "stdout", FullDisk())
    assert main([*JOB, "--json"]) == 2
    sys.stdout.close()
    monkeypatch.setattr(sys, "stdout", FullDisk())
    assert measure(["--version"]) == 2
    sys.stdout.close()
    monkeypatch.setattr(sys, "stdout", None)
    assert main(JOB) == 0
    sys.stdout.close()
    monkeypatch.undo()
    assert capsys.readouterr().err.count("cannot be written: No space left") == 3


def test_the_app_runs_under_typers_own_runner() -> None:
    """The typer app is well formed by itself: its help exits with 0 and a usage error with 2."""
    runner = CliRunner()
    assert runner.invoke(app, ["--help"]).exit_code == 0
    assert runner.invoke(app, ["--no-such-flag"]).exit_code == 2


def test_the_process_exits_with_the_verdict_and_writes_nothing(tmp_path: Path) -> None:
    """A real process: exit code, standard output alone,
    and not a single new file where it ran or in its home.
    """
    command = [sys.executable, "-B", "-m", "planner", *TOO_LARGE, "--json"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path),
    }
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=environment, cwd=tmp_path, check=False
    )
    assert done.returncode == 3
    assert done.stderr == ""
    assert json.loads(done.stdout)["verdict"] == "does_not_fit"
    assert list(tmp_path.iterdir()) == []


def test_the_package_runs_as_the_command_does() -> None:
    """``python -m planner`` is ``plan``: its name, its answer and its exit code."""
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"plan {__version__}\n")
    assert run("--no-such-flag").stderr.startswith("plan: no such option: --no-such-flag")


def test_help_and_a_prediction_import_no_framework() -> None:
    """Neither torch nor scipy, pandas or matplotlib is ever loaded; --help does not even need numpy."""
    for arguments, unwanted in ((["--help"], ["numpy"]), (JOB, [])):
        heavy = ["torch", "transformers", "scipy", "pandas", "matplotlib", *unwanted]
        code = (
            "import sys; from planner.cli.main import main; main(sys.argv[1:]); "
            f"print([name for name in {heavy} if name in sys.modules])"
        )
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
            check=True,
        )
        assert done.stdout.splitlines()[-1] == "[]", done.stdout


def test_a_process_that_ends_does_not_look_for_garbage() -> None:
    """What is left is frozen when the interpreter begins to end."""
    code = (
        "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count() > 0)); "
        "import planner.cli.main as command; command.main(['schema'])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, check=True)
    assert done.stdout.split()[-1] == b"True"


def test_a_terminal_without_unicode_gets_ascii() -> None:
    """Under an ASCII encoding the report still prints, and in ASCII."""
    done = run(*JOB, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()


def test_a_closed_pipe_in_a_real_shell_is_quiet() -> None:
    """The interpreter adds no complaint of its own when it shuts down."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    script = f'"{sys.executable}" -m planner schema | true'
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("plan --gpu rtx4090", {"rtx4090", "rtx4090d", "rtx4090-laptop"}),
        ("plan sea", {"search"}),
    ],
)
def test_a_shell_completes_commands_and_values(words: str, offered: set[str]) -> None:
    """What typer's script asks of the program: names of commands, choices and ids of the catalog."""
    variables = {"_PLAN_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    command = [sys.executable, "-m", "planner"]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == offered


def test_a_part_of_a_name_lists_those_models_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """A part of a name, an alias or a Hub id filters; a name of none is a usage error."""
    assert main(["models", "mixtral-8x7b", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["id"] for each in found["models"]] == ["mixtral-8x7b"]
    assert found["sizes"] == []
    assert main(["models", "no-such-model"]) == 2
