"""What libraries compile on first use: tools that are missing, locks that stay behind,
and whose memory that is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from measure.run.cases.builds import extensions_folder, missing_build_tool, remove_abandoned_locks
from measure.run.processes import worker_environment
from tests.extras import import_or_skip

psutil = import_or_skip("psutil")


def lock(folder: Path, age_s: float) -> Path:
    """A lock of this age in a folder of its own."""
    folder.mkdir(parents=True)
    path = folder / "lock"
    path.touch()
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_a_lock_of_a_killed_compilation_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old lock in whose folder nobody works goes; a new one and one of a compilation that runs stay."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    abandoned = lock(tmp_path / "cpu_adam", 90)
    new = lock(tmp_path / "py311" / "new", 1)
    used = lock(tmp_path / "used", 90)
    with subprocess.Popen(["sleep", "60"], cwd=used.parent) as compiling:
        assert remove_abandoned_locks() == (abandoned,)
        compiling.kill()
    assert (abandoned.exists(), new.exists(), used.exists()) == (False, True, True)
    assert remove_abandoned_locks() == (used,)


@pytest.mark.parametrize(
    ("mounts", "shared"),
    [
        ({"/": "ext4"}, False),
        ({"/": "ext4", "FOLDER": "nfs4"}, True),
        ({"/": "ext4", "FOLDER": "lustre"}, True),
        ({"/": "overlay"}, False),
        ({"/": "overlay", "FOLDER": "ext4"}, True),
    ],
    ids=["own-disk", "nfs", "lustre", "container", "container-with-a-home-of-its-host"],
)
def test_a_lock_that_others_may_hold_stays_until_all_is_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounts: dict[str, str], shared: bool
) -> None:
    """Another node of a cluster compiles unseen: where the folder is shared,
    a lock goes only after a quarter of an hour.
    """
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    partitions = [
        SimpleNamespace(mountpoint=str(tmp_path) if place == "FOLDER" else place, fstype=kind)
        for place, kind in mounts.items()
    ]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: partitions)
    path = lock(tmp_path / "cpu_adam", 90)
    assert remove_abandoned_locks() == (() if shared else (path,))
    long_ago = (time.time() - 1000,) * 2
    for each in (path.parent, *path.parent.iterdir()):
        os.utime(each, long_ago)
    assert remove_abandoned_locks() == ((path,) if shared else ())


def test_the_folder_is_that_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch itself would put what it compiles, with and without the variables that move it."""
    cpp_extension = import_or_skip("torch.utils.cpp_extension")
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert extensions_folder().resolve() == Path(cpp_extension.get_default_build_root())
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "said"))
    made = Path(cpp_extension._get_build_directory("cpu_adam", verbose=False))
    assert extensions_folder() in made.parents


def test_missing_compilers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of the tools that is nowhere; programs beside this Python count as here."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    assert missing_build_tool() == "c++"
    monkeypatch.setenv("CXX", sys.executable)
    beside = Path(sys.executable).parent / "ninja"
    assert missing_build_tool() == (None if beside.exists() else "ninja")
    assert worker_environment()["PATH"] == f"/nowhere{os.pathsep}{Path(sys.executable).parent}"


def test_compilers_are_no_part_of_the_memory_of_a_job() -> None:
    """Processes under a job that run another program, such as a compiler, are not counted;
    workers of the same Python are.
    """
    from measure.run.readings.host_memory import _tree

    script = (
        "import subprocess, sys; subprocess.Popen(['sleep', '60']); subprocess.run([sys.executable, "
        "'-c', 'input()'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, start_new_session=True
    ) as job:
        process = psutil.Process(job.pid)
        end_s = time.monotonic() + 20
        while len(process.children()) < 2 and time.monotonic() < end_s:
            time.sleep(0.05)
        time.sleep(0.2)
        counted = {each.pid for each in _tree(job.pid)}
        everybody = {each.pid: each.name() for each in [process, *process.children(recursive=True)]}
        os.killpg(job.pid, 9)
    assert len(everybody) == 3
    assert counted == {pid for pid, name in everybody.items() if name != "sleep"}
