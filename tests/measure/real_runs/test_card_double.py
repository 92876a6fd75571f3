"""The whole way of a run on a card, in the real processes, on a double of the card
(``card/sitecustomize.py``).

What no double can show is left to the tests marked ``gpu``; here every branch that a card switches on is gone
through once, from the driver to the record.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from planner.domain.run_record import RunRecord
from planner.records import read_records
from planner.records.measured import RawReadings
from planner.units import GIB, MIB
from tests.extras import import_or_skip

import_or_skip("pynvml")
import_or_skip("torch")

ROOT = Path(__file__).resolve().parents[3]
DOUBLE = Path(__file__).parent / "card"
# As the double has them.
BEFORE, CONTEXT, BASE, PER_TOKEN = 600 * MIB, 450 * MIB, 2 * GIB, 16 * MIB


class Card:
    """Commands that see the card."""

    def __init__(self, folder: Path, config: str) -> None:
        self.folder, self.out, self.config = folder, folder / "out", config

    @property
    def variables(self) -> dict[str, str]:
        """Environment in which the card is there."""
        path = os.pathsep.join((str(DOUBLE), str(ROOT)))
        visible = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        return {**visible, "CARD": str(self.folder), "PYTHONPATH": path}

    def call(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """One command."""
        command = [sys.executable, "-m", "measure", *arguments]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, env=self.variables
        )
        assert done.returncode == code, done.stderr + done.stdout
        return done

    def run(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """One job of the small model."""
        job = ["--model", self.config, "--method", "lora", "--out", str(self.out)]
        return self.call("run", *job, *arguments, code=code)


@pytest.fixture
def card(tmp_path: Path, config: str) -> Card:
    """One H200 in this machine."""
    return Card(tmp_path, config)


def rank_threads(raw: RawReadings) -> int:
    """What the first rank computes with on the host."""
    return raw.ranks[0].cpu_threads or 0


def phase(raw: RawReadings, name: str) -> Any:
    """The readings of one phase."""
    return next(each for each in raw.ranks[0].phases if each.phase == name)


def test_a_run_on_a_card_has_every_level(card: Card) -> None:
    """The Trainer in a fork, under a limit and with its history: allocator, driver, context, cap,
    slowed clocks, and a replay.
    """
    (card.folder / "reasons").write_text(str(0x8))
    steps = ["--steps", "1", "--max-steps", "1", "--warmup", "1"]
    done = card.run("--seq", "16", "--batch", "2", *steps, "--memory-limit", "4090", "--history", "--json")
    record = json.loads(done.stdout)
    raw = RawReadings.model_validate(record["raw"])
    held = BASE + 32 * PER_TOKEN
    assert (record["gpu"], record["outcome"], raw.how) == ("h200-sxm", "ok", "fork")
    assert (record["memory_kind"], record["peak_memory_mib"]) == ("reserved", held / MIB)
    assert record["censored"] is False
    backward = phase(raw, "backward")
    assert (backward.allocated_peak_bytes, backward.reserved_peak_bytes) == (held, held)
    assert backward.device_used_bytes == BEFORE + CONTEXT + held
    assert phase(raw, "load").reserved_peak_bytes == 0
    rank = raw.ranks[0]
    assert rank.context_bytes == CONTEXT
    assert rank.cap == {
        "kind": "cuda_memory_fraction",
        "limit_bytes": record["memory_limit_mib"] * MIB,
        "outside_bytes": CONTEXT,
        "allowed_bytes": record["memory_limit_mib"] * MIB - CONTEXT,
    }
    assert (rank.counters.retries, rank.counters.out_of_memory, rank.counters.pinned_peak_bytes) == (
        0,
        0,
        5 * MIB,
    )
    assert all(0 < step.device_s <= step.wall_s for step in raw.steps)
    assert (raw.devices[0].baseline_bytes, raw.devices[0].peak_bytes) == (BEFORE, BEFORE + CONTEXT + held)
    assert (raw.devices[0].held_before_bytes, raw.devices[0].other_processes) == (0, 0)
    assert raw.devices[0].process_peak_bytes == CONTEXT + held
    assert raw.host.machine_bytes is not None
    assert rank_threads(raw) > 0
    assert record["quality"]["verdict"] == "doubtful"
    assert "throttled: hardware slowdown" in record["quality"]["reasons"]
    replayed = json.loads(card.call("replay", str(card.out / raw.history), "--json").stdout)
    assert replayed["reserved_peak_bytes_recorded"] == held
    assert replayed["reserved_peak_bytes_replayed"] == held


def check_shortage(record: RunRecord, extra: Mapping[str, Any]) -> None:
    """What a worker says that ran out of device memory."""
    raw = RawReadings.model_validate(extra["raw"])
    assert (record.outcome, record.phase_reached) == ("oom", "forward")
    assert "OutOfMemoryError: CUDA out of memory" in raw.error
    assert raw.ranks[0].counters.out_of_memory == 1
    assert phase(raw, "load").reserved_peak_bytes == 0
    assert extra["quality"] == {"verdict": "good", "reasons": []}


def test_a_shortage_is_told_by_the_child(card: Card) -> None:
    """3 GiB less the context leave 35 tokens, so that 40 do not fit: exit code 3, the phase,
    a good record and its history.
    """
    done = card.run(
        "--seq", "8", "--batch", "5", "--workload", "loop", "--memory-limit", "3GiB", "--history", code=3
    )
    assert "outcome: oom in phase forward" in done.stdout
    records = read_records([str(card.out / "*.jsonl")])
    check_shortage(records.records[0], records.attachments[records.records[0].id])
    assert (card.out / records.attachments[records.records[0].id]["raw"]["history"]).stat().st_size > 0


@pytest.mark.slow
def test_the_boundary_of_a_smaller_card_is_found(card: Card) -> None:
    """Four samples of eight tokens run within 3 GiB and five do not;
    every probe is a process of its own and on the record.
    """
    done = card.run(
        "--seq", "8", "--batch", "4", "--workload", "loop", "--memory-limit", "3GiB", "--solve", "batch"
    )
    assert "largest micro-batch that runs: 4; 5 does not run" in done.stdout
    records = read_records([str(card.out / "*.jsonl")])
    short = [record for record in records.records if record.outcome != "ok"]
    assert sorted(record.micro_batch for record in short) == [5, 6, 8]
    for record in short:
        check_shortage(record, records.attachments[record.id])


@pytest.mark.slow
def test_the_first_hour_on_a_card(card: Card, tmp_path: Path) -> None:
    """One call says everything and packs it; another one on a bare machine unpacks that,
    and has nothing left to run.
    """
    file = tmp_path / "campaign.toml"
    defaults = f'model = "{card.config}"\nworkload = "loop"\nwarmup = 1\nsteps = 1\nmax_steps = 1\n'
    grid = (
        '[[grid]]\nmethod = ["lora", "full"]\nseq = 8\n[[case]]\nmethod = "lora"\nseq = 16\nbatch = '
        '8\nmemory_limit = "4GiB"\n'
    )
    file.write_text(f"schema = 1\n[defaults]\n{defaults}{grid}", encoding="utf-8")

    def first_hour(work: str) -> str:
        script = [
            str(ROOT / "data/campaigns/first_campaign.sh"),
            str(card.out),
            "500",
            str(file),
            sys.executable,
            str(tmp_path / work),
        ]
        done = subprocess.run(script, capture_output=True, text=True, check=False, env=card.variables)
        assert done.returncode == 0, done.stderr
        return (card.out / "campaign.txt").read_text(encoding="utf-8")

    assert "2 ok, 1 oom; 0 were recorded before" in first_hour("one")
    packed = {path.name for path in card.out.iterdir()}
    assert packed == {"campaign.txt", "check.txt", "env.json", "results.tar.part-aa", "validate.txt"}
    assert len(list((tmp_path / "one" / "histories").iterdir())) == 3
    assert (tmp_path / "one" / "replays.txt").read_text(encoding="utf-8").count("outcome of the replay") == 3
    assert "nothing; 3 were recorded before" in first_hour("two")
    assert len(list((tmp_path / "two" / "histories").iterdir())) == 3
    assert len(read_records([str(tmp_path / "two" / "*.jsonl")]).records) == 3
