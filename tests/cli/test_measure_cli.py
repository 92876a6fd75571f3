"""``measure trace`` as a user meets it: exit codes, messages, JSON."""

from __future__ import annotations

import json
import pickle
import pickletools
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from measure.cli.main import main
from planner.domain.term import ALLOCATED_TERMS
from planner.words import words
from tests.extras import needs
from tests.in_process import called

ROOT = Path(__file__).resolve().parents[2]
CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}
needs_torch = needs("torch", "transformers", "peft", "accelerate")
# Runs the command with a finder that hides the named package, as if it were not installed.
_WITHOUT = """
import importlib.util, json, sys
real = importlib.util.find_spec
hidden = sys.argv[2] if len(sys.argv) > 2 else "torch"
importlib.util.find_spec = lambda name, *rest: None if name == hidden else real(name, *rest)
from measure.cli.main import main
code = main(json.loads(sys.argv[1]))
assert "torch" not in sys.modules
sys.exit(code)
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small model's config.json."""
    path = tmp_path_factory.mktemp("tiny") / "config.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    return str(path)


# A stack that sets something, and how to take that back.
_GROWS, _PLAIN = ("--switches", "expandable_segments=on"), ("--allocator", "expandable_segments:False")
# The package is on no index.
FOLDER = "in the project's folder"


def run_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """One call of the command in a process of its own, which imports torch anew."""
    command = [sys.executable, "-m", "measure", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """One call of the command in this process."""
    return subprocess.CompletedProcess(arguments, *called(main, arguments))


def test_help_works_without_torch() -> None:
    """Both helps are printed without importing torch, and list the flags of a scenario."""
    for arguments in (["--help"], ["trace", "--help"]):
        command = [sys.executable, "-c", _WITHOUT, json.dumps(arguments)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "trace" in done.stdout
    assert "--lora-rank" in done.stdout
    assert "--fits" in done.stdout


def test_without_torch_the_extra_is_named() -> None:
    """One sentence says what to install, exit code 2."""
    arguments = ["trace", "--model", "7b", "--method", "lora", "--seq", "128"]
    command = [sys.executable, "-c", _WITHOUT, json.dumps(arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert (
        done.stderr
        == f"measure: torch is not installed; install the measure extra: pip install '.[measure]' {FOLDER}\n"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["trace"], "missing --model, --method; for example: measure trace"),
        (
            ["trace", "--model", "7b", "--method", "lora", "--seq", "128", "--fits", "24"],
            "--fits must be a size with a unit",
        ),
        (
            ["trace", "--model", "7b", "--method", "lora", "--seq", "128", "--fits", "0GiB"],
            "--fits must be a size with a unit and above 0",
        ),
        (["trace", "--model", "7b", "--method", "lora", "--seq", "no"], "seq must be a whole number"),
        (["trace", "--model", "7c", "--method", "lora", "--seq", "128"], "unknown model '7c'"),
        (["trace", "--sequence", "128"], "measure trace --help lists the flags"),
        (["run-away"], "measure --help lists the commands"),
    ],
)
def test_wrong_use_is_one_sentence(arguments: list[str], says: str) -> None:
    """Exit code 2, one line on standard error, nothing on standard output."""
    done = run(*arguments)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.real
@needs_torch
def test_a_trace_says_that_it_has_no_evaluation(config: str) -> None:
    """In a remark, and among what it assumed."""
    job = ("trace", "--model", config, "--method", "lora", "--seq", "64", "--batch", "2", "--json")
    done = run_process(*job, "--eval-batch", "4")
    assert done.returncode == 0, done.stderr
    assert "the evaluation is left out" in done.stderr
    found = [each["value"] for each in json.loads(done.stdout)["assumptions"] if each["name"] == "evaluation"]
    assert "left out" in found


@pytest.mark.real
@needs_torch
def test_a_trace_in_json_adds_up(config: str) -> None:
    """Phases in order, terms that sum up to the allocated peak, reserved at least as much,
    and where the peak is.
    """
    done = run_process(
        "trace", "--model", config, "--method", "lora", "--seq", "64", "--batch", "2", "--json"
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    phases = {each["phase"]: each for each in answer["phases"]}
    wanted = list(words("load adapters forward loss backward optimizer_step forward_2 loss_2 backward_2"))
    assert list(phases) == wanted
    assert answer["schema"] == "measure/trace@1"
    for each in answer["phases"]:
        moment = each["at_peak"]
        assert (
            sum(term["bytes"] for term in moment["terms"])
            == moment["allocated_bytes"]
            == each["allocated_bytes"]
        )
        assert moment["unused_bytes"] == moment["reserved_bytes"] - moment["allocated_bytes"] >= 0
    names = [
        name for each in answer["phases"] for name in (term["name"] for term in each["at_peak"]["terms"])
    ]
    assert set(names) <= ALLOCATED_TERMS
    assert answer["peak"]["allocated_bytes"] == answer["allocated_peak_bytes"]
    assert answer["reserved_peak"]["reserved_bytes"] == answer["reserved_peak_bytes"]
    timeline = answer["timeline"]
    assert [each["event"] for each in timeline] == sorted(each["event"] for each in timeline)
    assert max(each["allocated_bytes"] for each in timeline) == answer["allocated_peak_bytes"]
    assert list(dict.fromkeys(each["phase"] for each in timeline)) == wanted
    assert answer["allocated_peak_bytes"] == max(each["allocated_bytes"] for each in answer["phases"])
    assert answer["reserved_peak_bytes"] >= answer["allocated_peak_bytes"]
    assert answer["peak"]["operator"].startswith("aten.")
    assert answer["verdict"] is None
    assert done.stderr == ""


@needs_torch
def test_a_card_that_is_too_small_is_exit_code_3(config: str) -> None:
    """The sentence says in which phase, at which operator and for how much; a large card fits."""
    job = ["trace", "--model", config, "--method", "full", "--seq", "64"]
    small = run(*job, "--fits", "8MiB")
    assert small.returncode == 3, small.stderr
    assert "DOES NOT FIT in 0.01 GiB: out of memory in" in small.stdout
    large = run(*job, "--fits", "1GiB")
    assert large.returncode == 0, large.stderr
    assert "FITS in 1.00 GiB" in large.stdout
    # A card that is named is answered for; of one that others fill nothing is left.
    card = run(*job, "--gpu", "4090")
    assert card.returncode == 0, card.stderr
    assert "FITS in " in card.stdout
    full = run(*job, "--gpu", "4090", "--gpu-reserved", "23.5GiB")
    assert full.returncode == 3, full.stderr


@needs_torch
def test_picture_and_snapshot_are_written_whole(config: str, tmp_path: Path) -> None:
    """A PNG with all its pixels and a pickle without any class, and nothing else in the folder."""
    picture, snapshot = tmp_path / "timeline.png", tmp_path / "snapshot.pickle"
    done = run(
        "trace", "--model", config, "--method", "lora", "--seq", "64", "--plot", str(picture), "--export",
        str(snapshot)
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["snapshot.pickle", "timeline.png"]
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG\r\n")
    assert content.rstrip().endswith(b"IEND\xaeB`\x82")
    opcodes = {opcode.name for opcode, _, _ in pickletools.genops(snapshot.read_bytes())}
    assert not opcodes & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "INST", "OBJ", "NEWOBJ", "BUILD"}


def test_without_matplotlib_the_extra_is_named(config: str, tmp_path: Path) -> None:
    """Before any work is done: one sentence, exit code 2, and no file."""
    arguments = [
        "trace",
        "--model",
        config,
        "--method",
        "lora",
        "--seq",
        "64",
        "--plot",
        str(tmp_path / "a.png"),
    ]
    command = [sys.executable, "-c", _WITHOUT, json.dumps(arguments), "matplotlib"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert (
        done.stderr
        == f"measure: matplotlib is not installed; install the plots extra: pip install '.[plots]' {FOLDER}\n"
    )
    assert not list(tmp_path.iterdir())


def test_a_target_that_cannot_be_written_is_said_first(config: str, tmp_path: Path) -> None:
    """A missing folder, or a folder in the place of the file, is exit code 2 before any work."""
    job = ["trace", "--model", config, "--method", "lora", "--seq", "64"]
    for flag in ("--plot", "--export"):
        for target, says in (
            (tmp_path / "none" / "a", "there is no folder"),
            (tmp_path, "not a regular file"),
        ):
            done = run(*job, flag, str(target))
            assert done.returncode == 2, done.stderr
            assert says in done.stderr


@needs_torch
def test_an_interrupt_leaves_no_files(config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted while the snapshot is being written: exit code 130, no traceback, and no file,
    whole or half.
    """

    def dump(_value: object, stream: BinaryIO, **_: object) -> None:
        stream.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(pickle, "dump", dump)
    done = run(
        "trace", "--model", config, "--method", "lora", "--seq", "64", "--export", str(tmp_path / "a.pickle")
    )
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


@needs_torch
def test_allocator_settings_change_the_replay(config: str, tmp_path: Path) -> None:
    """Larger segments reserve more for the same events; those of the stack are taken where none are given;
    a wrong setting is exit code 2.
    """
    job = ["trace", "--model", config, "--method", "full", "--seq", "64", "--json"]
    plain = json.loads(run(*job).stdout)
    other = json.loads(run(*job, "--allocator", "large_segment_size_mb:64").stdout)
    assert other["allocated_peak_bytes"] == plain["allocated_peak_bytes"]
    assert other["reserved_peak_bytes"] > plain["reserved_peak_bytes"]
    for said, text in (((), "expandable_segments:True"), (_PLAIN, "expandable_segments:False")):
        done = run(*job, *_GROWS, *said, "--export", str(tmp_path / "a.pickle"))
        settings = pickle.loads((tmp_path / "a.pickle").read_bytes())["allocator_settings"]
        assert settings["PYTORCH_CUDA_ALLOC_CONF"] == text
        assert ("of torch's allocator" in done.stderr) is (said == ())
    wrong = run(*job, "--allocator", "garbage:1")
    assert wrong.returncode == 2
    assert "allocator setting" in wrong.stderr


@needs_torch
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--model", "chatglm3-6b", "--method", "lora"], "its code ships with the checkpoint"),
        (["--model", "7b", "--method", "full", "--gpus", "4", "--sharding", "hsdp"], "run its program"),
        (["--model", "7b", "--method", "lora", "--quantization", "gptq-int4"], "quantization 'gptq-int4'"),
    ],
)
def test_what_is_not_traced_is_exit_code_6(flags: list[str], says: str) -> None:
    """No number where one could be wrong: a sentence that says what to do, and exit code 6."""
    done = run("trace", *flags, "--seq", "64")
    assert done.returncode == 6, done.stderr
    assert says in done.stderr
    assert done.stdout == ""


def test_the_version_is_printed() -> None:
    """One distribution, one version."""
    from planner.version import __version__

    done = run_process("--version")
    assert (done.returncode, done.stdout) == (0, f"measure {__version__}\n")
