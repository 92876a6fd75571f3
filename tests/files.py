"""Config files as tests write them, and what is read of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from planner.api.checks import check_job, command_job
from planner.api.files import CheckOptions
from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.read import read_config
from planner.configs.said_by_file import Reading
from planner.domain.scenario import Scenario
from planner.intake.given.config_file import ConfigFile, read_config_file, with_flags
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.report.check.checked import Checked


def written(folder: Path, content: str | Mapping[str, Any], name: str = "train.yaml") -> Path:
    """A file with this text, or with this table as JSON or YAML."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, str):
        content = json.dumps(content) if path.suffix == ".json" else yaml.safe_dump(dict(content))
    path.write_text(content, encoding="utf-8")
    return path


def read(
    folder: Path, content: str | Mapping[str, Any], name: str = "train.yaml", **beside: Any
) -> ConfigFile:
    """What such a file says, with what is given ``beside`` it."""
    return read_config_file(written(folder, content, name), None, Beside(**beside))


def reading_of(
    folder: Path, content: str | Mapping[str, Any], name: str = "train.yaml", **beside: Any
) -> Reading:
    """The same as its reader enters it."""
    return read_config(written(folder, content, name), None, Beside(**beside))


def filled(config: ConfigFile, flags: Mapping[str, object]) -> Scenario:
    """The job of a config with these flags."""
    return resolve(with_flags(config, from_flags(flags)))


def bare(scenario: Scenario) -> Scenario:
    """A scenario without where its values come from."""
    return replace(scenario, assumptions=(), warnings=(), stack=replace(scenario.stack, settled=()))


def remarks(read_of: ConfigFile | Reading) -> str:
    """All remarks of a file in one text."""
    return "\n".join(remark.text for remark in read_of.remarks)


def answer_to(command: str, flags: Mapping[str, object], **options: Any) -> Checked:
    """The answer about a launch command, without advice."""
    return check_job(command_job(command, CheckOptions(**options)), from_flags(flags), advise=False)


def scenario_in(answer: Checked) -> Scenario:
    """The job that was answered."""
    assert answer.subject is not None, answer.failure
    return answer.subject.scenario
