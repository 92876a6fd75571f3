"""What lies under a name may be no file, not end, or be somebody's secret: it is refused,
and nothing of it is shown.
"""

from __future__ import annotations

import gzip
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hostile.harness import assert_sound, examples
from hostile.mutations import to_json
from hostile.seeds import history_lines
from hypothesis import given
from hypothesis import strategies as st

from planner.units import GIB, MIB
from tests.files import written

MARK = "SECRET-f3a9"
SECRETS = (
    f"root:x:{MARK}:0:0:root:/root:/bin/bash\ndaemon:*:{MARK}:0:99999:7:::\n",
    f"-----BEGIN OPENSSH PRIVATE KEY-----\n{MARK}AAAAB3NzaC1yc2E\n-----END OPENSSH PRIVATE KEY-----\n",
    f"https://user:{MARK}@example.com\n",
    f"[default]\naws_access_key_id = {MARK}\naws_secret_access_key = {MARK}/x+y\n",
    f"machine example.com login me password {MARK}\n",
    f"TOKEN={MARK}\nPASSWORD='{MARK}'\n",
    f'TOKEN = "{MARK}"\n',
    f"token: {MARK}\n",
    f'{{"auths": {{"example.com": {{"auth": "{MARK}"}}}}}}\n',
    f'"{MARK}"\n',
    f"{MARK}\n",
    f"- {MARK}\n",
    f"{MARK},{MARK}\n{MARK},{MARK}\n",
    f"\x00\x01{MARK}\xff",
)
SHAPES = "ab:=#-[]{}\"',. \n\t|>&*!%@"
JOB = ("--method", "lora", "--gpu", "4090", "--seq", "512")
# Name of the file -> commands that read it.
READERS: dict[str, tuple[str, ...]] = {
    "t.yaml": ("plan", "check", "{file}", "--gpu", "4090"),
    "t.json": ("plan", "check", "{file}", "--gpu", "4090"),
    "t.toml": ("plan", "check", "{file}", "--gpu", "4090", "--json"),
    "launch.sh": ("plan", "check", "{file}", "--gpu", "4090"),
    "plan.toml": ("plan", "--config", "{file}", *JOB),
    "search.yaml": ("plan", "search", "--config", "{file}", *JOB),
    "ds.json": ("plan", "check", "{sound}", "--gpu", "4090", "--deepspeed", "{file}"),
    "accelerate.yaml": ("plan", "check", "{sound}", "--gpu", "4090", "--accelerate", "{file}"),
    "config.json": ("plan", "--model", "{file}", *JOB),
    "mine.json": ("plan", "--model", "7b", *JOB, "--calibration", "{file}"),
    "runs.csv": ("plan", "validate", "{file}"),
    "runs.jsonl": ("plan", "validate", "{file}", "--json"),
    "own.csv": ("plan", "calibrate", "{file}", "--name", "mine", "--out", "{folder}"),
    "check.jsonl": ("measure", "check", "{file}"),
    "run.jsonl.gz": ("measure", "replay", "{file}"),
    "campaign.toml": ("measure", "campaign", "{file}", "--dry-run", "--out", "{folder}/out"),
}
needs_links = pytest.mark.skipif(
    not hasattr(os, "mkfifo"), reason="pipes and devices are files on POSIX only"
)


def asked(folder: Path, name: str) -> str:
    """All that the command says which reads ``name`` in ``folder``; it has to refuse it."""
    sound = written(
        folder, "model_name_or_path: Qwen/Qwen2.5-0.5B\nuse_peft: true\ndataset_name: a\n", "sound.yaml"
    )
    places = {"file": folder / name, "sound": sound, "folder": folder}
    program, *words = (word.format(**places) for word in READERS[name])
    found = assert_sound(program, *words, files=[folder / name])
    # `measure check` reports the broken lines of what need not be anything else.
    assert found.code == 2 or (program, words[0]) == ("measure", "check"), (found.code, found.out, found.err)
    return found.out + found.err


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _fifo_link(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


def _link(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def _blank(path: Path) -> None:
    path.write_bytes(b"")


KINDS: dict[str, Callable[[Path], None]] = {
    "missing": lambda path: None,
    "empty": _blank,
    "folder": Path.mkdir,
    "pipe": _fifo,
    "link to a pipe": _fifo_link,
    "link to /dev/zero": _link("/dev/zero"),
    "link to /dev/stdin": _link("/dev/stdin"),
    "link to nothing": _link("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "file of the kernel": _link("/proc/self/environ"),
}


@needs_links
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_regular_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    """Pipes, devices, folders and broken links are refused at once under every name that a command reads."""
    monkeypatch.setenv("MARK", MARK)
    KINDS[kind](tmp_path / name)
    assert MARK not in asked(tmp_path, name)


@needs_links
@pytest.mark.parametrize("name", READERS)
def test_nothing_of_another_file_is_shown(tmp_path: Path, name: str) -> None:
    """A name may be a link to any file of its owner; a message repeats no line of it."""
    (tmp_path / name).symlink_to("private")
    for secret in SECRETS:
        (tmp_path / "private").write_text(secret, encoding="utf-8")
        assert MARK not in (said := asked(tmp_path, name)), (secret, said)


@examples(30)
@given(st.sampled_from(sorted(READERS)), st.text(SHAPES, max_size=12), st.text(SHAPES, max_size=3))
def test_no_line_of_another_file_is_shown(name: str, before: str, after: str) -> None:
    """The same for text of any shape before and after the secret."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, name).write_text(f"{before} x{MARK}x {after}", encoding="utf-8")
        assert MARK not in (said := asked(Path(folder), name)), said


@pytest.mark.parametrize("name", READERS)
def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path, name: str) -> None:
    """100 GiB of zeros, which take no room on the disk, are above the limit of every kind of file."""
    with (tmp_path / name).open("wb") as stream:
        stream.truncate(100 * GIB)
    assert name in asked(tmp_path, name)


@pytest.mark.parametrize(
    "line",
    [b" " * MIB, b"\n" * MIB, b"[0,0,0,0,0]\n" * (MIB // 12), b"[" * MIB, b'"' + b"a" * MIB],
    ids=["one line of blanks", "empty lines", "rows", "nesting", "one text"],
)
@pytest.mark.parametrize("header", ["", f"{to_json(history_lines()[0])}\n"], ids=["no header", "header"])
def test_a_history_that_expands_without_end_is_refused(tmp_path: Path, line: bytes, header: str) -> None:
    """Gzip packs a thousand to one: what it unpacks is counted while it is read, within a line, too."""
    # Members of a gzip file may follow each other, so that the test need not compress all of it.
    packed, head = gzip.compress(line, compresslevel=6), gzip.compress(header.encode()) if header else b""
    (tmp_path / "run.jsonl.gz").write_bytes(head + packed * 3000)
    assert "run.jsonl.gz" in asked(tmp_path, "run.jsonl.gz")
