"""The rows of the numbered documents agree with themselves: one unit, one place, one story,
whatever was mistyped would show.

The expected values are relations between cells of a row, of a table and of its locator,
not copies of the cells.
"""

from __future__ import annotations

import csv
import itertools
from collections import Counter

from planner.catalog.gpus import load_gpu
from planner.catalog.location import data_dir
from planner.units import MIB
from planner.words import words

PUBLISHED = data_dir() / "published"
SOURCES = sorted(path.stem for path in PUBLISHED.glob("00[0-4]_*.csv"))
MEASURED = words(
    """
    peak_memory_mib peak_memory_per_rank_mib step_time_s samples_per_s tokens_per_s padded_tokens_per_s
    run_time_s
    """
)

Record = dict[str, str]


def read_source(start: str) -> list[Record]:
    """All rows of the CSV file whose name starts so."""
    (path,) = PUBLISHED.glob(f"{start}*.csv")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def all_rows() -> list[Record]:
    """All rows of all numbered documents."""
    return [row for source in SOURCES for row in read_source(source)]


def test_every_row_stands_in_the_file_of_its_document() -> None:
    """The column and the name of the file agree, and no file is empty."""
    assert len(SOURCES) == 4
    assert all({row["source"] for row in read_source(source)} == {source} for source in SOURCES)


def test_ids_are_unique() -> None:
    """No identifier appears twice, within or across files,
    and each starts with the number of its document.
    """
    rows = all_rows()
    assert [name for name, count in Counter(row["id"] for row in rows).items() if count > 1] == []
    assert all(row["id"].split("-")[0] == row["source"].split("_")[0] for row in rows)


def test_no_two_rows_are_the_same_measurement() -> None:
    """No two rows share configuration and numbers: what a document repeats is kept once."""
    described = {"id", "source", "locator", "grade", "notes"}
    keys = Counter(tuple(value for name, value in row.items() if name not in described) for row in all_rows())
    assert max(keys.values()) == 1


def test_numbers_are_positive_numbers() -> None:
    """Every number parses and is above zero; counts are whole."""
    whole = ("nodes", "gpus_per_node", "lora_rank", "micro_batch", "grad_accum", "seq_len", "n_samples")
    rows = all_rows()
    for row in rows:
        for name in (*MEASURED, "tokens_per_sample", "epochs", "host_memory_mib", "lora_dropout"):
            assert all(float(part) > 0 for part in row[name].split(";") if part), (row["id"], name)
        for name in whole:
            assert row[name] == "" or int(row[name]) > 0, (row["id"], name)
        for name in ("nodes", "gpus_per_node", "micro_batch", "seq_len"):
            assert row[name], (row["id"], name)


def test_every_row_says_where_it_stands_and_what_was_inferred() -> None:
    """Locator and notes are filled,
    and no two rows share a locator unless the locator is a cell with two runs or a sentence.
    """
    rows = all_rows()
    assert all(row["locator"] and row["notes"] and row["source_group"] for row in rows)
    shared = {
        place
        for place, count in Counter((row["source"], row["locator"]) for row in rows).items()
        if count > 1
    }
    assert shared == {
        ("001_df5137ba138920bd", "table 4 row 3 (line 99)"),
        ("002_2c959ab425c28846", "text before the table (line 15)"),
    }


def test_out_of_memory_rows_have_no_measurement_and_others_have_one() -> None:
    """An out-of-memory row carries no memory, time or rate; every other row carries at least one."""
    rows = all_rows()
    for row in rows:
        filled = [name for name in (*MEASURED, "memory_kind", "memory_scope", "censored") if row[name]]
        filled += ["host_memory_mib"] if row["host_memory_kind"] == "rss_mark" else []
        assert (filled == []) is (row["outcome"] == "oom"), (row["id"], filled)
    assert {row["outcome"] for row in rows} == {"ok", "oom"}


def test_memory_has_kind_scope_and_verdict_about_the_limit() -> None:
    """Memory comes with its kind, its scope and a word on censoring,
    and none of the three comes without memory.
    """
    for row in all_rows():
        device = {bool(row[name]) for name in ("peak_memory_mib", "memory_kind", "memory_scope", "censored")}
        host = {bool(row[name]) for name in ("host_memory_mib", "host_memory_kind", "host_memory_scope")}
        assert (len(device), len(host)) == (1, 1), row["id"]
        if row["memory_scope"] == "all_gpus":
            assert int(row["nodes"]) * int(row["gpus_per_node"]) > 1, row["id"]


def test_peak_is_the_largest_of_the_ranks() -> None:
    """Where ranks are listed there is one reading a GPU, and the peak is the largest."""
    listed = [row for row in all_rows() if row["peak_memory_per_rank_mib"]]
    assert listed
    for row in listed:
        readings = [float(part) for part in row["peak_memory_per_rank_mib"].split(";")]
        assert len(readings) == int(row["nodes"]) * int(row["gpus_per_node"])
        assert float(row["peak_memory_mib"]) == max(readings)
        assert row["memory_scope"] == "per_gpu"


def test_censoring_is_above_93_percent_of_what_cuda_shows() -> None:
    """A row is censored exactly when one GPU holds more than 93 % of the memory CUDA shows of its card,
    beside what the driver keeps where the meter counts that.
    """
    verdicts: Counter[str] = Counter()
    for row in all_rows():
        card = load_gpu(row["gpu"])
        visible_bytes = card.visible_memory_bytes
        if row["peak_memory_mib"] and visible_bytes is not None:
            gpus = int(row["nodes"]) * int(row["gpus_per_node"]) if row["memory_scope"] == "all_gpus" else 1
            kept = card.driver_keeps_bytes if row["memory_kind"] == "board" else 0
            assert kept is not None, row["id"]
            full = (float(row["peak_memory_mib"]) * MIB / gpus - kept) / visible_bytes
            assert (row["censored"] == "true") is (full > 0.93), row["id"]
            assert full < 1.02, f"{row['id']} holds more than its card has: wrong unit or scope"
            verdicts[row["censored"]] += 1
    assert set(verdicts) == {"true", "false"}


def test_ids_follow_locators() -> None:
    """An identifier repeats the first table and row of its locator (and the column,
    where one line holds many rows).
    """
    for row in all_rows():
        number, place, *rest = row["id"].split("-")
        if place == "text":
            assert row["locator"].startswith("text"), row["id"]
            assert rest[0] in {"oom", "load"}, row["id"]
        elif rest[0].startswith("stage"):
            assert row["locator"].startswith(f"table {place[1:]} column {rest[0]}, "), row["id"]
        else:
            assert row["locator"].startswith(
                f"table {place[1:]} row {int(rest[0][1:].rstrip('ab'))} (line "
            ), row["id"]
            assert (len(rest) == 2) is (number == "002"), row["id"]
            assert number != "002" or (
                rest[1] == f"s{int(row['seq_len']):04d}"
                and row["locator"].endswith(f"column {row['seq_len']}")
            )


def test_lengths_are_full_except_where_the_notes_say_so() -> None:
    """Real tokens per sample equal the length in 002 and 003;
    in 003 they are blank at 2048 and on the int8 table.
    """
    for row in (*read_source("002"), *read_source("003")):
        unknown = row["quantization"] == "int8" or (
            row["source"].startswith("003") and row["seq_len"] == "2048"
        )
        assert row["tokens_per_sample"] == ("" if unknown else row["seq_len"]), row["id"]


def test_004_runs_use_two_gpus_and_loads_one() -> None:
    """Training ran on both cards with checkpointing;
    the load peaks are of runs on one card that train nothing.
    """
    for row in read_source("004"):
        training = "stage" in row["id"]
        assert row["gpus_per_node"] == ("2" if training else "1"), row["id"]
        assert row["gradient_checkpointing"] == ("true" if training else "false"), row["id"]
        assert (row["phase_reached"] in ("", "optimizer_step")) is training, row["id"]
        assert row["epochs"] == ("1" if training else ""), row["id"]


def test_adapter_and_quantisation_columns_agree_with_the_method() -> None:
    """Full fine-tuning has neither adapters nor a quantised base; only 001's nf4 rows quantise twice."""
    for row in all_rows():
        if row["method"] == "full":
            adapter = [
                row[name]
                for name in ("lora_rank", "lora_targets", "lora_dropout", "modules_to_save", "adapter_dtype")
            ]
            assert (adapter, row["quantization"]) == ([""] * 5, "none"), row["id"]
        said = row["quantization"] == "nf4" and row["source"].startswith("001")
        assert row["double_quant"] == ("true" if said else ""), row["id"]


def test_several_gpus_are_always_sharded_or_replicated() -> None:
    """A row on more than one GPU names how they share the work;
    offload of parameters goes only with ZeRO-3.
    """
    for row in all_rows():
        if int(row["nodes"]) * int(row["gpus_per_node"]) > 1:
            assert row["sharding"] != "none", row["id"]
        if "params" in row["offload"]:
            assert row["sharding"] == "zero3", row["id"]


def test_001_rate_and_run_time_tell_the_same_story() -> None:
    """Samples per second is samples over run time,
    within the rounding of both (the run time is cut to whole seconds).
    """
    rows = [row for row in read_source("001") if row["samples_per_s"]]
    assert rows
    for row in rows:
        run_time, samples = float(row["run_time_s"]), float(row["n_samples"])
        assert samples / (run_time + 1) - 6e-4 <= float(row["samples_per_s"]) <= samples / run_time + 6e-4, (
            row["id"]
        )


def test_002_memory_and_time_grow_with_length() -> None:
    """Along a row of the table memory (to 2 %) and step time do not fall as sequences get longer:
    a misplaced cell would.
    """
    key = ("model", "method", "modules_to_save", "quantization", "nodes")
    measured = sorted(
        (row for row in read_source("002") if row["outcome"] == "ok"),
        key=lambda row: ([row[name] for name in key], int(row["seq_len"])),
    )
    for short, long in itertools.pairwise(measured):
        if all(short[name] == long[name] for name in key):
            assert float(long["step_time_s"]) >= float(short["step_time_s"]), long["id"]
            assert float(long["peak_memory_mib"]) >= 0.98 * float(short["peak_memory_mib"]), long["id"]
