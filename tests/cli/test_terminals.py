"""Both programs on any terminal: no width, few columns, no colours, encodings of Windows,
and text that would steer it.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from measure.campaign.progress import LiveProgress, PlainProgress, open_progress
from measure.cli.main import main as measure
from planner.cli.main import main as plan
from tests.extras import needs

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "tests" / "planner" / "configs" / "examples"
JOB = ("--model", "7b", "--method", "qlora", "--gpu", "4090", "--seq", "1024")
PUBLISHED = str(sorted((ROOT / "data" / "published").glob("*.csv"))[0])
PLAN = {
    "short": JOB,
    "explain": (*JOB, "--explain"),
    "models": ("models", "qwen"),
    "gpus": ("gpus",),
    "check": (
        "check",
        str(EXAMPLES / "trl_lora.yaml"),
        str(EXAMPLES / "llama_factory_qlora.yaml"),
        "--gpu",
        "t4",
    ),
    "search": ("search", *JOB, "--top", "2"),
    "validate": ("validate", PUBLISHED),
}
MEASURE = {"env": ("env",), "no file": ("check", "no-such-file.jsonl")}
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
CONFIG |= {"vocab_size": 100}
Main = Callable[[list[str]], int]


class Stream(io.TextIOWrapper):
    """Standard output or error in some encoding, of a terminal or not."""

    def __init__(self, encoding: str, *, terminal: bool = False) -> None:
        self.raw_bytes = io.BytesIO()
        super().__init__(self.raw_bytes, encoding=encoding, newline="\n")
        self._terminal = terminal

    def isatty(self) -> bool:
        """What it was told to say."""
        return self._terminal

    @property
    def text(self) -> str:
        """What was written."""
        self.flush()
        return self.raw_bytes.getvalue().decode(self.encoding)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Runs a program on a terminal or in a pipe; returns the exit code and all that it wrote."""

    def show(
        main: Main, words: tuple[str, ...], encoding: str = "utf-8", *, terminal: bool = False, **env: str
    ) -> tuple[int, str]:
        for name in ("COLUMNS", "NO_COLOR", "TERM"):
            monkeypatch.delenv(name, raising=False)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        out, err = Stream(encoding, terminal=terminal), Stream(encoding, terminal=terminal)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            code = main(list(words))
        return code, out.text + err.text

    return show


@pytest.mark.parametrize("name", PLAN)
def test_plan_keeps_to_the_width(name: str, shown: Callable[..., tuple[int, str]]) -> None:
    """At 40 columns no line is longer, unless it is one word or a command; COLUMNS=0 says no width."""
    code, text = shown(plan, PLAN[name], COLUMNS="0", TERM="dumb", terminal=True)
    assert len(text) > 100
    assert "\x1b" not in text
    narrow_code, narrow = shown(plan, PLAN[name], "cp437", COLUMNS="40")
    assert narrow_code == code
    lines = narrow.splitlines()
    of_commands = {i + 1 for i, line in enumerate(lines) if line.endswith(" \\")}
    long = [
        line
        for i, line in enumerate(lines)
        if len(line) > 40 and i not in of_commands and not line.lstrip().startswith(("plan ", "measure "))
    ]
    assert [line for line in long if " " in line.strip()] == []


@pytest.mark.parametrize(
    ("name", "heads"), [("models", "params"), ("gpus", "bf16 T/s"), ("validate", "worst row")]
)
def test_narrow_tables_keep_their_titles(
    name: str, heads: str, shown: Callable[..., tuple[int, str]]
) -> None:
    """A title is not broken into letters."""
    assert f"{heads}: " in shown(plan, PLAN[name], COLUMNS="40")[1]


@pytest.mark.parametrize("program", ["plan", "measure"])
@pytest.mark.parametrize("columns", ["0", "1", "40"])
def test_help_is_never_empty(program: str, columns: str, shown: Callable[..., tuple[int, str]]) -> None:
    """Help has every line on any terminal, and flags stay whole."""
    main, words = (plan, ("--help",)) if program == "plan" else (measure, ("trace", "--help"))
    code, text = shown(main, words, "ascii", COLUMNS=columns, TERM="dumb")
    assert code == 0
    assert "--gradient-checkpointing / --no-gradient-checkpointing" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("name", MEASURE)
def test_measure_prints_plainly(name: str, shown: Callable[..., tuple[int, str]]) -> None:
    """The same text on any terminal."""
    texts = {
        shown(measure, MEASURE[name], COLUMNS=columns, TERM=term)[1]
        for columns in ("0", "40")
        for term in ("dumb", "xterm")
    }
    assert len(texts) == 1
    assert texts.pop().strip()


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "cp437", "utf-8"])
def test_names_outside_the_encoding_are_escaped(
    encoding: str, tmp_path: Path, shown: Callable[..., tuple[int, str]]
) -> None:
    """A folder's name that the terminal has no letters for ends in escapes, not in an error;
    JSON stays JSON.
    """
    folder = tmp_path / "Größe-模型"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    job = ("--model", str(folder), "--method", "lora", "--gpu", "4090", "--seq", "128")
    code, text = shown(plan, (*job, "--details"), encoding)
    assert code == 0
    assert "Gr" in text
    code, text = shown(plan, (*job, "--json"), encoding)
    assert "Größe-模型" in json.dumps(json.loads(text), ensure_ascii=False)
    code, text = shown(measure, ("check", str(folder / "none.jsonl")), encoding)
    assert (code, text.count("\n")) == (2, 1)


@needs("torch", "psutil")
def test_a_campaign_cannot_steer_the_terminal(tmp_path: Path, shown: Callable[..., tuple[int, str]]) -> None:
    """Titles come from a file: neither their escape sequences nor those of one byte reach the terminal."""
    file = tmp_path / "campaign.toml"
    title = r"\u001b[31mRED\u009b1m\u202e\u0007"
    case = '[[case]]\nmodel = "smollm2-135m"\nmethod = "lora"\nseq = 64\ngpu = "cpu"\n'
    file.write_text(f'schema = 1\ntitle = "{title}"\n{case}')
    code, text = shown(
        measure,
        ("campaign", str(file), "--dry-run", "--out", str(tmp_path / "out")),
        TERM="xterm",
        terminal=True,
    )
    assert code == 0, text
    assert text.startswith("?[31mRED?1m??: 1 to run")


def test_labels_of_a_live_table_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither escape sequences nor rich's own markup of a label are obeyed; COLUMNS=0 is no width."""
    stream = Stream("utf-8", terminal=True)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "0")
    with open_progress(1) as progress:
        progress.begin("a[bold]b\x1b]0;title\x07c", None)
    assert "a[bold]b?]0;title?c" in stream.text


@pytest.mark.parametrize(
    ("terminal", "term", "kind"), [(True, "xterm", LiveProgress), (True, "dumb", PlainProgress)]
)
def test_bars_are_drawn_where_they_can_be(
    terminal: bool, term: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines alone where the cursor cannot be moved, and in a pipe."""
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stderr", Stream("utf-8", terminal=terminal))
    assert isinstance(open_progress(1), kind)
    monkeypatch.setattr(sys, "stderr", Stream("utf-8"))
    assert isinstance(open_progress(1), PlainProgress)


@pytest.mark.parametrize("main", [plan, measure], ids=["plan", "measure"])
def test_what_was_typed_is_repeated_in_short(main: Main, shown: Callable[..., tuple[int, str]]) -> None:
    """A long argument does not fill the screen, and cannot steer it."""
    code, text = shown(main, (f"\x1b[31m{'x' * 100_000}",))
    assert code == 2
    assert len(text) < 600
    assert "\x1b" not in text
