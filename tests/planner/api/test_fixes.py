"""Changes of a file's own keys: each is read again, and offered only where it means what it should."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.api.files import CheckOptions
from planner.api.fixes import FileJob, file_job, fix_of
from planner.api.open_version import answer_of_versions, check_file
from planner.configs.writing.edits import Edit
from planner.errors import UsageError
from planner.intake.given.config_file import read_config_file
from planner.intake.given.request import from_flags
from planner.report.prediction.subject import Subject
from tests.planner.report.prediction.made import lever

TRAIN = "model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\nfinetuning_type: lora\ntemplate: qwen\n"
TRAIN += "cutoff_len: 512\nper_device_train_batch_size: 8\nbf16: true\n"
BATCH = "per_device_train_batch_size"


def job_of(folder: Path, more: str = "", **given: str) -> FileJob:
    """The job of a file with ``more``."""
    path = folder / "train.yaml"
    path.write_text(TRAIN + more, encoding="utf-8")
    request = from_flags({"gpu_memory": "4GB", **given})
    return file_job(str(path), read_config_file(str(path)), request, CheckOptions())


def asked(job: FileJob, *edits: Edit) -> tuple[Subject, float]:
    """Its answer after ``edits``, and the minimum memory of one GPU, in bytes."""
    subject = job.asked_with(edits).subject
    assert subject is not None
    return subject, float(subject.prediction.memory.must_have_bytes)


def test_the_files_of_a_job_are_those_that_it_names(tmp_path: Path) -> None:
    """An engine's file by the key that refers to it."""
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}', encoding="utf-8")
    files = job_of(tmp_path, f"deepspeed: {tmp_path}/ds.json\n").files
    assert (files.tool, files.accelerate) == ("llama-factory", None)
    assert [each.path.name for each in files.documents] == ["train.yaml", "ds.json"]


def test_a_change_is_asked_as_if_it_stood_in_the_file(tmp_path: Path) -> None:
    """The answer is that of such a file, and the file stays as it is; nonsense is refused."""
    job = job_of(tmp_path)
    path = job.files.config.path
    _, needs = asked(job, Edit(path, (BATCH,), 2))
    assert path.read_text(encoding="utf-8") == TRAIN
    with pytest.raises(UsageError, match=BATCH):
        asked(job, Edit(path, (BATCH,), -1))
    path.write_text(TRAIN.replace("size: 8", "size: 2"), encoding="utf-8")
    written = check_file(job.config, job.given, job.options).subject
    assert written is not None
    assert needs == written.prediction.memory.must_have_bytes


def test_a_fix_saves_what_the_changed_files_say(tmp_path: Path) -> None:
    """Not what its lever promised; a second one stands on top of the first."""
    job = job_of(tmp_path)
    before, needs = asked(job)
    first = fix_of(job, before, lever(flags={"batch": "4"}, saves_bytes=1))
    assert [(edit.key, edit.value) for edit in first.edits] == [(BATCH, 4)]
    after, needs_less = asked(job, *first.edits)
    assert first.saves_bytes == round(needs - needs_less) > 1
    second = fix_of(job, after, lever(flags={"gradient-checkpointing": True}), first.edits)
    assert second.after is not None
    assert second.after.scenario.recipe.batch.micro_batch == 4


def test_what_nobody_says_is_asked_as_the_answer_took_it(tmp_path: Path) -> None:
    """A file without ``bf16`` leaves the dtype open: fixes are keys of the file all the same."""
    path = tmp_path / "open.yaml"
    path.write_text(TRAIN.replace("bf16: true\n", ""), encoding="utf-8")
    given = from_flags({"gpu_memory": "4GB"})
    read = read_config_file(str(path))
    checked, chosen, _ = answer_of_versions(str(path), read, given, CheckOptions())
    assert checked.subject is not None
    job = file_job(str(path), chosen, given, CheckOptions())
    assert dict(job.tried.values).keys() == {"precision"}
    fix = fix_of(job, checked.subject, lever(flags={"batch": "4"}))
    assert [(edit.key, edit.value) for edit in fix.edits] == [(BATCH, 4)]


def test_what_the_files_cannot_say_is_left_to_flags(tmp_path: Path) -> None:
    """A typed flag wins over the file; cards stand in none."""
    typed = job_of(tmp_path, batch="8")
    for job, flags in ((typed, {"batch": "1"}), (job_of(tmp_path), {"gpu": "h100-sxm"})):
        fix = fix_of(job, asked(job)[0], lever(flags=flags, saves_bytes=7))
        assert (fix.edits, fix.after, fix.saves_bytes) == ((), None, 7)
