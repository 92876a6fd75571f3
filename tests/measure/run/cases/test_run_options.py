"""Numbers that say how to measure: what is given counts, 0 too,
and what cannot be meant is refused in one sentence.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from measure.campaign.file import read_campaign
from measure.cli.main import main
from measure.cli.measuring_options import RUN_OPTIONS, run_options
from measure.run.cases.run_options import checked_options, duration_s, memory_limit_bytes
from planner.errors import InputFileError, UsageError
from planner.units import GIB

RUN = ["run", "--model", "qwen2.5-0.5b", "--method", "lora", "--seq", "64", "--gpu", "cpu"]
CASE = 'schema = 1\n[[case]]\nmodel = "qwen2.5-0.5b"\nmethod = "lora"\nseq = 64\n'

needs_extra = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("torch", "transformers", "peft", "accelerate", "psutil")),
    reason="needs the measure extra",
)


@needs_extra
@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--steps", "0"),
        ("--steps", "-1"),
        ("--warmup", "-1"),
        ("--max-steps", "0"),
        ("--max-steps", "4"),
        ("--seed", "-1"),
        *(
            (flag, value)
            for flag in ("--timeout", "--budget")
            for value in ("0", "-1", "nan", "inf", "1e999")
        ),
        ("--lengths", "0,64"),
        ("--lengths", "1.5"),
        ("--memory-limit", "0GiB"),
        ("--memory-limit", "-1GiB"),
        ("--memory-limit", "9999999999999TiB"),
    ],
)
def test_a_flag_that_cannot_be_meant_is_refused(
    flag: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and one sentence that names the option; nothing runs and nothing is written."""
    assert main([*RUN, "--out", str(tmp_path / "out"), flag, value]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert flag.removeprefix("--").replace("-", "_") in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "line",
    [
        "steps = 0",
        "steps = true",
        "steps = 2.0",
        "max_steps = 4",
        "timeout_s = 0",
        "timeout_s = nan",
        "timeout_s = inf",
        "timeout_s = true",
        "budget_s = -1",
        "settle = 0",
        "settle = nan",
        "settle = 'much'",
        "seed = -1",
        "repeat = true",
        "repeat = 0",
        "memory_limit = 0",
        "memory_limit = '0GiB'",
        "lengths = [1.5, 64]",
        "lengths = [true, 64]",
        "history = 'yes'",
        "save = 1",
    ],
)
def test_a_campaign_that_says_it_is_refused_whole(line: str, tmp_path: Path) -> None:
    """The file, the case and the key."""
    path = tmp_path / "c.toml"
    path.write_text(CASE + line + "\n", encoding="utf-8")
    with pytest.raises(InputFileError, match=rf"c\.toml: case 1: {line.partition(' ')[0]}\b"):
        read_campaign(path)


def test_zero_is_a_number_where_it_may_be_said() -> None:
    """No warm-up and the seed 0 are what was asked for; what was not said is the default."""
    said = dict.fromkeys(RUN_OPTIONS) | {"warmup": 0, "seed": 0, "history": False}
    options = run_options(said)
    assert (options.warmup, options.seed, options.steps, options.history) == (0, 0, 5, False)


def test_a_memory_limit_is_a_size_or_a_card() -> None:
    """Sizes as everywhere; a card stands for what it makes visible to CUDA."""
    assert memory_limit_bytes("24GiB") == 24 * GIB
    assert 23 * GIB < memory_limit_bytes("4090") < 24 * GIB
    with pytest.raises(UsageError):
        memory_limit_bytes("2409O")


def test_more_counted_steps_than_the_limit_raise_the_limit() -> None:
    """Who asks for 100 steps gets them."""
    assert checked_options({"steps": 100}).max_steps == 100
    with pytest.raises(UsageError, match="steps must be"):
        checked_options({"steps": 0})


def test_times_are_read_with_their_units() -> None:
    """Hours, minutes, seconds and bare seconds."""
    assert [duration_s("--time-budget", text) for text in ("9m", "90", "1h30m", "45s", "1m30s")] == [
        540,
        90,
        5400,
        45,
        90,
    ]
    for text in ("", "0", "soon", "-5m"):
        with pytest.raises(UsageError, match="must be a time"):
            duration_s("--time-budget", text)
