"""The records of the other public sources say what the transcription of their tables says, row by row,
both ways.

The first half reads the transcription again and is skipped where it is not present;
the second half needs only the CSV files.
"""

from __future__ import annotations

import csv
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from planner.errors import NotModelledError
from planner.intake.given.request import from_record
from planner.intake.resolve import resolve
from planner.records import read_records
from tests.accuracy.published import published_dir

TRANSCRIPTION = Path(__file__).parents[2].parent / "shared" / "records" / "published_extra.csv"
SOURCES = tuple(sorted(path.stem for path in published_dir().glob("[a-z]*.csv")))
# Rows that came in columns, or were read from their tables later; their pages say what was decided.
ARRIVED_AS_RECORDS = {
    "accelerate_blog",
    "alignlab",
    "appworld_sft",
    "atorch_llama2",
    "axolotl_examples",
    "axolotl_lora_kernels",
    "axolotl_poc",
    "b01_nuna",
    "backpropagate",
    "burst_study",
    "caikit_llama",
    "can_i_finetune",
    "claw_nemotron",
    "colossalai",
    "crusoe_torchtitan",
    "cudnn_llama",
    "day21_lab",
    "deepseek_zero",
    "dgx_spark_stack",
    "firefly_v100",
    "fitcheck",
    "fms_accel_granite",
    "fms_accel_main",
    "fsdp_qlora",
    "halo",
    "lambda_405b",
    "lambda_torchtitan",
    "leverage_qwen35",
    "litgpt_config_hub",
    "litgpt_resource",
    "litgpt_thunder",
    "llama_recipes",
    "llm_chi",
    "llm_finetuning_bench",
    "llm_foundry_2",
    "llm_sequence_mi",
    "llm_training_lab",
    "megatron_bridge",
    "megatron_recipes",
    "neutrality_lora",
    "nntile",
    "odissei_torchtune",
    "peft_docs",
    "peft_experiments",
    "philschmid_2025",
    "post_training_lab",
    "prime_rl",
    "retail_agent",
    "smollm3_fsdp2",
    "soup_h100",
    "sovera",
    "stas_h200_b200",
    "surogate",
    "swift_megatron",
    "swift_train",
    "torchtitan_2025",
    "torchtitan_gb200",
    "torchtitan_h100",
    "transformers_b200",
    "trl_notebooks",
    "universal_trainer",
    "unsloth_notebooks",
    "vectorlm",
    "voidcode_audit",
    "vsa_llm",
    "zee_l4",
}
TRANSCRIBED = tuple(source for source in SOURCES if source not in ARRIVED_AS_RECORDS)
MIB = 2**20
# A source whose rates are the samples of one epoch over the time of both, and the sequences of a row in which
# texts are counted: data/published/swift_tuners.md.
OF_TWO_EPOCHS = "swift_tuners"
COUNTED_IN_TEXTS = {"swift_tuners-022": "7900"}
# What one unit of a table's memory column is, in bytes; the reasons are in data/published/README.md.
UNIT_BYTES = {
    "GiB": 2**30,
    "MiB": MIB,
    ("torchtune_readme", "GB"): 2**30,
    ("torchao_fp8", "GB"): 2**30,
    ("torchao_optim", "GB"): 10**9,
    ("automodel_mem", "GB"): 2**30,
    ("rasbt_speed", "GB"): 2**30,
    ("unsloth_readme", "MB"): MIB,
    ("llamafactory_via_unsloth", "GB"): 2**30,
    ("swift_scripts", "GB"): 2**30,
}
# Column of the record, and what one printed unit is in it; GPUs multiply rates that are printed per GPU.
RATES = {
    "samples/s": ("samples_per_s", 1.0),
    "tokens/s": ("tokens_per_s", 1.0),
    "tokens/s/gpu": ("tokens_per_s", 1.0),
    "min/1000samples": ("run_time_s", 60.0),
    "s (whole run)": ("run_time_s", 1.0),
    "min/epoch (2000 samples)": ("run_time_s", 60.0),
    "hours/epoch (2000 samples)": ("run_time_s", 3600.0),
    "s/epoch (wikitext-2)": ("run_time_s", 1.0),
}
# Groups of sources that share a repository, an author or a harness; every other source is its own.
GROUPS = {
    "daddyofadoggy": {"smollm3_fsdp2", "torchtitan_gb200"},
    "axolotl": {"axolotl_examples", "axolotl_lora_kernels"},
    "swift": {
        "swift_bench",
        "swift_bench_v1",
        "swift_megatron",
        "swift_scripts",
        "swift_train",
        "swift_tuners",
    },
    "pytorch": {
        "torchao_fp8",
        "torchao_optim",
        "torchtitan_2025",
        "torchtitan_a100",
        "torchtitan_h100",
        "torchtune_readme",
    },
    "nvidia-nemo": {"automodel_mem", "automodel_perf"},
    "unsloth": {"unsloth_notebooks", "unsloth_readme", "llamafactory_via_unsloth"},
    "fms-acceleration": {"fms_accel_main", "fms_accel_granite"},
    "litgpt": {"litgpt_config_hub", "litgpt_resource", "litgpt_thunder"},
    "llm-foundry": {"llm_foundry", "llm_foundry_2"},
}
MEASURED = (
    "peak_memory_mib",
    "host_memory_mib",
    "step_time_s",
    "samples_per_s",
    "tokens_per_s",
    "run_time_s",
)

Row = dict[str, str]


def record_rows(source: str) -> list[Row]:
    """Rows of one CSV file as text."""
    with (published_dir() / f"{source}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def left_out() -> dict[str, Any]:
    """The list of rows that are no records."""
    return tomllib.loads((published_dir() / "left_out.toml").read_text(encoding="utf-8"))


def transcription() -> dict[tuple[str, int], Row]:
    """Rows of the transcription by source and number within it;
    the test is skipped where it is not present.
    """
    if not TRANSCRIPTION.is_file():
        pytest.skip(f"{TRANSCRIPTION} is not present")
    rows: dict[tuple[str, int], Row] = {}
    counts: Counter[str] = Counter()
    with TRANSCRIPTION.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            counts[row["source_id"]] += 1
            rows[(row["source_id"], counts[row["source_id"]])] = row
    return rows


def records_with_origin() -> list[tuple[Row, Row]]:
    """Every record with the row of the transcription that it stands for."""
    origins = transcription()
    return [(record, origins[key_of(record)]) for source in TRANSCRIBED for record in record_rows(source)]


def key_of(record: Row) -> tuple[str, int]:
    """Source and number, from the id."""
    source, number = record["id"].rsplit("-", 1)
    return source, int(number)


def number_of_gpus(record: Row) -> int:
    """GPUs of the whole job."""
    return int(record["nodes"]) * int(record["gpus_per_node"])


# --- against the transcription ------------------------------------------------------------------------------


def test_every_row_is_a_record_or_is_listed_with_a_reason() -> None:
    """Numbers of records and of rows left out make up every source,
    without overlap and without inventions.
    """
    recorded = [key_of(record) for source in TRANSCRIBED for record in record_rows(source)]
    listed = [
        (entry["source"], number)
        for entry in left_out()["left_out"]
        if entry["source"] not in ARRIVED_AS_RECORDS
        for number in entry["rows"]
    ]
    assert Counter(recorded + listed) == Counter(transcription().keys())


def test_repeats_and_only_repeats_are_left_out_as_such() -> None:
    """What the transcription marks as printed twice is the row listed as a repeat."""
    listed = {
        (e["source"], number)
        for e in left_out()["left_out"]
        if e["reason"] == "repeat" and e["source"] not in ARRIVED_AS_RECORDS
        for number in e["rows"]
    }
    assert listed == {key for key, row in transcription().items() if "REPEAT" in row["notes"]}


def test_memory_is_the_printed_number_in_mib() -> None:
    """Peak memory is the printed number times its unit;
    the PEFT rows hold the 99th percentile of their notes.
    """
    for record, origin in records_with_origin():
        unit = origin["peak_mem_unit"]
        if record["source"] == "peft_metamath":
            match = re.search(r"reserved_99th=(\d+)", origin["notes"])
            assert match, record["id"]
            expected: float | None = int(match[1]) / MIB
        elif origin["peak_mem_value"]:
            size = UNIT_BYTES.get(unit) or UNIT_BYTES[(record["source"], unit)]
            expected = float(origin["peak_mem_value"]) * size / MIB
        else:
            expected = None
        found = float(record["peak_memory_mib"]) if record["peak_memory_mib"] else None
        assert found == (None if expected is None else pytest.approx(expected, rel=1e-6)), record["id"]


def test_throughput_is_the_printed_number() -> None:
    """Rates and times are the printed numbers; rates per GPU are multiplied by the GPUs, those of one epoch
    in the time of two by two; nothing else is filled in.
    """
    for record, origin in records_with_origin():
        filled = {name: float(record[name]) for name in MEASURED[2:] if record[name]}
        printed = origin["throughput_value"].lstrip("~")
        if not printed or record["outcome"] == "oom":
            assert filled == {}, record["id"]
            continue
        column, factor = RATES[origin["throughput_unit"]]
        factor *= number_of_gpus(record) if origin["throughput_unit"].endswith("/gpu") else 1
        if record["source"] == OF_TWO_EPOCHS:
            samples, seconds = re.findall(r"([\d.]+) samples/([\d.]+) seconds", record["notes"])[0]
            if record["id"] not in COUNTED_IN_TEXTS:
                assert float(printed) == pytest.approx(float(samples) / float(seconds), abs=0.006), record[
                    "id"
                ]
            samples = COUNTED_IN_TEXTS.get(record["id"], samples)
            assert filled == {column: pytest.approx(2 * float(samples) / float(seconds), rel=1e-3)}, record[
                "id"
            ]
            continue
        assert filled == {column: pytest.approx(float(printed) * factor, rel=1e-6)}, record["id"]


def test_batch_length_and_gpus_are_the_printed_numbers() -> None:
    """Batch, accumulation, length, nodes and GPUs agree wherever the transcription has a number."""
    pairs = {
        "micro_batch": "micro_batch",
        "grad_accum": "grad_accum",
        "seq_len": "seq_len",
        "nodes": "n_nodes",
        "gpus_per_node": "gpus_per_node",
    }
    for record, origin in records_with_origin():
        for column, original in pairs.items():
            if origin[original].isdigit():
                assert record[column] == origin[original], (record["id"], column)


def test_outcome_place_and_checkpointing_are_those_of_the_row() -> None:
    """Out of memory, checkpointing off, repository, file, date and table agree."""
    for record, origin in records_with_origin():
        assert (record["outcome"] == "oom") == (origin["oom"] == "yes"), record["id"]
        if origin["grad_checkpointing"] == "no":
            assert record["gradient_checkpointing"] == "false", record["id"]
        for part in ("source_repo", "source_path", "commit_or_date", "table_name"):
            assert origin[part] in record["locator"], record["id"]


def test_grades_are_never_better_than_transcribed() -> None:
    """A choice of ours can lower a grade and never raise it."""
    for record, origin in records_with_origin():
        match = re.search(r"grade=([ABC])", origin["notes"])
        assert match, record["id"]
        assert record["grade"] >= match[1], record["id"]


# --- the files alone ----------------------------------------------------------------------------------------


def test_reasons_are_those_of_the_short_list() -> None:
    """Every reason for leaving rows out is named in the list at the top, and every named one is used."""
    content = left_out()
    assert content.keys() == {"reasons", "left_out"}
    assert {entry["reason"] for entry in content["left_out"]} == set(content["reasons"])
    assert all(
        set(entry) <= {"source", "reason", "detail", "rows"} and entry["rows"]
        for entry in content["left_out"]
    )


@pytest.mark.parametrize("source", SOURCES)
def test_rows_measure_something_once(source: str) -> None:
    """Ids are unique and in order, each row has a number or ran out of memory,
    and says where it stands and what was inferred.
    """
    rows = record_rows(source)
    keys = [key_of(row) for row in rows]
    assert keys == sorted(set(keys))
    assert {row["source"] for row in rows} == {source}
    for row in rows:
        assert any(row[name] for name in MEASURED) or row["outcome"] != "ok", row["id"]
        assert row["locator"], row["id"]
        assert row["grade"] in ("A", "B", "C"), row["id"]
        assert row["notes"], row["id"]
        assert bool(row["memory_kind"] or row["peak_memory_mib"]) is bool(row["peak_memory_mib"]), row["id"]


def test_sources_that_share_an_origin_are_one_group() -> None:
    """Repository, author and harness decide what is held out together;
    Qwen-VL's relatives stay with document 002.
    """
    groups: dict[str, set[str]] = {}
    for source in SOURCES:
        for row in record_rows(source):
            groups.setdefault(row["source_group"], set()).add(source)
    assert {name: members for name, members in groups.items() if len(members) > 1} == GROUPS


def test_nearly_full_cards_are_censored() -> None:
    """A reading above 93 % of what the card makes visible is marked, and no other."""
    records = (
        record for source in SOURCES for record in read_records([published_dir() / f"{source}.csv"]).records
    )
    for record in records:
        if record.peak_memory_mib is None:
            continue
        try:
            visible = resolve(from_record(record), force=True).hardware.gpu.visible_memory_bytes
        except NotModelledError:
            continue
        full = visible is not None and record.peak_memory_mib * MIB > 0.93 * visible
        assert record.censored is full, record.id


@pytest.mark.parametrize("source", SOURCES)
def test_every_record_resolves_or_says_what_is_not_modelled(source: str) -> None:
    """Names of models, cards and stacks are known; nothing ends in another error than 'not modelled'."""
    reasons = []
    for record in read_records([published_dir() / f"{source}.csv"]).records:
        try:
            resolve(from_record(record), force=True)
        except NotModelledError as error:
            reasons.append(str(error))
    assert all(reasons)
