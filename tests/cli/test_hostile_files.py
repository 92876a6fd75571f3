"""Every way in which a command is given a file, with files that nobody should give it: one sentence,
at once, without text.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from measure.cli.main import main as measure_main
from planner.cli.main import main as plan_main
from tests.extras import needs
from tests.files import written

Captured = pytest.CaptureFixture[str]
JOB = ["--model", "7b", "--method", "qlora", "--gpu", "4090", "--seq", "1024"]
# The command, and the name that its file needs to have.
GIVEN: dict[str, tuple[Callable[[list[str]], int], list[str], str]] = {
    "check yaml": (plan_main, ["check", "FILE", "--gpu", "4090"], "train.yaml"),
    "check json": (plan_main, ["check", "FILE", "--gpu", "4090"], "train.json"),
    "check toml": (plan_main, ["check", "FILE", "--gpu", "4090"], "train.toml"),
    "config": (plan_main, ["--config", "FILE"], "job.toml"),
    "model": (plan_main, ["--model", "FILE", *JOB[2:]], "config.json"),
    "calibration": (plan_main, [*JOB, "--calibration", "FILE"], "mine.json"),
    "records csv": (plan_main, ["validate", "FILE"], "runs.csv"),
    "records jsonl": (plan_main, ["validate", "FILE"], "runs.jsonl"),
    "campaign": (measure_main, ["campaign", "FILE", "--out", "OUT"], "tiny.toml"),
    "history": (measure_main, ["replay", "FILE"], "h.jsonl.gz"),
    "hostfile": (
        measure_main,
        ["run", "--model", "7b", "--method", "lora", "--seq", "64", "--hostfile", "FILE"],
        "hosts",
    ),
}
# Real runs look for torch before they read anything.
WAYS = [pytest.param(name, marks=needs("torch", "psutil")) if name == "hostfile" else name for name in GIVEN]
SECRET = "hunter2"
SECRETS = {
    "words": f"root:{SECRET}:0:0:\n{SECRET} again\n",
    "one word": SECRET,
    "yaml": f"{SECRET}: {SECRET}\n",
    "json": f'{{"{SECRET}": "{SECRET}", "{SECRET}": 1}}\n',
    "toml": f'{SECRET} = "{SECRET}"\n[{SECRET}]\n[{SECRET}]\n',
    "tag": f"a: !{SECRET} {SECRET}\n",
    "csv": f"{SECRET},name\n{SECRET},1\n",
    "schema": f'{{"schema": "{SECRET}", "{SECRET}": 1}}\n',
}


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    """No file holds a command up for ten seconds."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError("a file held the command up")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def said(given: str, file: Path, capsys: Captured) -> str:
    """What a command says that is given ``file``; it ends with 2, in one line."""
    main, words, _ = GIVEN[given]
    code = main([{"FILE": str(file), "OUT": str(file.parent / "out")}.get(word, word) for word in words])
    output = capsys.readouterr()
    # As one line, however the width breaks it.
    told = " ".join((output.out + output.err).split())
    assert code == 2, told
    assert file.name in told
    return told


@pytest.mark.parametrize("given", WAYS)
def test_what_is_no_regular_file_is_refused_at_once(given: str, tmp_path: Path, capsys: Captured) -> None:
    """A pipe that nobody writes to, a link to a device without an end, and a folder."""
    for kind, make in {
        "pipe": os.mkfifo,
        "device": lambda path: path.symlink_to("/dev/zero"),
        "folder": Path.mkdir,
    }.items():
        file = tmp_path / kind / GIVEN[given][2]
        file.parent.mkdir()
        make(file)
        told = said(given, file, capsys)
        assert "not a regular file" in told or "no such file" in told, (kind, told)


@pytest.mark.parametrize("content", SECRETS)
@pytest.mark.parametrize("given", WAYS)
def test_no_content_of_another_file_is_repeated(
    given: str, content: str, tmp_path: Path, capsys: Captured
) -> None:
    """A link with a config's name may lead to any file: what stands in it is never printed."""
    other = written(tmp_path, SECRETS[content], "other")
    file = tmp_path / GIVEN[given][2]
    file.symlink_to(other)
    assert SECRET not in said(given, file, capsys)


DEEP = 200_000


@pytest.mark.parametrize(
    "content",
    [
        "[" * DEEP,
        '{"a":' * (DEEP // 5),
        "a = " + "[" * DEEP,
        "a = " + "{a=" * (DEEP // 3),
        "a." * (DEEP // 2) + "a = 1\n",
        "- " * (DEEP // 2),
        "a: " * 1000,
        "9" * DEEP,
        "a: " + "1:" * (DEEP // 2) + "1.5\n",
        'a: !!float "' + "1:" * 500 + '1.5"\n',
        "a: 0x" + "f" * DEEP + "\n",
        "a = 0x" + "f" * DEEP + "\n",
        '{"model_type": 1e999}',
        '{"a": "' + "\\" * (DEEP - 1),
        'a = """' + '\\"' * (DEEP // 2),
        "\0",
        "\ufeffa",
        "? [a]\n: 1\n",
        "a: &a [*a]\n",
        "a: ${x}\nb: {{ y }}\n",
        "a: 2026-02-31\n",
        "\ud800",
        "\r",
    ],
    ids=lambda text: ascii(text[:12]),
)
@pytest.mark.parametrize("given", WAYS)
def test_no_content_is_an_internal_error(given: str, content: str, tmp_path: Path, capsys: Captured) -> None:
    """Depth, keys of many parts, numbers of many digits, unfinished strings,
    marks and characters that no text has.
    """
    file = tmp_path / GIVEN[given][2]
    file.write_bytes(content.encode("utf-8", "surrogatepass"))
    assert len(said(given, file, capsys)) < 1000


def test_a_pipe_in_the_personal_folder_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """It is left out with a warning, and the calibration that ships answers."""
    folder = tmp_path / "finetune-planner" / "calibration"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "mine.json")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert plan_main(JOB) == 0
    assert "a personal calibration is left out" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "fields",
    [{"model_type": "jamba", "num_experts": 10**9}, {"model_type": "mixtral", "num_local_experts": 10**9}],
)
def test_a_config_of_a_billion_experts_is_refused(
    fields: dict[str, object], tmp_path: Path, capsys: Captured
) -> None:
    """Any reader's: a module for each of them would take the machine."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 8, "num_attention_heads": 8}
    path = written(tmp_path, {**sizes, "vocab_size": 99, **fields}, "config.json")
    assert plan_main(["--model", str(path), "--method", "lora", "--gpu", "4090", "--seq", "64"]) == 2
    assert "1000000000 experts are above the limit of 4096" in capsys.readouterr().err
