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
COLUMNS = ("tool", "file", "cards", "exit_code", "seconds", "allocated_bytes", "reserved_bytes",
    "plan_allocated_bytes",
           "plan_reserved_bytes", "says")  # fmt: skip
PLANNED = ("plan_allocated_bytes", "plan_reserved_bytes", "says")
# Libraries that decide about memory; TRL's version is a word of its own stack alone.
VERSIONS = ("torch", "transformers", "peft", "bitsandbytes", "deepspeed")
N_FILES, LIMIT_S = 20, 600
# How the tools say that a file is not for them: the parsers of pydantic, HfArgumentParser and argparse, an
# optimizer that is left empty or that LLaMA-Factory's own code no longer knows, and TRL of a template that is
# given twice.
REFUSED = (
    "ValidationError:",
    "Some keys are not used",
    "Some specified arguments are not used",
    "ended with exit code 2",
    "Unknown optim: OptimizerNames",
    "None is not a valid OptimizerNames",
    "Chat template is already added",
)


def main(corpus: Path, tool: str, *, plans: bool) -> None:
    """Run what has no row yet, and write after each.  ``plans``: ask ``plan`` again instead."""
    rows: list[dict[str, str]] = list(csv.DictReader(PATH.open(encoding="utf-8"))) if PATH.exists() else []
    if plans:
        for number, row in enumerate(rows):
            if row["tool"] != tool or not row["allocated_bytes"]:
                continue
            folder, _, file = row["file"].partition("/")
            planned = _planned(file, corpus / folder, _card(int(row["cards"])))
            rows[number] = row | dict.fromkeys(PLANNED, "") | planned
            _write(rows)
        return
    for name in drawn(corpus, tool):
        of_tool = [row for row in rows if row["tool"] == tool]
        if len([row for row in of_tool if not refused(row)]) >= N_FILES:
            return
        if name in [row["file"] for row in of_tool]:
            continue
        rows.append(_row(corpus, tool, name))
        _write(rows)


def _write(rows: list[dict[str, str]]) -> None:
    with PATH.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: (row["tool"], _place(row["file"]))))


def _place(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def drawn(corpus: Path, tool: str) -> list[str]:
    """Files of one tool, in the order of the sample."""
    names = ["/".join(each) for each in json.loads((corpus / "jobs.json").read_text(encoding="utf-8"))]
    found = [name for name in names if _tool_of(corpus / name) == tool]
    return sorted(found, key=_place)


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
    if done.returncode not in (0, 3):
        return row | {"says": done.stderr.strip().splitlines()[-1][:200]}
    document = json.loads(done.stdout)
    row |= {f"{each}_bytes": document[f"{each}_peak_bytes"] for each in ("allocated", "reserved")}
    return row | {"says": ""} | _planned(file, corpus / folder, gpu)


def _card(n_cards: int) -> str:
    return CARD if n_cards == 1 else f"{CARD}:{n_cards}"


def _n_cards(path: Path) -> int:
    table = read_document(path).table
    return 2 if table.get("fsdp") or table.get("fsdp_config") else 1


def _planned(file: str, folder: Path, gpu: str) -> dict[str, str]:
    checked = _run("planner.cli.main", ("check", file, "--gpu", gpu, "--json"), folder)
    answer = json.loads(checked.stdout)["results"][0]["answer"] if checked.stdout else None
    if answer is None:
        return {}
    flags = shlex.split(answer["flags"])
    if find_spec("alignment") is None:
        _make_newest(flags)
    if "--gpus" in flags and gpu == CARD:
        # Of a launcher's file that stands in a comment, and that the dry run does not start.
        for flag in ("--gpus", "--sharding"):
            place = flags.index(flag)
            del flags[place : place + 2]
    flags += ["--versions", _versions(flags[flags.index("--stack") + 1])]
    done = _run("planner.cli.main", (*flags, "--gpu", gpu, "--json"), folder)
    memory = json.loads(done.stdout).get("memory")
    if memory is None:
        return {"says": f"plan: {done.stderr.strip()}"[:200]}
    # As on a card without a limit, where no cached block goes back: that is what the dry run says.
    beyond = memory["uncapped_driver_bytes"] - memory["driver_peak_bytes"]
    return {
        "plan_allocated_bytes": memory["allocated_peak_bytes"],
        "plan_reserved_bytes": memory["reserved_peak_bytes"] + beyond,
    }


def _make_newest(flags: list[str]) -> None:
    """Without what the reader says of an older version of the tool: the age of the stack;
    LLaMA-Factory's dtype of loading, which came from the precision up to 0.9.3;
    token table and head in fp32, as Axolotl had them before 0.4; and, of preferences, what TRL up to 0.26
    made fp32 of a quantised base.
    """
    place = flags.index("--stack") + 1
    name, _, age = flags[place].partition("@")
    flags[place] = name
    if name == "llama-factory" and age and "--load-dtype" in flags:
        place = flags.index("--load-dtype")
        del flags[place : place + 2]
    if age and "--switches" in flags:
        place = flags.index("--switches") + 1
        gone = ("widens_ends=true", *(("kbit_upcast=all", "kbit_upcast=norms") if "--task" in flags else ()))
        left = [each for each in flags[place].split(";") if each not in gone]
        flags[place - 1 : place + 1] = ["--switches", ";".join(left)] if left else []


def _versions(stack: str) -> str:
    """As they are installed here."""
    names = (*VERSIONS, "trl") if stack.startswith("trl") else VERSIONS
    return ",".join(f"{name}=={version(name)}" for name in names if find_spec(name) is not None)


def _run(module: str, words: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2], plans="--plan" in sys.argv[3:])
