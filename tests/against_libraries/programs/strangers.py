"""Training programs of other repositories, each as it is at one commit: writes ``strangers.csv`` beside it.

``ENV/bin/python -m tests.against_libraries.programs.strangers FOLDER``: the folder has clones named as the
repositories are.  Nothing of them is stored here.  Each runs in a copy of its commit, on data that is made
there: random tokens, or rows of repeated words in the columns that the program reads.  A row runs where the
version of Transformers that it asks for is installed, and a row that is there is not run again.
"""

from __future__ import annotations

import csv
import io
import json
import os
import random
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tests.against_libraries.programs.table import _versions as versions_here

PATH = Path(__file__).resolve().parent / "strangers.csv"
COLUMNS = ("repository", "commit", "folder", "card", "command", "versions", "seconds", "allocated_bytes",
    "reserved_bytes", "largest_phase", "assumed", "says")  # fmt: skip


@dataclass(frozen=True)
class Program:
    """``command`` in ``folder`` of a repository, which is all that is copied.
    ``makes`` lays its data into the copy, or without a commit the program itself.
    ``options``: of ``measure trace``.  ``transformers``: how its version begins.
    ``variables``: of its environment, as ``NAME=VALUE``.
    """

    repository: str
    commit: str
    command: str
    folder: str = "."
    card: str = "a100-80-sxm"
    makes: Callable[[Path], None] = lambda _: None
    options: tuple[str, ...] = ()
    transformers: str = "5."
    variables: tuple[str, ...] = ()


def _tokens(root: Path) -> None:
    """The two files of GPT-2's tokens that nanoGPT maps (data/openwebtext/prepare.py)."""
    draw = random.Random(0)
    for name in ("train", "val"):
        tokens = array("H", (draw.randrange(50257) for _ in range(100_000)))
        (root / f"data/openwebtext/{name}.bin").write_bytes(tokens.tobytes())


def _llama_tokens(root: Path) -> None:
    """A file of tokens as llm.c has it: a head of 256 numbers, then the tokens (dev/data/data_common.py)."""
    draw, head = random.Random(0), [20240801, 7, 300_000]
    drawn = (draw.randrange(128_000) for _ in range(head[2]))
    tokens = array("I", (*head, *([0] * (256 - len(head))), *drawn))
    folder = root / "dev/data/tinyshakespeare"
    folder.mkdir(parents=True)
    (folder / "tiny_shakespeare_val.bin").write_bytes(tokens.tobytes())


NANOGPT = ("karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291")
ON_EIGHT = "torchrun --standalone --nproc_per_node=8"
PROGRAMS = (
    Program(*NANOGPT, "python train.py --compile=False", makes=_tokens),
    Program(*NANOGPT, "python train.py", makes=_tokens),
    Program(*NANOGPT, f"{ON_EIGHT} train.py --compile=False", card="h100-sxm:8", makes=_tokens),
    Program(
        "pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8",
        "torchrun --nnodes=1 --nproc_per_node=4 example.py",
        folder="distributed/FSDP2", card="a100-80-sxm:4",
    ),
    Program(
        "karpathy/llm.c", "f1e2ace651495b74ae22d45d1723443fd00ecd3a",
        "python train_llama3.py --compile 1 --batch_size 4 --sequence_length 1024 --total_batch_size 8192",
        card="h200-sxm", makes=_llama_tokens, options=("--lengths", "64"),
    ),
    Program(
        "huggingface/peft", "5d602fdbff04c33c1c4de55cda9d4ae1d7cb7e40",
        "python peft_no_lora_accelerate.py --model_name_or_path roberta-large --peft_type prefix_tuning "
        "--output_dir out",
        folder="examples/sequence_classification", options=("--lengths", "60"),
    ),
    Program(
        "huggingface/trl", "f2cd57710ae345ea6428ae95363267fcf38a3dc8",
        "python examples/scripts/ppo/ppo.py --dataset_name "
        "trl-internal-testing/descriptiveness-sentiment-trl-style --dataset_train_split descriptiveness "
        "--output_dir out --per_device_train_batch_size 16 --gradient_accumulation_steps 1 "
        "--total_episodes 10000 --model_name_or_path EleutherAI/pythia-1b-deduped --sft_model_path "
        "EleutherAI/pythia-1b-deduped --reward_model_path EleutherAI/pythia-1b-deduped "
        "--missing_eos_penalty 1.0",
        options=("--lengths", "60"),
    ),
)  # fmt: skip


def main(clones: Path) -> None:
    """Run what has no row yet and what this environment is for, and write after each."""
    rows = {}
    if PATH.exists():
        rows = {_key(row): row for row in csv.DictReader(PATH.open(encoding="utf-8"))}
    for program in PROGRAMS:
        said = {name: getattr(program, name) for name in COLUMNS[:5]}
        if _key(said) in rows or not version("transformers").startswith(program.transformers):
            continue
        rows[_key(said)] = said | {"versions": versions_here()} | ran(program, clones)
        with PATH.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows.values())


def _key(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in COLUMNS[:5])


def ran(program: Program, clones: Path) -> dict[str, object]:
    """Columns of its row, from ``seconds`` on."""
    with tempfile.TemporaryDirectory() as copy:
        if program.commit:
            clone = str(clones / program.repository.split("/")[1])
            archive = ("git", "-C", clone, "archive", program.commit, "--", program.folder)
            packed = subprocess.run(archive, stdout=subprocess.PIPE, check=True).stdout
            with tarfile.open(fileobj=io.BytesIO(packed)) as files:
                files.extractall(copy, filter="data")
        program.makes(Path(copy))
        words = ("-m", "measure", "trace", "--gpu", program.card, "--json", *program.options, "--")
        begun = time.monotonic()
        command, folder = [sys.executable, *words, *shlex.split(program.command)], Path(copy, program.folder)
        variables = os.environ | dict(each.split("=", 1) for each in program.variables)
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=variables)
        seconds = round(time.monotonic() - begun)
    if done.returncode not in (0, 3, 4):
        return {"seconds": seconds, "says": done.stderr.strip().splitlines()[-1][:300]}
    document = json.loads(done.stdout)
    return {
        "seconds": seconds,
        "allocated_bytes": document["allocated_peak_bytes"],
        "reserved_bytes": document["reserved_peak_bytes"],
        "largest_phase": document["peak"]["phase"],
        "assumed": len(document["assumptions"]),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
