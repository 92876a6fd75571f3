"""What a worker says to the process that started it: JSON lines in one file for each rank.

A file, not a pipe: nobody waits for the other, and what a killed worker said remains.  Every line has
``event`` and ``time_s`` (the system's monotonic clock, which processes share).  Events, in their order:

========= ==========================================================================================
history   the allocator's history is in a file of the folder
hello     the worker runs: pid, library versions, device, whether it was forked or spawned
phase     a phase begins for the first time: phase, micro-step
model     the model is there: parameters, engine class, configuration files
step      one optimizer step is over: its readings
readings  peaks of all phases, counters of the allocator
done      everything was measured
failed    an expected failure: outcome, phase, message
========= ==========================================================================================
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JOB_FILE = "job.json"
LOG_FILE = "log.txt"
HISTORY_FILE = "history.jsonl.gz"
# Said to the warm parent: import nothing that some cases could do without.
ONLY_NEEDED = "--only-needed"


def events_file(folder: Path, rank: int) -> Path:
    """Where the worker of one rank writes."""
    return folder / f"events-{rank}.jsonl"


@dataclass(slots=True)
class Reporter:
    """The worker's side: one line for each event, written at once."""

    path: Path
    phase: str | None = None

    def say(self, event: str, **values: Any) -> None:
        """Write one event."""
        if event == "phase":
            self.phase = values["phase"]
        line = json.dumps({"event": event, "time_s": time.monotonic(), **values}) + "\n"
        # One write of a short line is not torn by another process's death, only by our own.
        with self.path.open("ab", buffering=0) as stream:
            stream.write(line.encode())


class EventReader:
    """The other side: complete lines as they come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def new(self) -> Iterator[Mapping[str, Any]]:
        """Events written since the last call; a line without its end is left for later."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._position)
                content = stream.read()
        except FileNotFoundError:
            return
        complete, _, _ = content.rpartition(b"\n")
        if not complete:
            return
        self._position += len(complete) + 1
        for line in complete.split(b"\n"):
            yield json.loads(line)


def write_whole(path: Path, text: str) -> None:
    """Write a file that appears whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
