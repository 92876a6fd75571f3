"""Run records: what the readers accept, what they refuse and with which words,
and that nothing is lost on the way.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import os
from dataclasses import fields, replace
from pathlib import Path

import pytest

from planner.catalog.location import data_dir
from planner.domain.run_record import RunRecord
from planner.errors import InputFileError, UsageError
from planner.records import (
    COLUMNS,
    RECORD_SCHEMA_ID,
    append_jsonl,
    parsing,
    read_records,
)
from planner.units import MIB
from tests.files import written
from tests.planner.records.made import write_csv

PUBLISHED = data_dir() / "published"
MINIMAL = RunRecord(
    id="r1", source="s", source_group="g", model="llama-2-7b", gpu="rtx4090", method="lora", outcome="ok"
)
FULL = RunRecord(
    id="r2",
    source="s",
    source_group="g",
    locator="table 1, row 2",
    grade="A",
    notes='a "quoted" word, a comma,\nand a second line',
    use="loop_time",
    model="qwen-7b",
    gpu="a100-80-sxm",
    host="server-256g",
    link="nvlink",
    nodes=2,
    gpus_per_node=8,
    method="lora",
    quantization="nf4",
    double_quant=True,
    quant_storage="bf16",
    load_dtype="bf16",
    precision="bf16-mixed",
    adapter_dtype="fp32",
    lora_rank=64,
    lora_targets=("c_attn", "c_proj"),
    train_layers=("last:8", "norm"),
    dora=True,
    oft_block_size=32,
    vera=True,
    optimizer_in_backward=True,
    optimizer_rank=128,
    fp8="rowwise",
    qat="int8-int4",
    qat_group=32,
    lora_dropout=0.05,
    modules_to_save=("wte", "lm_head"),
    optimizer="adamw_apex_fused",
    sharding="zero3",
    offload="optimizer+params",
    tensor_parallel=1,
    pipeline_parallel=1,
    context_parallel=1,
    replicas=2,
    hpz=8,
    expert_parallel=1,
    expert_tensor_parallel=1,
    gradient_checkpointing="selective",
    checkpoint_reentrant=False,
    attention="flash2",
    loss="hf",
    micro_batch=1,
    grad_accum=8,
    seq_len=2048,
    padding="longest",
    tokens_per_sample=724.9627272727273,
    stack="qwen-finetune",
    versions=("torch==2.0", "cuda==11.8"),
    switches=("kbit_upcast=none", "drops_long_samples=false"),
    outcome="oom",
    phase_reached="backward",
    peak_memory_mib=24187.9375,
    peak_memory_per_rank_mib=(24331.9375, 24187.9375),
    memory_kind="driver",
    memory_scope="per_gpu",
    censored=True,
    step_time_s=1.5,
    samples_per_s=0.1,
    tokens_per_s=474.11,
    padded_tokens_per_s=1e3,
    n_samples=1100,
    epochs=3.0,
    eval_samples=200,
    eval_micro_batch=4,
    peak_memory_percentile=99.0,
    memory_limit_mib=24576.0,
    checkpoint_every=2,
    checkpoint_policy="selective-op",
    task="dpo",
    run_time_s=12920.0,
    host_memory_mib=131072.0,
    host_memory_kind="rss_peak",
    host_memory_scope="process",
)


def csv_text(*rows: dict[str, str], columns: tuple[str, ...] = COLUMNS) -> str:
    """A CSV file of rows that state the required cells and what is given."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="")
    writer.writeheader()
    required = {
        "source": "s",
        "source_group": "g",
        "model": "m",
        "gpu": "g",
        "method": "lora",
        "outcome": "ok",
    }
    for number, row in enumerate(rows):
        writer.writerow({"id": f"r{number}", **required, **row})
    return text.getvalue()


def refusal(path: Path, content: str | bytes) -> str:
    """The message with which a file of this content is refused."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputFileError) as caught:
        read_records([path])
    assert str(caught.value).startswith(str(path))
    return str(caught.value).removeprefix(str(path))


def json_line(**values: object) -> str:
    """A line of JSONL of the minimal record with some values changed."""
    data = {
        "schema": RECORD_SCHEMA_ID,
        "id": "r1",
        "source": "s",
        "source_group": "g",
        "model": "m",
        "gpu": "g",
    }
    return json.dumps(data | {"method": "lora", "outcome": "ok"} | values) + "\n"


@pytest.mark.parametrize("name", ["records.csv", "records.jsonl"])
def test_what_is_written_is_read_back(tmp_path: Path, name: str) -> None:
    """A record with every column set and one with only the required ones survive a round trip unchanged."""
    path = tmp_path / name
    if name.endswith("csv"):
        write_csv(path, [MINIMAL, FULL])
    else:
        append_jsonl(path, MINIMAL)
        append_jsonl(path, FULL)
    result = read_records([path])
    assert result.records == (MINIMAL, FULL)
    assert result.files == (str(path),)
    assert result.places["r1"] == f"{path}:{2 if name.endswith('csv') else 1}"
    assert not result.quarantined


def test_the_full_example_sets_every_column() -> None:
    """The round trip covers a value other than blank for each column."""
    assert [field.name for field in fields(RunRecord) if getattr(FULL, field.name) in (None, ())] == []


@pytest.mark.skipif(not list(PUBLISHED.glob("*.csv")), reason="no published rows in this checkout")
def test_published_rows_are_read_by_a_pattern() -> None:
    """Patterns that the shell did not expand are expanded, and every published file holds valid records."""
    result = read_records([str(PUBLISHED / "*.csv")])
    assert set(result.files) == {str(path) for path in PUBLISHED.glob("*.csv")}
    assert len(result.records) >= len(result.files)
    assert all(record.outcome for record in result.records)


def test_a_file_that_two_patterns_match_is_read_once(tmp_path: Path) -> None:
    """Naming a file twice is no duplicate of its ids."""
    write_csv(tmp_path / "a.csv", [MINIMAL])
    assert len(read_records([str(tmp_path / "*.csv"), tmp_path / "a.csv"]).records) == 1


def test_a_file_whose_name_has_a_wildcard_is_read(tmp_path: Path) -> None:
    """An existing file is meant literally although its name looks like a pattern."""
    write_csv(tmp_path / "a[1].csv", [MINIMAL])
    assert read_records([tmp_path / "a[1].csv"]).records == (MINIMAL,)


@pytest.mark.parametrize("name", ["none-*.csv", "none.csv", "."])
def test_what_names_no_file_is_reported(tmp_path: Path, name: str) -> None:
    """A pattern without a match, a missing file and a folder are said, not ignored."""
    with pytest.raises(InputFileError, match=r"no file matches|no such file|must end in"):
        read_records([str(tmp_path / name)])


def test_a_pattern_without_files_is_reported_beside_files_that_exist(tmp_path: Path) -> None:
    """A folder without measurements yet must not stop the reading of the others,
    nor be passed over in silence.
    """
    nothing, table = tmp_path / "*" / "*.jsonl", tmp_path / "a.csv"
    write_csv(table, [MINIMAL])
    read = read_records([table, nothing], by_row=True)
    assert read.records == (MINIMAL,)
    assert [(each.place, each.rule) for each in read.quarantined] == [(str(nothing), "no_file")]
    with pytest.raises(InputFileError, match="no file matches"):
        read_records([table, nothing])
    with pytest.raises(InputFileError, match="no file matches"):
        read_records([nothing], by_row=True)


def test_no_path_at_all_is_reported() -> None:
    """An empty list of paths is a mistake of the caller, not zero records."""
    with pytest.raises(InputFileError, match="no file is named"):
        read_records([])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", ": the file is empty"),
        (b"\n\n", ": no header line"),
        (",".join(COLUMNS), ": no rows"),
        (b"id,source\nr\xff,s\n", ":2: not UTF-8 text"),
        (b"id,\0source\n", ":1: holds a NUL byte"),
        ("id,colour\n", ":1: unknown column 'colour'"),
        ("id,source,source_group,model,method,outcome\n", ":1: missing column 'gpu'"),
        (
            "id,colour,size\n",
            (
                ":1: unknown column 'colour'; unknown column 'size'; missing column 'source'; missing "
                "column 'source_group'"
            ),
        ),
        (csv_text({}).replace("outcome,", "outcome,outcome,", 1), ":1: column 'outcome' occurs twice"),
        (csv_text({}) + "r9,too,short\n", f":3: 3 cells, but the header has {len(COLUMNS)} columns"),
        (csv_text({}) + '"never closed', ":3: not valid CSV"),
        (csv_text({}, {"id": "r0"}), ":3: the id 'r0' is already that of"),
        (csv_text({"notes": "two\nlines"}, {"model": ""}), ":4: column 'model' is missing or blank"),
    ],
)
def test_broken_csv_is_refused_with_its_line(tmp_path: Path, content: str | bytes, problem: str) -> None:
    """Each way in which a CSV file can be broken has a message with the line."""
    assert refusal(tmp_path / "x.csv", content).startswith(problem)


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("seq_len", "0"),
        ("seq_len", "-1"),
        ("seq_len", "16777217"),
        ("seq_len", "10.5"),
        ("seq_len", "1e3"),
        ("seq_len", "9" * 5000),
        ("micro_batch", "nan"),
        ("nodes", "100001"),
        ("lora_dropout", "1.5"),
        ("lora_dropout", "-0.1"),
        ("peak_memory_mib", "nan"),
        ("peak_memory_mib", "inf"),
        ("peak_memory_mib", "-5"),
        ("peak_memory_mib", "0"),
        ("peak_memory_mib", "1e300"),
        ("peak_memory_mib", "1e999"),
        ("peak_memory_per_rank_mib", "5;nan"),
        ("peak_memory_per_rank_mib", "5;;6"),
        ("step_time_s", "0"),
        ("epochs", "many"),
        ("censored", "perhaps"),
        ("gradient_checkpointing", "some"),
        ("method", "magic"),
        ("grade", "D"),
        ("outcome", "fine"),
        ("phase_reached", "lunch"),
        ("memory_kind", "ram"),
    ],
)
def test_a_cell_out_of_range_is_refused_by_name(tmp_path: Path, column: str, cell: str) -> None:
    """Wrong types, closed lists and numbers that are negative, zero, NaN, infinite or huge name line,
    column and value.
    """
    message = refusal(tmp_path / "x.csv", csv_text({}, {column: cell}))
    assert message.startswith(f":3: column '{column}': ")
    assert len(message) < 400


def test_a_file_above_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Size is checked before anything is parsed."""
    monkeypatch.setattr(parsing, "MAX_RECORD_FILE_BYTES", 1000)
    assert "larger than the limit of 1000 B" in refusal(tmp_path / "x.csv", csv_text({"notes": "x" * 1000}))


def test_an_unfinished_last_line_is_set_aside_and_reported(tmp_path: Path) -> None:
    """A crash in the middle of a line, even of a character, loses no other record."""
    path = tmp_path / "x.jsonl"
    append_jsonl(path, MINIMAL)
    with path.open("ab") as stream:
        stream.write('{"schema": "é'.encode()[:-1])
    result = read_records([path])
    assert result.records == (MINIMAL,)
    assert [(torn.path, torn.line) for torn in result.quarantined] == [(str(path), 2)]


def test_appending_after_a_crash_keeps_the_file_readable(tmp_path: Path) -> None:
    """The unfinished line moves to a file beside, and the next record begins on a line of its own."""
    path = tmp_path / "x.jsonl"
    append_jsonl(path, MINIMAL)
    with path.open("ab") as stream:
        stream.write(b'{"id": "half' + b"x" * 100_000)
    append_jsonl(path, FULL)
    assert read_records([path]).records == (MINIMAL, FULL)
    assert (tmp_path / "x.jsonl.torn").read_bytes().startswith(b'{"id": "half')


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of which the disk took only a part is taken back."""
    path = tmp_path / "x.jsonl"
    append_jsonl(path, MINIMAL)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(InputFileError, match="No space left on device"):
            append_jsonl(path, FULL)
    assert path.read_bytes() == before
    append_jsonl(path, FULL)
    assert read_records([path]).records == (MINIMAL, FULL)


def test_appending_to_a_whole_line_without_newline(tmp_path: Path) -> None:
    """A last line that is complete but for its newline is kept as a record."""
    path = written(tmp_path, json_line(id="whole").rstrip("\n"), "x.jsonl")
    append_jsonl(path, FULL)
    assert [record.id for record in read_records([path]).records] == ["whole", "r2"]
    assert not (tmp_path / "x.jsonl.torn").exists()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("\n \n", ": holds no records"),
        ("{]\n" + json_line(), ":1: not valid JSON"),
        ("[1]\n" + json_line(), ":1: a record must be a JSON object"),
        (
            json_line(schema="planner/record@2"),
            ":1: the schema 'planner/record@2' is newer than 'planner/record@1'",
        ),
        (json_line(schema=None), ":1: the schema is missing"),
        (json_line() + json_line(id="r2", colour="red"), ":2: unknown column 'colour'"),
        (json_line(model=None), ":1: column 'model' is missing or blank"),
        (
            json_line(seq_len=0),
            ":1: column 'seq_len': input should be greater than or equal to 1, but it is 0",
        ),
        (json_line(seq_len="1024"), ":1: column 'seq_len': input should be a valid integer"),
        (json_line(seq_len=True), ":1: column 'seq_len'"),
        (json_line(seq_len=10**3000) + json_line(), ":1: not valid JSON: a number of more than 300 digits"),
        (json_line(lora_targets="q_proj"), ":1: column 'lora_targets'"),
        (json_line(lora_targets=["a;b"]), ":1: column 'lora_targets'"),
        (json_line(notes="a\0b"), ":1: column 'notes'"),
        (json_line(notes="\ud800"), ":1: column 'notes'"),
        (json_line() + json_line(), ":2: the id 'r1' is already that of"),
        (
            json_line(id="r0", step_time_s=float("nan")) + json_line(),
            ":1: not valid JSON: 'NaN' is not a number",
        ),
        (
            '{"id": 1, "id": 2}\n' + json_line(),
            ":1: not valid JSON: a name is given twice in one object at character 11",
        ),
        ("[" * 100_000 + "\n" + json_line(), ":1: not valid JSON: nested too deeply"),
    ],
)
def test_broken_jsonl_is_refused_with_its_line(tmp_path: Path, content: str, problem: str) -> None:
    """Each way in which a JSONL file can be broken, but for its last line, has a message with the line."""
    assert refusal(tmp_path / "x.jsonl", content).startswith(problem)


def test_raw_values_and_environment_travel_with_a_record(tmp_path: Path) -> None:
    """What JSONL carries beside the columns comes back by record id."""
    path = tmp_path / "x.jsonl"
    environment = {"machine": "m", "os": "Linux 6", "python": "3.11.2", "cpu": "x", "host_memory_bytes": 1}
    extra = {"environment": environment, "quality": {"verdict": "doubtful", "reasons": ["too few steps"]}}
    append_jsonl(path, MINIMAL, extra)
    assert read_records([path]).attachments == {"r1": extra}


def test_what_travels_with_a_record_has_a_schema_too(tmp_path: Path) -> None:
    """An unknown key in the readings is refused with its place in the line."""
    path = tmp_path / "x.jsonl"
    append_jsonl(path, MINIMAL)
    line = json.loads(path.read_text(encoding="utf-8")) | {"quality": {"verdict": "good", "colour": 1}}
    path.write_text(json.dumps(line) + "\n", encoding="utf-8")
    with pytest.raises(InputFileError, match=r"quality\.colour"):
        read_records([path])


@pytest.mark.parametrize(
    "attempt",
    [
        lambda path: append_jsonl(path, replace(MINIMAL, seq_len=0)),
        lambda path: append_jsonl(path, MINIMAL, {"colour": 1}),
        lambda path: append_jsonl(path, MINIMAL, {"raw": float("nan")}),
        lambda path: append_jsonl(path, MINIMAL, {"raw": object()}),
        lambda path: append_jsonl(path, replace(MINIMAL, notes="\ud800")),
        lambda path: append_jsonl(path, replace(MINIMAL, versions=("a;b",))),
    ],
)
def test_what_could_not_be_read_back_is_not_written(tmp_path: Path, attempt: object) -> None:
    """A record outside the schema is refused before the file is touched."""
    path = tmp_path / "x"
    assert callable(attempt)
    with pytest.raises(UsageError):
        attempt(path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    """Writing where no folder is names the file instead of raising an OSError."""
    with pytest.raises(InputFileError, match="cannot be written"):
        append_jsonl(tmp_path / "none" / "x", MINIMAL)


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl"])
def test_lines_without_end_are_refused(tmp_path: Path, name: str) -> None:
    """Millions of empty lines are not even counted to their end."""
    assert "more than 200,000 lines" in refusal(tmp_path / name, b"\n" * 4 * MIB)


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl"])
def test_a_mark_of_some_editors_is_no_text(tmp_path: Path, name: str) -> None:
    """Files that begin with the mark of UTF-8 are read as others."""
    path = tmp_path / name
    content = csv_text({}) if name.endswith("csv") else json_line()
    path.write_text("\ufeff" + content, encoding="utf-8")
    assert len(read_records([path]).records) == 1


def test_one_problem_of_many_lines_is_told_once(tmp_path: Path) -> None:
    """A file that is no text, with its first line and how many more there are."""
    path = tmp_path / "runs.jsonl"
    path.write_bytes(b"\xff\xfe\n" * 30)
    with pytest.raises(InputFileError, match=r"no record is left: line 1 and 28 more: [^;]*; line 30: "):
        read_records([path], by_row=True)
