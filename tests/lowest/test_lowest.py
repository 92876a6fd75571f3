"""What ``make test-lowest`` installs, and on which Python."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from find_python import supported
from minima import minima

from tests.extras import import_or_skip

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def requirements(tables: dict) -> Iterable[str]:
    """Those of the package, of its extras and of its build."""
    return (
        *tables["project"]["dependencies"],
        *(each for extra in tables["project"]["optional-dependencies"].values() for each in extra),
        *tables["build-system"]["requires"],
    )


def test_the_constraints_are_the_lowest_versions_that_are_allowed() -> None:
    """For every requirement there is one version, which is allowed, and nothing below it is;
    that of the build is tried too.
    """
    packaging = import_or_skip("packaging.requirements")
    version = import_or_skip("packaging.version").Version
    lowest = dict(line.split("==") for line in minima())
    tables = tomllib.loads(PROJECT.read_text(encoding="utf-8"))
    read = [packaging.Requirement(each) for each in requirements(tables)]
    others = [each for each in read if each.name != tables["project"]["name"]]
    assert {each.name for each in others} == lowest.keys()
    for each in others:
        assert each.specifier.contains(lowest[each.name]), each
        assert not each.specifier.contains(f"{version(lowest[each.name])}.dev0"), each
        assert len(each.specifier) == 1, each


@pytest.mark.parametrize(
    "requirement", ["numpy", "numpy>1.26", "numpy>=1.26,<3", "numpy>=1.26; python_version < '3.12'"]
)
def test_a_requirement_without_one_lower_bound_is_refused(tmp_path: Path, requirement: str) -> None:
    """A version that was left to chance would be called tried."""
    project = tmp_path / "pyproject.toml"
    project.write_text(
        f'[project]\nname = "a"\ndependencies = ["{requirement}"]\noptional-dependencies = {{}}\n',
        encoding="utf-8",
    )
    with pytest.raises(ValueError, match="is not of the form name>=version"):
        list(minima(project))


def test_pythons_are_found_from_the_oldest_to_the_newest_that_are_supported(tmp_path: Path) -> None:
    """Each is asked for its version: a name says nothing.  Too old,
    broken and other programs are left out, links count once.
    """
    answers = {
        "python3.9": "3 9 18",
        "python3.12": "3 12 1",
        "python3": "3 11 7",
        "python3.14": "3 14 0",
        "python3-config": "3 15 0",
    }
    for name, answer in answers.items():
        _program(tmp_path / name, f"echo {answer}")
    _program(tmp_path / "python3.16", "exit 1")
    _program(tmp_path / "python3.17", "echo")
    (tmp_path / "python3.13").symlink_to(tmp_path / "python3.12")
    (tmp_path / "python3.18").write_text("not a program", encoding="utf-8")
    found = supported([tmp_path, tmp_path / "nowhere"])
    assert [path.name for path in found] == ["python3", "python3.12", "python3.14"]


def _program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    path.chmod(0o755)
