"""Programs that were dry-run as they are: this script writes ``programs.csv`` beside it.

Run it by the interpreters of ``make env-trl``, ``env-llamafactory`` and ``env-axolotl``, each of which runs
what is for its tool: ``.venv-trl/bin/python -m tests.against_libraries.programs.table``.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
PATH = HERE / "programs.csv"
CARD = "a100-80-sxm"
COLUMNS = (
    "program",
    "versions",
    "seconds",
    "allocated_bytes",
    "reserved_bytes",
    "largest_phase",
    "assumed",
    "trace_bytes",
    "says",
)
LIBRARIES = (
    "torch",
    "transformers",
    "peft",
    "trl",
    "bitsandbytes",
    "triton",
    "llamafactory",
    "axolotl",
    "liger_kernel",
)
# A plain loop, and the same job in words of the trace.
STEP = ("--model", "Qwen/Qwen2.5-0.5B", "--seq", "512")
TRACED = (
    "--model",
    "qwen2.5-0.5b",
    "--seq",
    "512",
    "--batch",
    "2",
    "--optimizer",
    "adamw_torch",
    "--all-layers",
)
MIXED = ("--precision", "bf16-mixed", "--load-dtype", "bf16")
ADAPTED = ("--lora-rank", "8", *MIXED)
AGAIN = "--gradient-checkpointing"
FILES = {
    "llama_factory.yaml": "llamafactory",
    "llama_factory_images.yaml": "llamafactory",
    "axolotl.yaml": "axolotl",
}
WITH_ROWS = ("trl_task.py", "no_trainer.py", "trl")
# A command of TRL itself, alone and as the first of four processes, by its own files for Accelerate.
TRL_SFT = (
    "trl",
    "sft",
    "--model_name_or_path",
    STEP[1],
    "--dataset_name",
    "trl-lib/Capybara",
    "--output_dir",
    "out",
    "--per_device_train_batch_size",
    "2",
    "--max_length",
    "512",
)
FOUR = ("--num_processes", "4")
PROGRAMS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("step.py", *STEP): ("--method=full", "--precision=bf16", "--no-gradient-checkpointing"),
    ("step.py", *STEP, "--checkpointing=not"): ("--method=full", "--precision=bf16", AGAIN),
    ("step.py", *STEP, "--method=lora", "--mixed"): ("--method=lora", *ADAPTED,
    "--no-gradient-checkpointing"),
    ("step.py", *STEP, "--method=lora", "--mixed", "--checkpointing=reentrant"): (
        "--method=lora", *ADAPTED, AGAIN, "--checkpoint-reentrant",
    ),
    ("step.py", *STEP, "--method=qlora", "--mixed", "--checkpointing=not"): ("--method=qlora",
    "--lora-rank=8", AGAIN),
    ("step.py", *STEP, "--method=int8", "--mixed", "--checkpointing=not"): ("--method=int8", "--lora-rank=8",
    AGAIN),
    ("trainer.py", STEP[1]): (),
    ("trainer.py", STEP[1], "liger"): (),
    ("no_trainer.py", STEP[1]): (),
    **{("adapter.py", name): () for name in ("lora", "dora", "oft", "vera")},
    **{("trl_task.py", task): () for task in ("sft", "dpo", "kto", "orpo", "reward", "grpo")},
    **{("--check", name): () for name in FILES},
    **{("trl_task.py", task, "lora"): () for task in ("sft", "dpo", "kto", "orpo", "reward", "grpo")},
    (*TRL_SFT, "--packing"): (),
    (*TRL_SFT, "--use_peft", "--gradient_checkpointing", "False", "--accelerate_config", "multi_gpu",
     *FOUR): (),
    **{(*TRL_SFT, "--accelerate_config", name, *FOUR): ()
       for name in ("multi_gpu", "fsdp2", "zero2", "zero3")},
}  # fmt: skip


def main() -> None:
    """Run what has no row yet, and write after each."""
    rows = (
        {row["program"]: row for row in csv.DictReader(PATH.open(encoding="utf-8"))} if PATH.exists() else {}
    )
    for program, traced in PROGRAMS.items():
        name = " ".join(program)
        if (
            name in rows
            or find_spec(FILES.get(program[-1], "trl")) is None
            or (program[0] != "--check" and _is_other_tool())
        ):
            continue
        rows[name] = _row(name, program, traced)
        with PATH.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows[" ".join(each)] for each in PROGRAMS if " ".join(each) in rows)


def _is_other_tool() -> bool:
    """Both other tools bring TRL along, in versions of their own."""
    return any(find_spec(tool) is not None for tool in FILES.values())


def _row(name: str, program: tuple[str, ...], traced: tuple[str, ...]) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        columns = ("text",) if program[0] == "trl" else tuple(_sample(0))
        samples = ({column: _sample(number)[column] for column in columns} for number in range(32))
        rows.write_text("".join(json.dumps(each) + "\n" for each in samples), encoding="utf-8")
        begun = time.monotonic()
        done = _trace(folder, *_words(program, rows))
        seconds = round(time.monotonic() - begun)
        beside = _trace(folder, *TRACED, *traced) if traced else None
    row: dict[str, object] = {"program": name, "versions": _versions(), "seconds": seconds}
    if done.returncode not in (0, 3):
        return row | {"says": done.stderr.strip().splitlines()[-1][:200]}
    document = json.loads(done.stdout)
    row |= {
        "allocated_bytes": document["allocated_peak_bytes"],
        "reserved_bytes": document["reserved_peak_bytes"],
    }
    row |= {"largest_phase": document["peak"]["phase"], "assumed": len(document["assumptions"])}
    if beside is not None and beside.returncode in (0, 3):
        row["trace_bytes"] = json.loads(beside.stdout)["allocated_peak_bytes"]
    return row


def _words(program: tuple[str, ...], rows: Path) -> tuple[str, ...]:
    """What comes behind ``measure trace`` and the card."""
    if program[0] == "--check":
        return "--check", str(HERE / program[1])
    data = ("--data", str(rows)) if program[0] in WITH_ROWS else ()
    own = program if program[0] == "trl" else ("python", str(HERE / program[0]), *program[1:])
    return *data, "--", *own


def _trace(folder: str, *words: str) -> subprocess.CompletedProcess[str]:
    gpu = f"{CARD}:4" if FOUR[0] in words else CARD
    command = [sys.executable, "-m", "measure", "trace", "--gpu", gpu, "--json", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def _sample(number: int) -> dict[str, object]:
    words = [f"w{(number * 7 + each) % 1000}" for each in range(512)]
    half = " ".join(words[256:])
    return {"text": " ".join(words), "prompt": " ".join(words[:256]), "completion": half, "chosen": half,
        "rejected": half,
            "label": number % 2 == 0}  # fmt: skip


def _versions() -> str:
    found = []
    for library in LIBRARIES:
        try:
            found.append(f"{library} {version(library)}")
        except PackageNotFoundError:
            found.append(f"no {library}")
    return ", ".join(found)


if __name__ == "__main__":
    main()
