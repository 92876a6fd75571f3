"""The scripts of ``docs/python.md`` work as they stand; the outputs on it are compared by ``tests/docs``."""

from __future__ import annotations

import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

import planner
from planner.cli.main import main
from tests.extras import import_or_skip

ROOT = Path(planner.__file__).parents[1]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
CONFIG = ROOT / "tests" / "planner" / "configs" / "examples" / "llama_factory_qlora.yaml"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def _checks() -> list[str]:
    """Every ``plan check`` on the page: in the shell script, in the workflow and in the hook."""
    lines = [line for language, text in BLOCKS if language == "bash" for line in text.splitlines()]
    documents = [yaml.safe_load(text) for language, text in BLOCKS if language == "yaml"]
    (workflow,) = [each for each in documents if "jobs" in each]
    (hook,) = [each for each in documents if "repos" in each]
    lines += [step.get("run", "") for step in workflow["jobs"]["fits"]["steps"]]
    # pre-commit puts the names of the files behind the entry.
    lines += [f"{each['entry']} configs/train.yaml" for each in hook["repos"][0]["hooks"]]
    return [line for line in lines if line.startswith("plan check")]


def test_the_page_has_a_check_for_a_queue_for_ci_and_for_a_commit() -> None:
    """Three places, three commands."""
    assert len(_checks()) == 3


@pytest.mark.parametrize("command", _checks())
def test_every_check_on_the_page_answers(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command reads a config and ends with a verdict, not with a complaint about its flags."""
    monkeypatch.chdir(tmp_path)
    Path("configs").mkdir()
    for name in ("train.yaml", "configs/train.yaml"):
        Path(name).write_text(CONFIG.read_text(encoding="utf-8"), encoding="utf-8")
    words = [
        str(found)
        for word in shlex.split(command)[1:]
        for found in (sorted(tmp_path.glob(word)) if "*" in word else [word])
    ]
    assert main(words) in (0, 3, 4, 5)


def test_the_trainer_script_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script of the page, with a tiny model and data, says what it expects and trains."""
    torch, transformers = import_or_skip("torch"), import_or_skip("transformers")
    monkeypatch.chdir(tmp_path)
    (script,) = [text for language, text in BLOCKS if language == "python" and "PrecheckCallback(" in text]
    said = io.StringIO()
    monkeypatch.setattr("sys.stderr", said)
    if not torch.cuda.is_available():
        script = script.replace("PrecheckCallback(seq=1024)", 'PrecheckCallback(seq=1024, gpu="4090")')
        script = script.replace('"out", ', '"out", use_cpu=True, save_strategy="no", report_to=[], ')
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 64,
    }
    sample = {"input_ids": torch.arange(8), "labels": torch.arange(8)}
    names: dict[str, Any] = {
        "model": transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)),
        "dataset": [sample] * 4,
    }
    exec(compile(script, "docs/python.md", "exec"), names)
    assert names["trainer"].state.global_step == 1
    assert "planner: fits" in said.getvalue()


def test_the_page_is_short() -> None:
    """It can be read in a few minutes."""
    assert len(PAGE.encode()) <= 6 * 1024
