"""The generated parts of README and docs:
what stands between ``<!-- generated: KEY -->`` and ``<!-- end -->``.

``KEY`` is a command (``plan --model ...``), a command of whose report only some sections are shown
(``plan ... | sections A; B``), ``code above`` (the output of the Python block before it), or the name of a
table (``TABLES``).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from planner.cli.main import main
from tests.accuracy.figures import other_tools_table, sources_table
from tests.accuracy.own_card import own_card_text
from tests.docs.alike import differences

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 80
GENERATED = re.compile(r"(<!-- generated: (?P<key>.+?) -->\n)(?P<body>.*?)(<!-- end -->)", re.DOTALL)
CODE_BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_SECTIONS = " | sections "
_CUT_MARK = "[...]"

# What the examples call ./config.json: the shape of an 8B Llama 3.
EXAMPLE_CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
# What the examples call job.toml.
EXAMPLE_JOB = """\
# job.toml
model = "7b"
method = "qlora"
gpu = "4090"
seq = 1024
"""
# What the examples call train.yaml.
EXAMPLE_TRAIN = """\
# train.yaml, for LLaMA-Factory
model_name_or_path: meta-llama/Llama-3.1-8B
stage: sft
finetuning_type: lora
quantization_bit: 4
lora_rank: 16
dataset: notes
template: llama3
cutoff_len: 4096
packing: true
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
bf16: true
enable_liger_kernel: true
lerning_rate: 1.0e-4
output_dir: out
"""
# What the examples call lora.py.
EXAMPLE_WITH_ARGUMENTS = """\
# lora.py
from argparse import ArgumentParser
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

parser = ArgumentParser()
parser.add_argument("--model", default="Qwen/Qwen2.5-7B")
parser.add_argument("--rank", type=int, default=8)
args = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained(args.model, dtype="bfloat16")
rows, lora = load_dataset("trl-lib/Capybara", split="train"), LoraConfig(r=args.rank)
SFTTrainer(model=model, args=SFTConfig(max_length=1024), train_dataset=rows, peft_config=lora).train()
"""
# What the examples call finetune.py.
EXAMPLE_PROGRAM = """\
# finetune.py
import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B", dtype=torch.bfloat16)
trainer = SFTTrainer(
    model=model,
    train_dataset=load_dataset("trl-lib/Capybara", split="train"),
    args=SFTConfig(output_dir="out", per_device_train_batch_size=2, max_length=2048, packing=True),
    peft_config=LoraConfig(r=16, target_modules="all-linear"),
)
trainer.train()
"""
# Figures that stand on a page, in whole percent.
TABLES: Mapping[str, Callable[[], str]] = {
    "held-out errors": sources_table,
    "other estimators": other_tools_table,
    "card of our own": own_card_text,
}


def pages() -> tuple[Path, ...]:
    """Every markdown file of the project that people read."""
    folders = ("", "docs", "planner", "data", "tests", "notebooks", "measure")
    found = [path for folder in folders for path in (ROOT / folder).glob("**/*.md" if folder else "*.md")]
    return tuple(
        sorted(
            {path for path in found if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)}
        )
    )


@dataclass(frozen=True)
class Answer:
    """What a command printed and the code it ended with."""

    code: int
    out: str
    err: str


@contextlib.contextmanager
def example_folder() -> Iterator[Path]:
    """A folder like the one in which the examples are typed: the data files, ``config.json``,
    ``job.toml``, ``train.yaml``, ``finetune.py`` and ``lora.py``.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "job"
        folder.mkdir()
        (folder / "data").symlink_to(ROOT / "data", target_is_directory=True)
        (folder / "config.json").write_text(json.dumps(EXAMPLE_CONFIG), encoding="utf-8")
        (folder / "job.toml").write_text(EXAMPLE_JOB, encoding="utf-8")
        (folder / "train.yaml").write_text(EXAMPLE_TRAIN, encoding="utf-8")
        (folder / "finetune.py").write_text(EXAMPLE_PROGRAM, encoding="utf-8")
        (folder / "lora.py").write_text(EXAMPLE_WITH_ARGUMENTS, encoding="utf-8")
        yield folder


@cache
def run_plan(command: str) -> Answer:
    """Run ``plan ...`` in this process, in :func:`example_folder`,
    as on a terminal of 80 columns without colours.
    """
    program, *arguments = shlex.split(command)
    if program != "plan":
        raise ValueError(f"not a plan command: {command}")
    out, err = io.StringIO(), io.StringIO()
    with (
        example_folder() as folder,
        _environment({"COLUMNS": str(WIDTH), "NO_COLOR": "1", "XDG_CONFIG_HOME": str(folder)}),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main(arguments)
    return Answer(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def updated(text: str, *, every: bool = False) -> str:
    """A page's text with each generated part that is no longer true, or ``every`` one, written anew."""

    def replace(match: re.Match[str]) -> str:
        now = generated(match["key"], text[: match.start()])
        is_true = not every and not differences(match["body"], now)
        return match[0] if is_true else f"{match[1]}{now}{match[4]}"

    return GENERATED.sub(replace, text)


def generated(key: str, before: str = "") -> str:
    """What belongs into the generated part ``key``; ``before`` is the text above it."""
    if key in TABLES:
        return f"\n{TABLES[key]()}\n"
    if key == "code above":
        return _fenced(run_python(last_python_block(before)))
    command, _, titles = key.partition(_SECTIONS)
    answer = run_plan(command)
    if not answer.out:
        raise ValueError(f"'{command}' printed nothing: {answer.err}")
    return _fenced(_only(answer.out, titles.split("; ")) if titles else answer.out)


def _fenced(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```\n"


def _only(text: str, titles: list[str]) -> str:
    """The head of a report and its sections that begin with one of ``titles``;
    a mark stands where something is left out.
    """
    head, *sections = _split_sections(text)
    kept = [any(section.startswith(title) for title in titles) for section in sections]
    if sum(kept) != len(titles):
        raise ValueError(f"not every one of {titles} is a section of the report")
    parts = [head]
    for section, keep in zip(sections, kept, strict=True):
        if keep or parts[-1] != _CUT_MARK:
            parts.append(section if keep else _CUT_MARK)
    return "\n\n".join(part.strip("\n") for part in parts)


def _split_sections(text: str) -> list[str]:
    """What stands before the first heading, then each section;
    a heading is a line with a line of hyphens below it.
    """
    lines = text.split("\n")
    starts = [
        number for number in range(len(lines) - 1) if lines[number + 1] and set(lines[number + 1]) == {"-"}
    ]
    edges = [0, *starts, len(lines)]
    return ["\n".join(lines[start:end]) for start, end in pairwise(edges)]


def last_python_block(text: str) -> str:
    """The last Python block of ``text``."""
    blocks = [match["text"] for match in CODE_BLOCK.finditer(text) if match["language"] == "python"]
    return blocks[-1]


def run_python(code: str) -> str:
    """What a Python block prints, run among the files of the examples."""
    out = io.StringIO()
    with example_folder() as folder, contextlib.chdir(folder), contextlib.redirect_stdout(out):
        exec(compile(code, "README", "exec"), {"__name__": "readme"})
    return out.getvalue()
