"""New files for a job: their names, what they refer to, and what is never overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.api.files import CheckOptions
from planner.api.fixes import FileJob
from planner.api.write_fixes import Output, output_of, write_all
from planner.configs.writing.edits import Edit
from planner.configs.writing.sharding_keys import Files
from planner.configs.yaml_or_json import read_document
from planner.errors import InputFileError, UsageError
from planner.intake.given.request import from_flags

STAGE = ("zero_optimization", "stage")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test works in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text('{"zero_optimization": {"stage": 1}}', encoding="utf-8")


def job_of(text: str = "seq: 8  # short\ndeepspeed: ds.json\n", launch: str = "") -> FileJob:
    """A config beside a DeepSpeed file, and beside a launch file with this text."""
    Path("train.yaml").write_text(text, encoding="utf-8")
    Path("launch.yaml").write_text(launch, encoding="utf-8")
    config, deepspeed = read_document(Path("train.yaml")), read_document(Path("ds.json"))
    accelerate = read_document(Path("launch.yaml")) if launch else None
    return FileJob(
        "train.yaml",
        from_flags({}),
        CheckOptions(),
        Files("trl", config, deepspeed, accelerate),
        from_flags({}),
    )


def test_what_changes_gets_a_name_of_its_own_and_is_referred_to() -> None:
    """Comments stay; a file that only names a changed one changes with it, and is launched with."""
    output = output_of(job_of(), [Edit(Path("ds.json"), STAGE, 3)], Path("out.yaml"))
    assert output.texts[Path("out.yaml")] == "seq: 8  # short\ndeepspeed: out_ds.json\n"
    assert '"stage": 3' in output.texts[Path("out_ds.json")]
    assert output.options.deepspeed is None
    launch = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
    output = output_of(job_of("seq: 8\n", launch), [Edit(Path("ds.json"), STAGE, 3)], Path("out.yaml"))
    assert output.texts[Path("out_launch.yaml")] == launch.replace("ds.json", "out_ds.json")
    assert (output.options.accelerate, len(output.texts)) == ("out_launch.yaml", 3)


def test_a_file_that_nothing_names_is_an_option() -> None:
    """Changed or not."""
    edits = [Edit(Path("ds.json"), STAGE, 3)]
    assert output_of(job_of("seq: 8\n"), edits, Path("out.yaml")).options.deepspeed == "out_ds.json"
    output = output_of(job_of("seq: 8\n"), [Edit(Path("train.yaml"), ("seq",), 4)], Path("out.yaml"))
    assert (output.options.deepspeed, dict(output.texts)) == ("ds.json", {Path("out.yaml"): "seq: 4\n"})


def test_only_the_config_itself_is_overwritten() -> None:
    """And what holds the very text already; the kind of file stays."""
    edits = [Edit(Path("train.yaml"), ("seq",), 4)]
    job = job_of("seq: 8\n")
    with pytest.raises(UsageError, match=r"--write out.json: the name must end in .yaml"):
        output_of(job, edits, Path("out.json"))
    Path("out.yaml").write_text("seq: 5\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"out.yaml is there already"):
        output_of(job, edits, Path("out.yaml"))
    Path("out.yaml").write_text("seq: 4\n", encoding="utf-8")
    for name in ("out.yaml", "train.yaml"):
        assert output_of(job, edits, Path(name)).texts == {Path(name): "seq: 4\n"}


def test_files_are_written_all_or_none(tmp_path: Path) -> None:
    """The mode of a file that is replaced stays."""
    old = Path("old.yaml")
    old.write_text("a: 1\n", encoding="utf-8")
    old.chmod(0o640)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputFileError, match="cannot be written: there is no folder 'nowhere'"):
        write_all(Output({old: "a: 2\n", Path("nowhere/new.yaml"): "b: 2\n"}, CheckOptions()))
    assert (old.read_text(encoding="utf-8"), sorted(tmp_path.iterdir())) == ("a: 1\n", before)
    write_all(Output({old: "a: 2\n", Path("new.yaml"): "b: 2\n"}, CheckOptions()))
    assert (old.read_text(encoding="utf-8"), old.stat().st_mode & 0o777) == ("a: 2\n", 0o640)
