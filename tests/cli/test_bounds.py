"""Bounds in place of a refusal: ``plan`` and ``plan check`` of a model that no reader knows."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from planner.api import bounded, measure_process
from planner.catalog.described import Description, Family, description_json
from planner.catalog.hf_config import model_from_config
from planner.cli.main import main
from planner.report.bounds.document import BoundsDocument
from tests.files import written

LLAMA = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
# An architecture of Transformers of which there is no program.
UNREAD = "xlstm"
Captured = pytest.CaptureFixture[str]


def _described(family: Family = "dense", attention: tuple[str, ...] = ("eager", "sdpa")) -> Description:
    """What ``measure`` would say of a model with the matrices of Llama."""
    spec = model_from_config(LLAMA, "here")
    names = ("hidden_size", "vocab_size", "groups", "token_embedding", "head", "tied")
    same = {name: getattr(spec, name) for name in (*names, "max_position_tokens", "final_norms")}
    return Description(UNREAD, family=family, attention=attention, **same)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What ``measure`` is given; it answers with :func:`_described`."""
    given: list[Any] = []

    def run(command: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
        given.append((command[3:], how["input"], how["timeout"]))
        return subprocess.CompletedProcess(command, 0, description_json(_described()), "")

    monkeypatch.setattr(measure_process.subprocess, "run", run)
    monkeypatch.setattr(measure_process, "find_spec", lambda _: True)
    monkeypatch.setattr(bounded, "find_spec", lambda _: True)
    bounded._counted.cache_clear()
    return given


@pytest.fixture
def config(tmp_path: Path) -> str:
    """A config of an architecture without a program, which names code of its own, too."""
    path = written(
        tmp_path, {**LLAMA, "model_type": UNREAD, "auto_map": {"AutoConfig": "evil--x.Y"}}, "config.json"
    )
    return str(path)


def _job(config: str, memory: str, *flags: str) -> list[str]:
    job = ["--model", config, "--method", "full", "--gpu", "4090", "--gpu-memory", memory, "--seq", "512"]
    return [*job, "--gradient-checkpointing", *flags]


@pytest.mark.parametrize(
    ("memory", "code", "word"), [("80GiB", 0, "FITS"), ("8GiB", 4, "UNCERTAIN"), ("6GiB", 3, "DOES NOT FIT")]
)
def test_the_verdict_is_that_of_both_ends(
    asked: list[Any], config: str, capsys: Captured, memory: str, code: int, word: str
) -> None:
    """The headline says that nothing was predicted, JSON has a field for it and no field of a prediction."""
    assert main(_job(config, memory)) == code
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith(f"{word}: architecture '{UNREAD}' is not modelled: bounds only, between ")
    assert "--trace" in out
    assert main(_job(config, memory, "--json")) == code
    document = json.loads(capsys.readouterr().out)
    BoundsDocument.model_validate(document)
    assert set(document) == {"schema", "version", "exit_code", "bounds"}
    bounds = document["bounds"]
    assert bounds["bounds_only"] is True
    assert bounds["low_bytes"] >= sum(bounds["certain_bytes"].values()) + bounds["outside_bytes"]
    assert bounds["high_bytes"] > bounds["low_bytes"]
    assert bounds["parameters"] == model_from_config(LLAMA, "here").param_count
    # Counted once, from standard input, within a time.
    ((command, given, timeout_s),) = asked
    assert (command, json.loads(given)["model_type"]) == (["describe", "-"], UNREAD)
    assert timeout_s == 120


def test_ends_of_few_architectures_decide_nothing(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, config: str, capsys: Captured
) -> None:
    """A mixture never fits by bounds, and its lower end is what is certain."""
    del asked
    monkeypatch.setattr(bounded, "run_measure", lambda *_, **__: _described("mixture"))
    assert main(_job(config, "80GiB")) == 4
    assert "only what is certain decides" in " ".join(capsys.readouterr().out.split())
    assert main(_job(config, "80GiB", "--json")) == 4
    bounds = json.loads(capsys.readouterr().out)["bounds"]
    certain = sum(bounds["certain_bytes"].values()) + bounds["outside_bytes"]
    assert abs(bounds["low_bytes"] - certain) < 10
    assert main(_job(config, "6GiB")) == 3


def test_without_torch_nothing_is_bounded(
    monkeypatch: pytest.MonkeyPatch, config: str, capsys: Captured
) -> None:
    """No field of a config says how many matrices a layer has, so the refusal stays."""
    monkeypatch.setattr(bounded, "find_spec", lambda name: None if name == "torch" else True)
    assert main(_job(config, "24GiB")) == 6
    assert "measure extra" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--task", "dpo"), "--task dpo"),
        (("--offload", "optimizer", "--sharding", "zero2", "--gpus", "2"), "--offload optimizer"),
        (("--loss", "liger", "--stack", "axolotl"), "--loss liger"),
        (("--attention", "flash2"), "no flash2 attention"),
        (("--gpus", "2", "--tensor-parallel", "2", "--stack", "torchtitan"), "tensor parallel of 2"),
    ],
)
def test_jobs_that_were_not_compared_are_refused(
    asked: list[Any], config: str, capsys: Captured, flags: tuple[str, ...], says: str
) -> None:
    """One sentence with the reason, and exit code 6."""
    assert main(_job(config, "24GiB", *flags)) == 6
    assert asked
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert "not modelled" in captured.err


def test_a_packed_checkpoint_is_not_counted(asked: list[Any], config: str, capsys: Captured) -> None:
    """Its matrices are not those that the modules make."""
    fields = json.loads(Path(config).read_text())
    Path(config).write_text(json.dumps({**fields, "quantization_config": {"quant_method": "gptq"}}))
    assert main(_job(config, "24GiB")) == 6
    assert "its checkpoint is quantised" in capsys.readouterr().err
    assert not asked


def test_a_search_leaves_such_models_out(asked: list[Any], config: str, capsys: Captured) -> None:
    """Bounds rank nothing."""
    assert main(["search", "--model", config, "--gpu", "4090", "--seq", "512"]) == 6
    assert "is not modelled" in capsys.readouterr().err
    assert not asked


@pytest.mark.usefixtures("asked")
def test_a_file_gets_the_same_bounds(tmp_path: Path, config: str, capsys: Captured) -> None:
    """``plan check`` has them beside an answer that is not there; several files have a row."""
    file = written(
        tmp_path,
        f"model_name_or_path: {config}\nstage: sft\nfinetuning_type: lora\ntemplate: default\ndataset: d\n"
        "cutoff_len: 512\nbf16: true\nper_device_train_batch_size: 1\n",
    )
    assert main(["check", str(file), "--gpu", "a100-80-sxm"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"FITS: architecture '{UNREAD}' is not modelled: bounds only" in out
    assert main(["check", str(file), "--gpu", "a100-80-sxm", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["answer"] is None
    assert result["bounds"]["verdict"] == "fits"
    assert "bounds only" in result["error"]
    assert main(["check", str(file), str(file), "--gpu", "a100-80-sxm"]) == 0
    assert "FITS, BY BOUNDS" in capsys.readouterr().out
