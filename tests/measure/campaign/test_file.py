"""Campaign files: grids, defaults, and what is refused whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from measure.campaign.file import read_campaign
from planner.errors import InputFileError
from tests.measure.campaign.cases import CASE, HEAD, written


def test_a_grid_is_every_combination_over_the_defaults(tmp_path: Path) -> None:
    """Two methods and two lengths are four cases; a repeat makes second ones;
    options and job are told apart.
    """
    grid = '[[grid]]\nmodel = "qwen2.5-0.5b"\nmethod = ["lora", "full"]\nseq = [64, 128]\nrepeat = 2\n'
    text = HEAD + "[defaults]\nsteps = 7\nbatch = 2\n" + grid
    cases = read_campaign(written(tmp_path, text)).cases
    assert len(cases) == 8
    assert {(case.values["method"], case.values["seq"], case.number) for case in cases} == {
        (method, seq, number) for method in ("lora", "full") for seq in (64, 128) for number in (0, 1)
    }
    assert {case.options.steps for case in cases} == {7}
    assert {case.values["batch"] for case in cases} == {2}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "schema must be 1"),
        ("schema = 2\n" + CASE, "newer"),
        (HEAD, "holds no cases"),
        (HEAD + "[[case]]\nmethod = 'lora'\nseq = 1\n", "case 1: missing model"),
        (HEAD + CASE + "sequence = 3\n", "case 1: unknown key 'sequence'"),
        (HEAD + "colour = 3\n", "unknown key 'colour'"),
        (HEAD + CASE + "repeat = 0\n", "repeat must be"),
        (HEAD + CASE + "steps = 'many'\n", "steps must be"),
        (HEAD + CASE + "memory_limit = 'huge'\n", "memory_limit must be"),
        (HEAD + CASE + "workload = 'treadmill'\n", "unknown workload"),
        (HEAD + CASE + "rendezvous = 3\n", "rendezvous must be a text"),
        (HEAD + CASE + "rendezvous = 'node'\n", "a host and a port"),
        (HEAD + CASE.replace("lora", "lorra"), "unknown method"),
        (HEAD + "[case]\nseq = 1\n", "must be written"),
        (HEAD + "[[", "not valid TOML"),
    ],
)
def test_a_bad_file_is_refused_whole(tmp_path: Path, text: str, problem: str) -> None:
    """One sentence with the file, the place and the problem, before anything runs."""
    path = written(tmp_path, text)
    with pytest.raises(InputFileError, match=str(path)) as raised:
        read_campaign(path)
    assert problem in str(raised.value)
