"""No input, however strange, makes anything but one of our own errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.domain.run_record import RunRecord
from planner.errors import PlannerError, UsageError
from planner.intake.given.fields import REQUEST_FIELDS
from planner.intake.given.request import from_flags, from_record, from_toml
from planner.intake.resolve import resolve
from planner.records import COLUMNS, RECORD_SCHEMA_ID, append_jsonl, read_records
from tests.jobs import resolved
from tests.planner.records.made import write_csv

T = TypeVar("T")
BASE: dict[str, object] = {"model": "7b", "method": "lora", "gpu": "4090", "seq": 1024}
RESOLVING = settings(max_examples=40)
IN_A_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

texts = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        [
            "nan",
            "-inf",
            "1e999",
            "0x10",
            "1_0",
            "9" * 500,
            "4090:2",
            "a:b",
            "../..",
            "~",
            "\0",
            "\ud800",
            "24GiB",
            "1e3",
        ]
    ),
)
scalars = st.one_of(texts, st.integers(), st.floats(), st.booleans(), st.none(), st.binary(max_size=8))
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner), st.dictionaries(st.text(max_size=5), inner, max_size=2)
    ),
    max_leaves=5,
)
names = st.sampled_from(sorted(REQUEST_FIELDS))


def attempt(call: Callable[[], T]) -> tuple[T | None, str]:
    """What ``call`` returns, or the message with which it refuses;
    anything but one of our errors goes on to the test.
    """
    try:
        return call(), ""
    except PlannerError as error:
        assert str(error).strip()  # noqa: PT017  (an empty message is never right)
        return None, str(error)


def plausible(name: str) -> st.SearchStrategy[object]:
    """Values that a field accepts, mostly: what gets past the parser must be survived further down."""
    field = REQUEST_FIELDS[name]
    if field.kind == "choice":
        return st.sampled_from(field.choices)
    if field.kind == "flag":
        return st.booleans()
    if field.kind == "integer":
        return st.integers(int(field.low or 1), int(field.high or 1))
    if field.kind == "number":
        return st.floats(field.low, field.high)
    if field.kind == "size":
        return st.integers(1, 10**7).map(lambda mib: f"{mib}MiB")
    return st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


@pytest.fixture(scope="module", autouse=True)
def no_network() -> Iterator[None]:
    """A model name such as ``a/b`` would be looked up on the Hub."""
    with patch("planner.catalog.hub.fetch_config", side_effect=UsageError("no network here")):
        yield


@given(st.dictionaries(st.one_of(names, st.text(max_size=12)), anything, max_size=4))
def test_flags_of_any_kind(flags: dict[str, object]) -> None:
    """Arbitrary names with arbitrary values are read or refused."""
    request, refusal = attempt(lambda: from_flags(flags))
    assert "\n" not in refusal
    assert request is None or set(request.values) <= set(REQUEST_FIELDS)


@given(names, anything)
def test_any_value_of_any_field(name: str, value: object) -> None:
    """A field's parser gives a value that it accepts again, or one of our errors of bounded length."""
    field = REQUEST_FIELDS[name]
    parsed, refusal = attempt(lambda: field.parse(value))
    assert len(refusal) < 1000
    assert refusal or field.parse(f"{parsed}B" if field.kind == "size" else parsed) == parsed


@RESOLVING
@given(st.data())
def test_any_accepted_values_resolve_or_are_refused(data: st.DataObject) -> None:
    """Any combination of accepted values becomes a scenario or one of our errors, with and without force.

    Of adapters nothing is recorded without them, and of one GPU no device_map.
    """
    chosen = data.draw(st.lists(names, max_size=8, unique=True))
    flags = BASE | {name: data.draw(plausible(name), name) for name in chosen}
    for force in (False, True):
        scenario, _ = attempt(lambda force=force: resolved(flags, force=force))
        if scenario is None:
            continue
        recorded = [entry.name for entry in scenario.assumptions]
        assert len(recorded) == len(set(recorded))
        assert {name for name in chosen if not name.endswith("_parallel")} - set(recorded) <= {
            "lora_rank", "lora_targets", "lora_dropout", "dora", "vera", "oft_block_size", "adapter_dtype",
            "modules_to_save", "device_map",
        }  # fmt: skip


@RESOLVING
@given(st.sampled_from(["model", "gpu", "host", "stack", "lora_targets", "modules_to_save"]), texts)
def test_any_name_is_found_or_unknown(name: str, text: str) -> None:
    """Names that are looked up in catalogs or read as paths raise nothing but our errors."""
    scenario, refusal = attempt(lambda: resolved(BASE | {name: text}, force=True))
    assert (scenario is None) == bool(refusal)


@IN_A_FOLDER
@given(st.binary(max_size=300))
def test_any_bytes_as_toml(tmp_path: Path, content: bytes) -> None:
    """A configuration file of arbitrary bytes is read or refused."""
    path = tmp_path / "job.toml"
    path.write_bytes(content)
    request, refusal = attempt(lambda: from_toml(path))
    assert request is not None or refusal.startswith(str(path))


@IN_A_FOLDER
@given(
    names,
    st.one_of(
        st.integers(),
        st.floats(),
        st.booleans(),
        st.text(st.characters(codec="utf-8"), max_size=20),
        st.lists(st.integers()),
    ),
)
def test_any_value_in_toml(tmp_path: Path, name: str, value: object) -> None:
    """Well-formed TOML with arbitrary values names file and line when it is refused."""
    path = tmp_path / "job.toml"
    written = json.dumps(value) if not isinstance(value, float) else repr(value)
    path.write_text(f"# a comment\n{name} = {written}\n", encoding="utf-8")
    request, refusal = attempt(lambda: from_toml(path))
    if request is None:
        assert refusal.startswith(f"{path}:2: ") or "not valid TOML" in refusal
    else:
        assert set(request.values) == {name}


@IN_A_FOLDER
@given(st.sampled_from(["x.csv", "x.jsonl"]), st.binary(max_size=300))
def test_any_bytes_as_records(tmp_path: Path, name: str, content: bytes) -> None:
    """A record file of arbitrary bytes is read, set aside or refused, never a traceback."""
    path = tmp_path / name
    path.write_bytes(content)
    result, refusal = attempt(lambda: read_records([path]))
    assert refusal.startswith(str(path)) if result is None else result.quarantined


@IN_A_FOLDER
@given(st.dictionaries(st.sampled_from(COLUMNS), st.text(max_size=20), max_size=6))
def test_any_cells_of_csv(tmp_path: Path, cells: dict[str, str]) -> None:
    """Arbitrary text in the cells of an otherwise valid row is read or refused by line and column."""
    row = {
        "id": "r",
        "source": "s",
        "source_group": "g",
        "model": "m",
        "gpu": "g",
        "method": "lora",
        "outcome": "ok",
    } | cells
    quoted = [json.dumps(row.get(name, ""), ensure_ascii=False).replace("\\", "") for name in COLUMNS]
    path = tmp_path / "x.csv"
    path.write_bytes((",".join(COLUMNS) + "\n" + ",".join(quoted) + "\n").encode("utf-8", "surrogatepass"))
    result, refusal = attempt(lambda: read_records([path]))
    assert refusal.startswith(str(path)) if result is None else len(result.records) == 1


@IN_A_FOLDER
@given(st.dictionaries(st.sampled_from((*COLUMNS, "raw", "schema", "other")), anything, max_size=6))
def test_any_values_of_jsonl(tmp_path: Path, values: dict[str, object]) -> None:
    """The same for a line of JSON, which has numbers, lists and objects too."""
    row = {
        "id": "r",
        "source": "s",
        "source_group": "g",
        "model": "m",
        "gpu": "g",
        "method": "lora",
        "outcome": "ok",
    } | values
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"schema": RECORD_SCHEMA_ID} | row, default=str) + "\n", encoding="utf-8")
    result, refusal = attempt(lambda: read_records([path]))
    assert (
        refusal.startswith(f"{path}:1: ")
        if result is None
        else len(result.records) + len(result.quarantined) == 1
    )


readable = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
listed = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\0;"), min_size=1, max_size=10), max_size=3
).map(tuple)
positive = st.floats(min_value=1e-6, max_value=1e6)
records = st.builds(
    RunRecord,
    id=readable.filter(lambda text: not text.startswith("#")),
    source=readable,
    source_group=readable,
    notes=st.none() | readable,
    model=readable,
    gpu=readable,
    nodes=st.none() | st.integers(1, 100),
    method=st.sampled_from(["full", "lora", "qlora", "int8"]),
    lora_targets=listed,
    versions=listed,
    optimizer=st.none() | readable,
    gradient_checkpointing=st.none() | st.booleans() | st.just("selective"),
    seq_len=st.none() | st.integers(1, 16_777_216),
    tokens_per_sample=st.none() | positive,
    outcome=st.sampled_from(["ok", "oom"]),
    peak_memory_mib=st.none() | positive,
    peak_memory_per_rank_mib=st.lists(positive, max_size=4).map(tuple),
    censored=st.none() | st.booleans(),
)


@IN_A_FOLDER
@given(st.lists(records, min_size=1, max_size=4, unique_by=lambda record: record.id))
def test_records_survive_a_round_trip(tmp_path: Path, rows: list[RunRecord]) -> None:
    """Whatever is written, with quotes, commas, line ends and any script,
    is read back equal from CSV and from JSONL.
    """
    table, lines = tmp_path / "x.csv", tmp_path / "y.jsonl"
    lines.unlink(missing_ok=True)
    write_csv(table, rows)
    for row in rows:
        append_jsonl(lines, row)
    assert read_records([table]).records == tuple(rows)
    assert read_records([lines]).records == tuple(rows)


@RESOLVING
@given(records)
def test_any_record_asks_a_question_or_is_refused(record: RunRecord) -> None:
    """A record that the reader accepts becomes a scenario or one of our errors."""
    scenario, refusal = attempt(lambda: resolve(from_record(record), force=True))
    assert (scenario is None) == bool(refusal)


@IN_A_FOLDER
@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_a_file_cut_anywhere_loses_one_line_at_most(tmp_path: Path, cut: int, salt: int) -> None:
    """Cutting a JSONL file at any byte keeps every complete line,
    and the next append makes it whole again.
    """
    path = tmp_path / "x.jsonl"
    path.unlink(missing_ok=True)
    minimal = RunRecord(
        id="a", source="s", source_group="g", model="m\u00e9", gpu="g", method="lora", outcome="ok"
    )
    rows = [minimal, *(RunRecord(**{**_fields(minimal), "id": f"{name}{salt}"}) for name in "bc")]
    for row in rows:
        append_jsonl(path, row)
    whole = path.read_bytes()
    kept = whole[: 1 + cut % len(whole)]
    path.write_bytes(kept)
    complete = kept.count(b"\n")
    survivors = read_records([path])
    assert len(survivors.records) in (complete, complete + 1)
    assert survivors.records == tuple(rows[: len(survivors.records)])
    late = RunRecord(**{**_fields(minimal), "id": "late"})
    append_jsonl(path, late)
    assert read_records([path]).records == (*survivors.records, late)


def _fields(record: RunRecord) -> dict[str, object]:
    return {name: getattr(record, name) for name in COLUMNS}
