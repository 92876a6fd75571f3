"""Import direction, and what must never be imported: the command starts fast and needs no framework."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from planner.words import words
from tests.extras import import_or_skip

ROOT = Path(__file__).resolve().parents[2]
HEAVY = words("torch transformers scipy pandas matplotlib deepspeed peft accelerate bitsandbytes")
PREDICTION = ["--model", "7b", "--method", "qlora", "--gpu", "4090", "--seq", "1024"]

# Runs one command as `plan` would,
# and reports on the last line of stderr which of the named packages it imported.
_PROBE = """
import json, sys
from planner.cli.main import main
code = main(json.loads(sys.argv[1]))
loaded = sorted({name.partition(".")[0] for name in sys.modules})
print(json.dumps({"code": code, "loaded": loaded}), file=sys.stderr)
"""


def test_import_contracts() -> None:
    """No module imports against the direction of the layers;
    a file in a new folder has to be given a layer.
    """
    import_or_skip("importlinter")
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command; lint_imports_command()",
        "--no-cache",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout, done.stdout


def test_no_import_goes_round() -> None:
    """No module needs itself by way of others, also where an import stands inside of a function.
    What only a type checker reads may: two types that mention each other.
    """
    grimp = import_or_skip("grimp")
    graph = grimp.build_graph("planner", "measure", exclude_type_checking_imports=True, cache_dir=None)
    needs = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(needs) > 100, "the sources were not found"
    while done := {module for module, others in needs.items() if not others}:
        needs = {module: others - done for module, others in needs.items() if module not in done}
    # What is left leads to a circle: those that nothing left over needs are cut off, too.
    while needs and (outer := needs.keys() - set().union(*needs.values())):
        needs = {module: others for module, others in needs.items() if module not in outer}
    assert sorted(needs) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        PREDICTION,
        [*PREDICTION, "--json"],
        [*PREDICTION, "--explain"],
        ["models"],
        ["rules"],
        ["validate", "data/published/rasbt_speed.csv"],
    ],
    ids=lambda arguments: " ".join(arguments[-1:]),
)
def test_no_command_imports_a_framework(arguments: list[str]) -> None:
    """Commands answer without importing torch, transformers, scipy, pandas or matplotlib,
    installed or not.
    """
    command = [sys.executable, "-c", _PROBE, json.dumps(arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    report = json.loads(done.stderr.splitlines()[-1])
    assert report["code"] == 0, done.stderr
    assert done.stdout, "the command printed nothing"
    assert not set(HEAVY) & set(report["loaded"])


def test_help_and_a_prediction_do_not_need_numpy() -> None:
    """One scenario is answered by plain Python numbers; numpy is for grids,
    and importing it would double the start.
    """
    for arguments in (["--help"], PREDICTION):
        command = [sys.executable, "-c", _PROBE, json.dumps(arguments)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert "numpy" not in json.loads(done.stderr.splitlines()[-1])["loaded"], arguments
