"""What a program lacks on this machine: a package, or the network.  Neither is an error of the program."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from measure.dry_run.guesses import missing_behind, missing_module
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
    try:
        _connected(("hub.example.org", 443, 0, 1, 0))
    except OSError as error:
        behind = RuntimeError("no more retries")
        behind.__context__ = error
    found = missing_behind(behind)
    assert isinstance(found, ConnectionRefusedError)
    assert "hub.example.org" in str(found)


@pytest.mark.parametrize("address", [("localhost", 0), ("127.0.0.1", 29500), (None, 0), "/run/socket"])
def test_this_machine_is_no_network(address: object) -> None:
    """Ranks of a program find each other there."""
    _connected(address)


def test_a_program_without_its_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is exit code 6 and not the program's own 1."""
    pytest.importorskip("torch")
    from measure.dry_run import child

    program = tmp_path / "train.py"
    program.write_text("import apex_of_nobody\n", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [])

    class Job:
        command, invented = ("python", str(program)), ()

    ran = child._run(Job())  # type: ignore[arg-type]
    assert (ran.ending, "apex_of_nobody" in ran.reason) == ("refused", True)
