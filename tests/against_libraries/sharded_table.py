"""Sharded jobs: the step program against the dry run, where the engines' own code runs.  This script writes
the dry runs to ``data/differential/sharded.csv``.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from planner.catalog.location import data_dir
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.replayed import ReplayedProgram, replayed, run_of
from planner.program.job import job_of
from planner.words import words
from tests.jobs import resolved

KEY = words(
    """
    model method sharding gpus offload grad_accum gradient_checkpointing batch seq quant_storage nodes hpz
    quantized
    """
)
COLUMNS = (
    *KEY,
    "trace_bytes",
    "trace_phase",
    "trace_reserved_bytes",
    "trace_phases_bytes",
    "mechanism",
)
Row = dict[str, str]
CARD = "a100-80-sxm"
# DeepSpeed fills its flat buffer on the GPU where there is room for both and on the host where there is not.
LOADING = ("load", "adapters")

_JOBS = """
qwen2.5-0.5b  full  zero2  2  none              1  false  2  1024
qwen2.5-0.5b  full  fsdp   2  none              1  false  2  1024
qwen2.5-1.5b  full  zero1  2  none              1  false  2  1024
qwen2.5-1.5b  full  zero2  2  none              4  false  2  1024
qwen2.5-1.5b  full  zero1  2  none              4  true   2  1024
qwen2.5-1.5b  full  zero3  2  none              1  false  2  1024
qwen2.5-1.5b  full  zero3  4  none              4  true   4  2048
qwen2.5-1.5b  full  fsdp   2  none              1  false  2  1024
qwen2.5-1.5b  full  fsdp   4  none              4  true   2  1024
qwen2.5-1.5b  lora  zero1  2  none              1  false  2  1024
qwen2.5-1.5b  lora  zero3  2  none              1  false  2  1024
qwen2.5-1.5b  lora  fsdp   2  none              1  false  2  1024
qwen2.5-1.5b  full  zero2  2  optimizer         1  true   2  1024
qwen2.5-1.5b  full  zero3  2  optimizer+params  1  true   2  1024
qwen2.5-1.5b  full  fsdp   2  optimizer+params  1  true   2  1024
qwen2.5-0.5b  full  ddp    2  none              1  false  2  512
qwen3.5-0.8b  full  ddp    2  none              1  true   1  512
qwen2.5-0.5b  full  fsdp1  2  none              1  false  2  1024
qwen2.5-0.5b  lora  fsdp1  4  none              1  true   2  1024
qwen2.5-1.5b  full  fsdp1  4  none              4  true   2  1024
qwen2.5-1.5b  full  fsdp1  2  optimizer+params  1  true   2  1024
qwen2.5-1.5b  lora  fsdp1  2  none              1  false  2  1024
qwen2.5-1.5b  lora  fsdp1  2  none              4  true   2  1024
qwen2.5-1.5b  qlora fsdp1  2  none              1  true   2  1024  bf16
llama-3.2-1b  full  fsdp1  2  none              4  false  2  1024
llama-3.2-1b  full  fsdp1  8  none              1  false  4  1024
llama-3.1-8b  full  fsdp1  8  none              1  true   1  2048
llama-3.1-8b  lora  fsdp1  4  none              1  true   2  2048
granite-3.0-1b-a400m full fsdp1 4 none          1  true   2  1024
pythia-410m   full  fsdp1  2  none              1  false  2  1024
qwen2.5-7b    full  zero2  8  optimizer         1  true   1  1024
qwen2.5-7b    full  zero2  8  none              1  true   1  2048
qwen2.5-7b    full  zero3  8  none              1  true   2  2048
qwen2.5-7b    full  fsdp   8  none              1  true   2  2048
qwen2.5-7b    full  fsdp   4  none              1  true   1  512
qwen2.5-7b    lora  zero2  4  none              1  true   4  2048
qwen2.5-7b    lora  zero3  4  none              1  true   4  2048
qwen2.5-7b    lora  fsdp   4  none              1  true   4  2048
qwen2.5-7b    qlora zero2  2  none              1  true   4  1024
qwen2.5-7b    qlora zero3  4  none              1  true   4  1024  bf16
llama-3.1-8b  qlora zero3  4  none              1  true   2  2048  bf16
qwen2.5-7b    qlora fsdp   4  none              1  true   4  1024  bf16
qwen2.5-7b    qlora fsdp   4  none              1  true   4  1024
qwen2.5-1.5b  qlora fsdp   2  optimizer+params  1  true   2  1024  bf16
granite-3.0-1b-a400m full zero3 4 none          1  false  2  1024
qwen1.5-moe-a2.7b full zero3 8 none             1  true   1  1024
qwen3-30b-a3b full  zero3  8  none              1  true   1  2048
qwen2.5-0.5b  full  zero3  4  none              1  true   2  1024  -  -  2
llama-3.2-1b  full  zero3  4  none              4  false  2  1024  -  -  2
llama-3.1-8b  full  zero3  8  none              1  true   1  2048  -  2  8
qwen2.5-0.5b  full  zero3  4  none              1  true   2  1024  -  -  -  weights
qwen2.5-1.5b  full  zero3  4  optimizer+params  1  true   2  1024  -  -  2  weights
llama-3.1-8b  lora  zero3  4  none              1  true   2  2048  -  -  -  weights
qwen2.5-0.5b  full  zero3  2  none              1  true   1  128   -  2  -  gradients
qwen2.5-1.5b  full  zero3  4  none              1  true   1  512   -  2  4  weights+gradients
llama-3.1-8b  full  zero3  8  none              1  true   1  2048  -  2  8  weights+gradients
"""
# Behind the length: the dtype in which 4-bit bytes are stored, nodes, GPUs of a second copy, and what is sent
# in few bits.
_WORDS = ([word.strip("-") for word in line.split()] for line in _JOBS.strip().splitlines())
JOBS = tuple(dict(zip_longest(KEY, words, fillvalue="")) for words in _WORDS)


def path() -> Path:
    """Where the table is."""
    return data_dir() / "differential" / "sharded.csv"


def flags_of(row: Mapping[str, str]) -> dict[str, str]:
    """The flags of a job, with the Trainer's defaults."""
    flags = {name: row[name] for name in KEY if row[name]} | {"gpu": CARD, "stack": "hf-trainer@5"}
    if sent := flags.pop("quantized", ""):
        flags["switches"] = f"zero3_quantized={sent}"
    if (row["method"], row["sharding"]) == ("qlora", "fsdp1"):
        # It flattens one dtype alone, so that TRL leaves the norms as they are (1.16 sft_trainer.py).
        flags["switches"] = "kbit_upcast=none"
    return flags


def scenario_of(row: Mapping[str, str]) -> Scenario:
    """The scenario of a job."""
    return resolved(flags_of(row))


def key_of(row: Mapping[str, str]) -> tuple[str, ...]:
    """What tells one job from another."""
    return tuple(row.get(name, "") for name in KEY)


def words_of(row: Mapping[str, str]) -> tuple[str, ...]:
    """The job's command line."""
    forms = {"true": "--{}", "false": "--no-{}"}
    flags = ((name.replace("_", "-"), value) for name, value in flags_of(row).items())
    return ("trace", "--json", *(forms.get(value, "--{}={}").format(name, value) for name, value in flags))


def dry_run_of(row: Mapping[str, str]) -> dict[str, Any]:
    """What ``measure trace --json`` says of the job."""
    command = [sys.executable, "-m", "measure", *words_of(row)]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=False)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def traced(row: Mapping[str, str]) -> Row:
    """The dry run's half of a row."""
    document = dry_run_of(row)
    phases = {each["phase"]: each["allocated_bytes"] for each in document["phases"]}
    highest = max(set(phases) - set(LOADING), key=lambda name: phases[name])
    return {
        "trace_bytes": str(phases[highest]),
        "trace_phase": highest,
        "trace_reserved_bytes": str(document["reserved_peak_bytes"]),
        "trace_phases_bytes": ";".join(f"{name}={size}" for name, size in phases.items()),
    }


@dataclass(frozen=True, slots=True)
class Apart:
    """How far the program is from the trace of one job, in percent of the trace's peak.

    ``in_phase``: in the phase, loading aside, where both are furthest apart; ``worst_phase`` is its name.
    ``reserved``: the most that is reserved before an evaluation, which is not traced, in percent of the
    trace's.
    """

    row: Row
    allocated: float
    reserved: float
    in_phase: float
    worst_phase: str

    def __str__(self) -> str:
        """One line."""
        return (
            f"allocated {self.allocated:+.2f} %, {self.worst_phase} {self.in_phase:+.2f} %, "
            f"reserved {self.reserved:+.2f} %"
        )


def compared(row: Row) -> Apart:
    """The step program as it is now beside the dry run of ``row``."""
    job = job_of(scenario_of(row), Coefficients())
    trace_bytes = int(row["trace_bytes"])
    phases = dict(pair.split("=") for pair in row["trace_phases_bytes"].split(";"))
    planned = {
        each.phase: each.allocated_bytes
        for each in replayed(job).phases
        if each.phase not in (*LOADING, "eval")
    }
    reserved = _reserved_before_evaluation(run_of(job)) / int(row["trace_reserved_bytes"])
    apart = {
        name: 100 * (planned[name] - int(size)) / trace_bytes
        for name, size in phases.items()
        if name not in LOADING
    }
    worst = max(apart, key=lambda name: abs(apart[name]))
    allocated = max(planned.values()) / trace_bytes
    return Apart(row, 100 * (allocated - 1), 100 * (reserved - 1), apart[worst], worst)


def _reserved_before_evaluation(run: ReplayedProgram) -> int:
    """Most bytes reserved, the second step of the optimizer included."""
    phases = zip(run.stream.phases, run.done.phases, strict=True)
    return max(done.reserved_bytes for (_, name), done in phases if name != "eval")


def read() -> list[Row]:
    """The stored rows."""
    if not path().is_file():
        return []
    with path().open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream, restval=""))


def write(rows: list[Row]) -> None:
    """Write the table in the order of the jobs."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path().write_text(out.getvalue(), encoding="utf-8")


def main() -> None:
    """Trace what is missing, and say how far the program is from the traces."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only jobs that have all these words among their values")
    parser.add_argument(
        "--again", action="store_true", help="trace these jobs again, not only those that are not stored yet"
    )
    parser.add_argument(
        "--compare-only", action="store_true", help="trace nothing; only say how far apart both are"
    )
    options = parser.parse_args()
    stored = {key_of(row): row for row in read()}
    rows: list[Row] = []
    apart: list[Apart] = []
    for job in JOBS:
        row: Row = dict.fromkeys(COLUMNS, "") | stored.get(key_of(job), {}) | job
        chosen = set(options.words) <= set(key_of(job))
        if chosen and not options.compare_only and (options.again or not row["trace_bytes"]):
            row |= traced(job)
        if row["trace_bytes"]:
            rows.append(row)
        if chosen and row["trace_bytes"]:
            apart.append(compared(row))
            sys.stdout.write(f"{' '.join(key_of(job))}: {apart[-1]}\n")
            sys.stdout.flush()
    write(rows)
    for what in ("allocated", "reserved"):
        sizes = [abs(getattr(each, what)) for each in apart]
        sys.stdout.write(
            f"{len(sizes)} jobs; {what} peak: median {statistics.median(sizes):.2f} %, worst "
            f"{max(sizes):.2f} %\n"
        )


if __name__ == "__main__":
    main()
