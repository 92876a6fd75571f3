"""Training programs of other repositories, each as it is at one commit: writes ``strangers.csv`` beside it.

``ENV/bin/python -m tests.against_libraries.programs.strangers FOLDER``: the folder has clones named as the
repositories are.  Nothing of them is stored here.  Each runs in a copy of its commit, on data that is made
there: random tokens, or rows of repeated words in the columns that the program reads.  A row runs where the
version of Transformers that it asks for is installed, and a row that is there is not run again.
"""

from __future__ import annotations

import csv
import io
import json
import os
import random
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tests.against_libraries.programs.table import _versions as versions_here

PATH = Path(__file__).resolve().parent / "strangers.csv"
COLUMNS = ("repository", "commit", "folder", "card", "command", "versions", "seconds", "allocated_bytes",
    "reserved_bytes", "largest_phase", "assumed", "says")  # fmt: skip


@dataclass(frozen=True)
class Program:
    """``command`` in ``folder`` of a repository; ``makes`` lays its data into the copy, or without a commit
    the program itself.
    ``options``: of ``measure trace``.  ``transformers``: how its version begins.
    ``variables``: of its environment, as ``NAME=VALUE``.
    """

    repository: str
    commit: str
    command: str
    folder: str = "."
    card: str = "a100-80-sxm"
    makes: Callable[[Path], None] = lambda _: None
    options: tuple[str, ...] = ()
    transformers: str = "5."
    variables: tuple[str, ...] = ()


def _tokens(root: Path) -> None:
    """The two files of GPT-2's tokens that nanoGPT maps (data/openwebtext/prepare.py)."""
    draw = random.Random(0)
    for name in ("train", "val"):
        tokens = array("H", (draw.randrange(50257) for _ in range(100_000)))
        (root / f"data/openwebtext/{name}.bin").write_bytes(tokens.tobytes())


NANOGPT = ("karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291")
ON_EIGHT = "torchrun --standalone --nproc_per_node=8"
PROGRAMS = (
    Program(*NANOGPT, "python train.py --compile=False", makes=_tokens),
    Program(*NANOGPT, "python train.py", makes=_tokens),
    Program(*NANOGPT, f"{ON_EIGHT} train.py --compile=False", card="h100-sxm:8", makes=_tokens),
)


def main(clones: Path) -> None:
    """Run what has no row yet and what this environment is for, and write after each."""
    rows = {}
    if PATH.exists():
        rows = {_key(row): row for row in csv.DictReader(PATH.open(encoding="utf-8"))}
    for program in PROGRAMS:
        said = {name: getattr(program, name) for name in COLUMNS[:5]}
        if _key(said) in rows or not version("transformers").startswith(program.transformers):
            continue
        rows[_key(said)] = said | {"versions": versions_here()} | ran(program, clones)
        with PATH.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows.values())


def _key(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in COLUMNS[:5])


def ran(program: Program, clones: Path) -> dict[str, object]:
    """Columns of its row, from ``seconds`` on."""
    with tempfile.TemporaryDirectory() as copy:
        if program.commit:
            archive = ("git", "-C", str(clones / program.repository.split("/")[1]), "archive", program.commit)
            packed = subprocess.run(archive, stdout=subprocess.PIPE, check=True).stdout
            with tarfile.open(fileobj=io.BytesIO(packed)) as files:
                files.extractall(copy, filter="data")
        program.makes(Path(copy))
        words = ("-m", "measure", "trace", "--gpu", program.card, "--json", *program.options, "--")
        begun = time.monotonic()
        command, folder = [sys.executable, *words, *shlex.split(program.command)], Path(copy, program.folder)
        variables = os.environ | dict(each.split("=", 1) for each in program.variables)
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=variables)
        seconds = round(time.monotonic() - begun)
    if done.returncode not in (0, 3, 4):
        return {"seconds": seconds, "says": done.stderr.strip().splitlines()[-1][:300]}
    document = json.loads(done.stdout)
    return {
        "seconds": seconds,
        "allocated_bytes": document["allocated_peak_bytes"],
        "reserved_bytes": document["reserved_peak_bytes"],
        "largest_phase": document["peak"]["phase"],
        "assumed": len(document["assumptions"]),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
