"""`plan validate`, as a user meets it: formats, exit codes, messages."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from planner.calibration.fit.calibrate import EARNED
from planner.cli.main import main
from planner.records import COLUMNS
from planner.report.validation.document import ValidationDocument
from planner.words import words

PUBLISHED = Path(__file__).resolve().parents[2] / "data" / "published"
PATTERN = str(PUBLISHED / "[0-9]*.csv")
ONE_FILE = str(PUBLISHED / "003_f83f083c0d8bebd6.csv")
EXPLAINED = "003-t2-r03"
FILLED = words("id source source_group model gpu method seq_len outcome peak_memory_mib pipeline_parallel")

Captured = pytest.CaptureFixture[str]


def document_of(capsys: Captured, *arguments: str) -> dict[str, object]:
    """The JSON document of a run that succeeds."""
    assert main(["validate", *arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return dict(json.loads(out))


def refused(capsys: Captured, *arguments: str) -> str:
    """The one sentence with which exit code 2 is explained."""
    assert main(["validate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert ("planner/error@1" in out) if "--json" in arguments else (out == "")
    assert err.count("\n") == 1
    return err


def write_rows(folder: Path, *rows: str) -> str:
    """A record file; each row gives the columns of ``FILLED``, the others are blank."""
    path = folder / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(dict(zip(FILLED, row.split(","), strict=True)) for row in rows)
    return str(path)


def test_json_has_the_documented_shape(capsys: Captured) -> None:
    """One entry per source and one overall, with the keys of the schema;
    a source without a quantity says null.
    """
    document = document_of(capsys, PATTERN)
    ValidationDocument.model_validate_json(json.dumps(document))
    assert (document["schema"], document["cv"]) == ("planner/validate@2", "none")
    sources = document["sources"]
    assert isinstance(sources, list)
    assert [each["n_rows"] for each in sources] == [32, 83, 32, 10]
    wanted = {"source", "n_rows", "not_modelled", "memory", "throughput", "host_memory", "oom"}
    for each in (*sources, document["overall"]):
        assert wanted <= each.keys()
        assert {"n", "mape", "median_signed", "max_abs"} <= each["memory"].keys()
        assert {"n_oom", "n_ok", "false_fit", "false_oom", "uncertain_ok", "uncertain_oom"} <= each[
            "oom"
        ].keys()
    assert sources[1]["host_memory"] is None
    assert document["rows"] is None


def test_json_lists_each_row_on_request(capsys: Captured) -> None:
    """`--rows` gives every record once, in the order of the file."""
    rows = document_of(capsys, ONE_FILE, "--rows")["rows"]
    assert isinstance(rows, list)
    assert len({row["id"] for row in rows}) == len(rows) == 32
    assert rows[0]["memory"]["quantity"] == "driver_bytes"
    assert rows[0]["throughput"]["quantity"] == "run_time_s"


def test_people_get_tables_of_at_most_100_columns(capsys: Captured) -> None:
    """Each quantity has its table; nothing is wider than 100 columns, with or without the rows."""
    assert main(["validate", PATTERN, "--rows"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("GPU memory is off by ")
    assert "\n157 rows from 4 sources; calibration default" in out
    for title in (
        "GPU memory\n",
        "Throughput\n",
        "Host RAM\n",
        "Verdict on GPU memory\n",
        "Rows: GPU memory in GiB\n",
    ):
        assert f"\n{title}" in out
    assert max(len(line) for line in out.splitlines()) <= 100


def test_several_sources_are_validated_at_once(capsys: Captured) -> None:
    """Files that a pattern names give one answer: every row counted,
    and a reason for each row that is not modelled.
    """
    document = document_of(capsys, str(PUBLISHED / "fms_[af]*.csv"))
    assert {each["source"] for each in document["sources"]} == {
        path.stem for path in PUBLISHED.glob("fms_[af]*.csv")
    }
    overall = document["overall"]
    assert overall["not_modelled"] == len(overall["not_modelled_rows"]) > 0
    assert all(row["reason"] for row in overall["not_modelled_rows"])


def test_markdown_has_a_table_per_quantity(capsys: Captured) -> None:
    """`--format markdown` writes tables under headings."""
    assert main(["validate", ONE_FILE, "--format", "markdown"]) == 0
    out = capsys.readouterr().out
    assert "## GPU memory\n\n| source | rows | MAPE |" in out


@pytest.mark.figures
def test_cross_validation_stands_beside_the_fit_and_the_priors(capsys: Captured) -> None:
    """`--cv source` scores each group by a fit without it,
    and gives in-sample and unfitted errors and the fit itself.
    """
    document = json.loads(_printed(capsys, PATTERN, "--cv", "source", "--json"))
    ValidationDocument.model_validate_json(json.dumps(document))
    assert document["cv"] == "source"
    assert document["fit"]["free_numbers"] == len(document["fit"]["coefficients"]) <= len(EARNED)
    for scores in (document, document["in_sample"], document["prior"]):
        assert [each["n_rows"] for each in scores["sources"]] == [
            each["n_rows"] for each in document["sources"]
        ]
    scored = (document["in_sample"], document, document["prior"])
    in_sample, held_out, prior = (scores["overall"]["memory"]["mape"] for scores in scored)
    # Four documents are too few to say that a fit without one of them is better than none.
    assert in_sample < min(held_out, prior)


def test_a_source_that_begins_with_a_number_is_the_users_own(capsys: Captured, tmp_path: Path) -> None:
    """What a source is called says nothing: another name gives the same document with that name in it."""
    text = Path(ONE_FILE).read_text(encoding="utf-8")
    for name in ("001_mine", "mine"):
        (tmp_path / f"{name}.csv").write_text(text.replace("003_f83f083c0d8bebd6", name), encoding="utf-8")
    for options in (("--rows",), ("--cv", "source")):
        numbered, named = (
            _printed(capsys, str(tmp_path / f"{name}.csv"), *options, "--json")
            for name in ("001_mine", "mine")
        )
        assert numbered.replace("001_mine", "mine") == named


def test_an_unknown_cross_validation_lists_the_known_ones(capsys: Captured) -> None:
    """A name that does not exist is refused; `none` is the default."""
    assert "nearest: source" in refused(capsys, ONE_FILE, "--cv", "sources")
    assert main(["validate", ONE_FILE, "--cv", "none"]) == 0


def _printed(capsys: Captured, *arguments: str) -> str:
    assert main(["validate", *arguments]) == 0
    return capsys.readouterr().out


def test_a_missing_file_or_pattern_is_named(capsys: Captured, tmp_path: Path) -> None:
    """Nothing to read is exit code 2 with the name that was given; no file at all as well."""
    assert f"{tmp_path}/no.csv: no such file" in refused(capsys, str(tmp_path / "no.csv"))
    assert f"{tmp_path}/*.csv: no file matches" in refused(capsys, str(tmp_path / "*.csv"))
    assert "FILE" in refused(capsys)


def test_rows_that_cannot_be_used_are_listed_and_the_rest_is_scored(capsys: Captured, tmp_path: Path) -> None:
    """File, line and reason of a malformed cell, a short row and an unknown model;
    one good row is enough to answer.
    """
    good = "a,s,g,llama-2-7b,rtx4090,qlora,512,ok,8000,"
    unknown = "d,s,g,llama-2-7bb,rtx4090,qlora,512,ok,8000,"
    path = write_rows(tmp_path, good, "b,s,g,llama-2-7b,rtx4090,qlora,512,ok,lots,", unknown)
    with Path(path).open("a", encoding="utf-8") as stream:
        stream.write("c,s\n")
    document = document_of(capsys, path)
    unread = document["unread"]
    assert isinstance(unread, list)
    assert [each.removeprefix(path)[:3] for each in unread] == [":3:", ":5:", ":4:"]
    assert [
        "peak_memory_mib" in unread[0],
        "2 cells" in unread[1],
        "unknown model 'llama-2-7bb'" in unread[2],
    ] == [True] * 3
    assert document["overall"]["n_rows"] == 1  # type: ignore[index]


def test_nothing_but_rows_that_cannot_be_used_is_exit_code_2(capsys: Captured, tmp_path: Path) -> None:
    """Both problems are told at once, with the nearest names."""
    message = refused(capsys, write_rows(tmp_path, "a,s,g,llama-2-7bb,rtx4090,qlora,512,ok,8000,"))
    assert "line 2: unknown model 'llama-2-7bb'" in message
    assert "llama-2-7b" in message.split("nearest", 1)[1]
    message = refused(capsys, write_rows(tmp_path, "a,s,g,llama-2-7b,rtx4090,magic,0,ok,lots,"))
    assert all(f"column '{name}'" in message for name in ("method", "seq_len", "peak_memory_mib"))


def test_rows_that_are_not_modelled_are_listed(capsys: Captured, tmp_path: Path) -> None:
    """They are counted with the reason; when nothing at all is modelled the exit code is 6."""
    good, bad = "a,s,g,llama-2-7b,rtx4090,qlora,512,ok,8000,", "b,s,g,llama-2-7b,rtx4090,qlora,512,ok,8000,2"
    (source,) = document_of(capsys, write_rows(tmp_path, good, bad))["sources"]  # type: ignore[misc]
    assert (source["n_rows"], source["not_modelled"], source["memory"]["n"]) == (2, 1, 1)
    assert source["not_modelled_rows"][0]["id"] == "b"
    assert "pipeline parallel" in source["not_modelled_rows"][0]["reason"]
    assert main(["validate", write_rows(tmp_path, bad)]) == 6
    assert "pipeline parallel of 2 is not modelled" in capsys.readouterr().out


def test_an_unfinished_last_line_is_reported(capsys: Captured, tmp_path: Path) -> None:
    """The line that a crash cut short is left out and said, in both forms."""
    path = tmp_path / "rows.jsonl"
    record = {
        "schema": "planner/record@1",
        "id": "a",
        "source": "s",
        "source_group": "g",
        "model": "llama-2-7b",
        "gpu": "rtx4090",
        "method": "qlora",
        "seq_len": 512,
        "outcome": "ok",
    }
    path.write_text(json.dumps(record) + '\n{"schema": "planner/rec', encoding="utf-8")
    assert main(["validate", str(path)]) == 0
    # A long path is folded over lines, so white space is left out of the comparison.
    assert f"Leftout:{path}:2" in "".join(capsys.readouterr().out.split())
    unread = document_of(capsys, str(path))["unread"]
    assert isinstance(unread, list)
    assert unread[0].startswith(f"{path}:2: ")


def test_the_schema_is_printed(capsys: Captured) -> None:
    """`plan schema validate` describes the document."""
    assert main(["schema", "validate"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["$id"] == "planner/validate@2"
    assert {"schema", "cv", "sources", "overall"} <= schema["properties"].keys()


def test_help_names_the_options(capsys: Captured) -> None:
    """`plan validate --help` explains the files and each option."""
    assert main(["validate", "--help"]) == 0
    out = capsys.readouterr().out
    assert "FILE" in out
    assert all(word in out for word in ("--rows", "--cv", "--format", "--json"))


def test_one_row_is_walked_through(capsys: Captured) -> None:
    """Measured against predicted, the mechanism that is known,
    then every term of the prediction with its formula.
    """
    assert main(["validate", ONE_FILE, "--explain", EXPLAINED]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Row {EXPLAINED}\n")
    assert "Measured against predicted\n" in out
    assert "driver" in out
    assert "GPU memory in GiB" in out


def test_a_walk_has_no_json_and_no_cross_validation(capsys: Captured) -> None:
    """What cannot be answered is refused, not answered otherwise; markdown is a text, too."""
    assert "--format markdown" in refused(capsys, ONE_FILE, "--explain", EXPLAINED, "--json")
    assert "leave --cv out" in refused(capsys, ONE_FILE, "--explain", EXPLAINED, "--cv", "source")
    assert main(["validate", ONE_FILE, "--explain", EXPLAINED, "--format", "markdown"]) == 0
    assert f"## Row {EXPLAINED}\n" in capsys.readouterr().out
    assert "leave one out" in refused(capsys, ONE_FILE, "--explain", EXPLAINED, "--history")


def test_an_unknown_row_is_named_with_its_neighbours(capsys: Captured) -> None:
    """A row that is not in the files is a usage error that lists the nearest ids."""
    assert main(["validate", ONE_FILE, "--explain", EXPLAINED + "x"]) == 2
    assert EXPLAINED in capsys.readouterr().err
