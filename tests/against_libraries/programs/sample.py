"""Training files of other projects by their own tools, and what ``plan`` says about them: writes
``sample.csv`` beside it.

``.venv-axolotl/bin/python -m tests.against_libraries.programs.sample CORPUS
axolotl``: the folder has ``jobs.json`` with pairs of folder and file.  Files come in the order of the SHA-256
of their paths; those that the tool itself refuses are passed over, because they are for another version
of it.  The first 20 of each tool are the sample.  A file that asks for FSDP runs as the first of two cards,
because the tools refuse it on one.  ``plan`` is asked about the versions that run here, which are the newest
but for files of alignment-handbook: those run beside libraries of their own age (``make env-trl-handbook``).
A file whose row was deleted is run again.
With ``--plan`` behind it, ``plan`` is asked again about the rows that are there, and nothing is run.
With ``--second`` it is about ``sample_2.csv``: files that are not in the first sample, in the order of the
SHA-256 of ``2/`` and their paths.
"""

from __future__ import annotations

import csv
import hashlib
import json
import shlex
import subprocess
import sys
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from planner.configs.read import recognise
from planner.configs.yaml_or_json import read_document
from planner.errors import PlannerError
from tests.against_libraries.programs.table import CARD

PATH = Path(__file__).resolve().parent / "sample.csv"
SECOND = PATH.with_name("sample_2.csv")
COLUMNS = ("tool", "file", "cards", "exit_code", "seconds", "allocated_bytes", "reserved_bytes",
    "plan_allocated_bytes",
           "plan_reserved_bytes", "says")  # fmt: skip
PLANNED = ("plan_allocated_bytes", "plan_reserved_bytes", "says")
# Libraries that decide about memory; TRL's version is a word of its own stack alone.
VERSIONS = ("torch", "transformers", "peft", "bitsandbytes", "deepspeed")
N_FILES, LIMIT_S = 20, 600
# How the tools say that a file is not for them: parsers of pydantic, HfArgumentParser and argparse, Axolotl
# of a key that it no longer supports, an optimizer that is left empty or that LLaMA-Factory's own code no
# longer knows, and TRL of a template that is given twice.
REFUSED = (
    "ValidationError:",
    "DeprecationWarning:",
    "Some keys are not used",
    "Some specified arguments are not used",
    "ended with exit code 2",
    "Unknown optim: OptimizerNames",
    "None is not a valid OptimizerNames",
    "Chat template is already added",
)


def main(path: Path, corpus: Path, tool: str, *, plans: bool) -> None:
    """Run what has no row yet, and write after each.  ``plans``: ask ``plan`` again instead."""
    rows = stored(path)
    if plans:
        for number, row in enumerate(rows):
            if row["tool"] != tool or not row["allocated_bytes"]:
                continue
            folder, _, file = row["file"].partition("/")
            planned = _planned(tool, file, corpus / folder, _card(int(row["cards"])))
            rows[number] = row | dict.fromkeys(PLANNED, "") | planned
            _write(path, rows)
        return
    for name in drawn(path, corpus, tool):
        of_tool = [row for row in rows if row["tool"] == tool]
        if len([row for row in of_tool if not refused(row)]) >= N_FILES:
            return
        if name in [row["file"] for row in of_tool]:
            continue
        rows.append(_row(corpus, tool, name))
        _write(path, rows)


def stored(path: Path) -> list[dict[str, str]]:
    """The rows of a sample."""
    return list(csv.DictReader(path.open(encoding="utf-8"))) if path.exists() else []


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: (row["tool"], _place(path, row["file"]))))


def _place(path: Path, name: str) -> str:
    seed = "2/" if path == SECOND else ""
    return hashlib.sha256(f"{seed}{name}".encode()).hexdigest()


def drawn(path: Path, corpus: Path, tool: str) -> list[str]:
    """Files of one tool, in the order of the sample."""
    others = {row["file"] for row in stored(PATH)} if path == SECOND else set()
    names = ["/".join(each) for each in json.loads((corpus / "jobs.json").read_text(encoding="utf-8"))]
    found = [name for name in names if name not in others and _tool_of(corpus / name) == tool]
    return sorted(found, key=lambda name: _place(path, name))


def refused(row: dict[str, str]) -> bool:
    """Whether the tool itself refused the file."""
    return any(each in row["says"] for each in REFUSED)


def _tool_of(path: Path) -> str:
    try:
        return recognise(read_document(path)).name
    except PlannerError:
        return ""


def _row(corpus: Path, tool: str, name: str) -> dict[str, str]:
    folder, _, file = name.partition("/")
    begun = time.monotonic()
    n_cards = _n_cards(corpus / name)
    gpu = _card(n_cards)
    words = ("trace", "--gpu", gpu, "--json", "--timeout", str(LIMIT_S), "--check", file)
    done = _run("measure", words, corpus / folder)
    row = {
        "tool": tool,
        "file": name,
        "cards": str(n_cards),
        "exit_code": str(done.returncode),
        "seconds": str(round(time.monotonic() - begun)),
    }
    if done.returncode not in (0, 3, 4):
        return row | {"says": done.stderr.strip().splitlines()[-1][:200]}
    document = json.loads(done.stdout)
    row |= {f"{each}_bytes": document[f"{each}_peak_bytes"] for each in ("allocated", "reserved")}
    return row | {"says": ""} | _planned(tool, file, corpus / folder, gpu)


def _card(n_cards: int) -> str:
    return CARD if n_cards == 1 else f"{CARD}:{n_cards}"


def _n_cards(path: Path) -> int:
    table = read_document(path).table
    return 2 if table.get("fsdp") or table.get("fsdp_config") else 1


def _planned(tool: str, file: str, folder: Path, gpu: str) -> dict[str, str]:
    newest = ("--stack", tool) if find_spec("alignment") is None else ()
    checked = _run("planner", ("check", file, "--gpu", gpu, *newest, "--json"), folder)
    answer = json.loads(checked.stdout)["results"][0]["answer"] if checked.stdout else None
    if answer is None:
        return {}
    flags = shlex.split(answer["flags"])
    if "--gpus" in flags and gpu == CARD:
        # Of a launcher's file that stands in a comment, and that the dry run does not start.
        for flag in ("--gpus", "--sharding"):
            place = flags.index(flag)
            del flags[place : place + 2]
    flags += ["--versions", _versions(flags[flags.index("--stack") + 1])]
    done = _run("planner", (*flags, "--gpu", gpu, "--json"), folder)
    memory = json.loads(done.stdout).get("memory")
    if memory is None:
        return {"says": f"plan: {done.stderr.strip()}"[:200]}
    # As on a card without a limit, where no cached block goes back: that is what the dry run says.
    beyond = memory["uncapped_driver_bytes"] - memory["driver_peak_bytes"]
    return {
        "plan_allocated_bytes": memory["allocated_peak_bytes"],
        "plan_reserved_bytes": memory["reserved_peak_bytes"] + beyond,
    }


def _versions(stack: str) -> str:
    """As they are installed here."""
    names = (*VERSIONS, "trl") if stack.startswith("trl") else VERSIONS
    return ",".join(f"{name}=={version(name)}" for name in names if find_spec(name) is not None)


def _run(module: str, words: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    table = SECOND if "--second" in sys.argv[3:] else PATH
    main(table, Path(sys.argv[1]).resolve(), sys.argv[2], plans="--plan" in sys.argv[3:])
