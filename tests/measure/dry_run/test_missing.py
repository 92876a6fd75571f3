"""What a program lacks on this machine: a package, or the network.  Neither is an error of the program."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from measure.dry_run.guesses import Guesses, missing_behind, missing_module, raised_at
from measure.dry_run.sandbox import _connected


def ended_by(source: str) -> BaseException:
    """The error that ends a program."""
    with pytest.raises(Exception) as caught:
        exec(source, {})
    return caught.value


@pytest.mark.parametrize(
    "source",
    [
        "import apex_of_nobody",
        "from apex_of_nobody.optimizers import FusedAdam",
        "try:\n    import apex_of_nobody\nexcept ImportError:\n    raise ImportError('install apex')",
        "try:\n    import apex_of_nobody\nexcept ImportError as error:\n    raise RuntimeError from error",
    ],
)
def test_a_package_that_is_not_installed_is_named_with_the_way_out(source: str) -> None:
    """Whether the program says it itself or not."""
    said = missing_module(ended_by(source))
    assert said is not None
    assert "module 'apex_of_nobody'" in said
    assert f"{sys.executable} -m pip install apex_of_nobody" in said


@pytest.mark.parametrize(
    "source",
    [
        "import json.of_another_version",
        "from json import of_another_version",
        "try:\n    import apex_of_nobody\nexcept ImportError:\n    {}['fused']",
        "1 / 0",
    ],
)
def test_what_an_installed_package_lacks_is_an_error_of_the_program(source: str) -> None:
    """So is what it does wrong where it goes on without a package."""
    assert missing_module(ended_by(source)) is None


def test_a_name_that_is_looked_up_is_the_network() -> None:
    """Behind the error of the library that asked, as requests raises it."""
    guesses = Guesses()
    with pytest.raises(OSError, match="no network") as caught:
        _connected(guesses, ("hub.example.org", 443, 0, 1, 0))
    behind = RuntimeError("no more retries")
    behind.__context__ = caught.value
    found = missing_behind(behind)
    assert isinstance(found, ConnectionRefusedError)
    assert "hub.example.org" in str(found)
    # A program that catches it goes on, and may take another path.
    assert [each.origin for each in guesses.listed()] == ["hub.example.org"]


@pytest.mark.parametrize("address", [("localhost", 0), ("127.0.0.1", 29500), (None, 0), "/run/socket"])
def test_this_machine_is_no_network(address: object) -> None:
    """Ranks of a program find each other there."""
    _connected(Guesses(), address)


@pytest.mark.parametrize(
    ("source", "evaluates", "n_done", "ending"),
    [
        ("import apex_of_nobody", True, 2, "refused"),
        ("{}['labels']", True, 2, "steps"),
        ("{}['labels']", True, 1, "failed"),
        ("{}['labels']", False, 2, "failed"),
    ],
)
def test_how_a_program_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, evaluates: bool, n_done: int, ending: str
) -> None:
    """Without its package it is refused, which is exit code 6.  An evaluation that fails behind all steps
    leaves the answer of these, and is told.
    """
    pytest.importorskip("torch")
    from measure.dry_run import child

    program = tmp_path / "train.py"
    program.write_text(f"{source}\n", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [])
    job: Any = SimpleNamespace(command=("python", str(program)), invented=(), n_steps=2)
    stages, guesses = SimpleNamespace(evaluates=evaluates, steps_done=n_done), Guesses()
    pretended: Any = SimpleNamespace(stages=stages, guesses=guesses)
    ran = child._run(job, pretended)
    assert ran.ending == ending
    assert ("apex_of_nobody" in ran.reason) == (ending == "refused")
    assert [each.value for each in guesses.listed()] == (
        ["left out, as it fails: KeyError: 'labels'"] if ending == "steps" else []
    )


def test_where_an_error_came_from() -> None:
    """The program's own line, not torch's that it called."""
    torch = pytest.importorskip("torch")
    with pytest.raises(IndexError) as caught:
        torch.nn.ModuleList()[0]
    assert raised_at(caught.value).startswith("test_missing.py:")
    assert raised_at(caught.value).endswith("(test_where_an_error_came_from)")
