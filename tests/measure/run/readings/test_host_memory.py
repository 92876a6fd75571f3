"""Host RAM as control groups tell it."""

from __future__ import annotations

from pathlib import Path

from measure.run.readings.host_memory import cgroup_bytes, cgroup_kills
from planner.units import MIB


def test_control_group_files_of_both_versions(tmp_path: Path) -> None:
    """Version 2 and version 1 are read; 'max' and version 1's huge number mean no limit; no files,
    no figure.
    """
    assert cgroup_bytes("current", tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1048576\n")
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert (cgroup_bytes("max", tmp_path), cgroup_bytes("current", tmp_path), cgroup_kills(tmp_path)) == (
        None,
        MIB,
        2,
    )
    old = tmp_path / "old"
    (old / "memory").mkdir(parents=True)
    (old / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (old / "memory" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert (cgroup_bytes("max", old), cgroup_kills(old)) == (None, 1)


def test_kills_are_counted_in_the_group_of_the_process(tmp_path: Path) -> None:
    """A job of Slurm is in a group below the root, which has no count; version 1 names each controller."""
    own, root = tmp_path / "own", tmp_path / "root"
    own.write_text("0::/system.slice/slurmstepd.scope/job_7\n", encoding="utf-8")
    group = root / "system.slice" / "slurmstepd.scope" / "job_7"
    group.mkdir(parents=True)
    (group / "memory.events").write_text("low 0\noom 5\noom_kill 2\n", encoding="ascii")
    assert cgroup_kills(root, own) == 2
    own.write_text("9:name=systemd:/a\n8:cpu,memory:/slurm/job_7\n", encoding="utf-8")
    (root / "memory" / "slurm" / "job_7").mkdir(parents=True)
    (root / "memory" / "slurm" / "job_7" / "memory.oom_control").write_text(
        "under_oom 0\noom_kill 3\n", encoding="ascii"
    )
    assert cgroup_kills(root, own) == 3
    assert cgroup_kills(root, tmp_path / "none") is None
