"""The processes of workers: their environment, how one is ended, and a parent that cannot start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import measure.run.processes
from measure.run.processes import Zygote, ZygoteError, kill_group, worker_environment


def test_a_parent_that_cannot_import_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the interpreter wrote last is in the sentence:
    on a foreign machine it is all that there is to go by.
    """
    (tmp_path / "torch.py").write_text(
        "raise ImportError('libcudart.so.13: cannot open shared object file')", encoding="utf-8"
    )
    root = str(Path(__file__).resolve().parents[3])
    monkeypatch.setattr(
        measure.run.processes, "worker_environment", lambda: {"PYTHONPATH": f"{tmp_path}:{root}"}
    )
    with pytest.raises(
        ZygoteError, match=r"import torch and transformers\? It said: ImportError: libcudart.so.13: cannot"
    ):
        Zygote()


def test_a_worker_finds_this_package_first_and_programs_of_this_python_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Modules of the user come behind ours; his programs come before those beside our Python."""
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    found = worker_environment()
    root = str(Path(__file__).resolve().parents[3])
    assert found["PYTHONPATH"] == os.pathsep.join((root, "/theirs"))
    assert found["PATH"] == os.pathsep.join(("/bin", str(Path(sys.executable).parent)))
    assert found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    monkeypatch.delenv("PYTHONPATH")
    assert worker_environment()["PYTHONPATH"] == root


def test_a_group_is_killed_with_all_that_it_started() -> None:
    """Both processes of a group; one that is gone already is no error."""
    code = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True); input()"
    parent = subprocess.Popen(
        [sys.executable, "-S", "-c", code],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert parent.stdout is not None
    assert int(parent.stdout.readline()) > 0
    kill_group(parent.pid)
    # The child holds the other end of the pipe until it ends, too.
    assert parent.stdout.read() == ""
    assert parent.wait(10) == -signal.SIGKILL
    # Above the largest number of a process.
    kill_group(2**22 + 1)
