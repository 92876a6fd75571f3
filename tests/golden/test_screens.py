"""The first answer on a terminal: the jobs of the golden tables and some with long names,
drawn in a pseudo-terminal.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from calibrated import JOBS as GOLDEN
from golden_tables import SCENARIOS

pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")

from terminal import Terminal

from planner.api.answering import answer_job
from planner.cli.main import main
from planner.report.prediction.short import MAX_LINES
from planner.report.prediction.subject import Subject
from planner.report.prediction.verdict import VERDICTS
from tests.jobs import typed

_EIGHT_NODES = {"gpu": "h100-sxm:8", "nodes": 8, "samples": 1_000_000, "epochs": 3, "price": 12.5}
# What is long: names, several nodes, a run with a price, warnings, numbers of four digits,
# and nothing that fits.
LONG: dict[str, Mapping[str, object]] = {
    "eight nodes": {
        "model": "llama-3.1-405b",
        "method": "full",
        "sharding": "zero3",
        "seq": 131072,
        **_EIGHT_NODES,
    },
    "offload": typed(
        "--model llama-3.1-70b --method full --gpu h100-sxm:8 --seq 16384 --sharding zero3 "
        "--offload optimizer+params --host-memory 512GiB"
    ),
    "long names": typed(
        "--model mistralai/Mistral-Small-24B-Instruct-2501 --method qlora --gpu rtx-pro-6000-blackwell "
        "--seq 32768 --padding longest"
    ),
    "many warnings": typed(
        "--model mixtral-8x22b --method qlora --gpu v100-32-sxm2:4 --seq 200000 --loss liger --stack trl "
        "--padding longest --lora-rank 20000 --lora-dropout 0 --checkpoint-every 2 "
        "--no-gradient-checkpointing"
    ),
    "unknown card": {"model": "7b", "method": "qlora", "gpu": "b100", "seq": 1024, "samples": 100},
    "nothing is enough": typed(
        "--model llama-3.1-405b --method full --gpu rtx4060ti-16g --seq 8192 --sharding none"
    ),
}
JOBS: dict[str, Mapping[str, object]] = {**GOLDEN, **LONG}
_COLUMNS = (60, 80, 120)
_WORDS = "|".join(re.escape(word) for word, _ in VERDICTS.values())


def arguments(flags: Mapping[str, object]) -> list[str]:
    """The flags as they are typed."""
    switches = {True: "--", False: "--no-", "true": "--", "false": "--no-"}
    words = []
    for name, value in flags.items():
        switch, flag = switches.get(value) if isinstance(value, bool | str) else None, name.replace("_", "-")
        words.append(f"--{flag}={value}" if switch is None else f"{switch}{flag}")
    return words


@pytest.mark.every(5)
@pytest.mark.parametrize("name", JOBS)
def test_the_first_answer_is_whole_on_every_screen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 22 lines, none wider than the screen, the verdict first, and every flag whole."""
    answers: list[Subject] = []

    def answered_once(*said: Any) -> Subject:
        if not answers:
            answers.append(answer_job(*said))
        return answers[0]

    monkeypatch.setattr("planner.cli.commands.predict.answer_job", answered_once)
    for columns in _COLUMNS:
        with monkeypatch.context() as patch:
            _assert_whole(name, columns, patch)


def _assert_whole(name: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with Terminal(columns, 24) as terminal:
        terminal.stands_in(monkeypatch)
        code = main(arguments(JOBS[name]))
    lines = terminal.lines()
    assert code in (0, 3, 4, 5, 6), lines
    assert len(lines) <= MAX_LINES, "\n".join(lines)
    assert max(map(len, lines)) <= columns
    assert re.match(rf"(?:FITS IF A NODE HAS [\d.,]+ GiB OF RAM|{_WORDS}): ", lines[0])
    assert not [line for line in lines if re.search(r"--?$|--[a-z-]+-$", line)]


def test_the_bar_has_letters_and_colours_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a colour terminal every segment keeps its letter, and no two segments have one colour."""
    with Terminal(80, 24) as terminal:
        terminal.stands_in(monkeypatch, colours=True)
        main([*arguments(SCENARIOS["qlora-7b-rtx4090"]), "--details"])
    bar = next(
        line for line in terminal.text().splitlines() if line.startswith("\x1b[30;") and "....." in line
    )
    cells = re.findall(r"\x1b\[(30;\d+)m([a-z])\2*\x1b\[0m", bar)
    assert len(cells) >= 5
    assert len({colour for colour, _ in cells}) == len({letter for _, letter in cells}) == len(cells)


def test_the_command_itself_on_a_terminal() -> None:
    """The process of a user, not a function: the screen is the terminal's width,
    and the exit code is the verdict's.
    """
    with Terminal(72, 24) as terminal:
        command = [sys.executable, "-m", "planner", *arguments(SCENARIOS["qlora-7b-rtx4090"])]
        clean = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        done = subprocess.run(
            command, stdout=terminal.device, env={**clean, "NO_COLOR": "1", "TERM": "xterm"}, check=False
        )
    assert done.returncode == 0
    lines = terminal.lines()
    assert len(lines) <= MAX_LINES
    assert 60 < max(map(len, lines)) <= 72
