"""Programs that were dry-run as they are: this script writes ``programs.csv`` beside it.

Run it by the interpreters of ``make env-trl``, ``env-llamafactory`` and ``env-axolotl``, each of which runs
what is for its tool: ``.venv-trl/bin/python -m tests.against_libraries.programs.table``.

With a folder behind it that holds other projects' repositories, it runs their examples: accelerate at
16cb6eb, peft at 5d602fd, trl at f2cd577, and those of Transformers 4.57.0.dev0 (macorisd/transformers-qwen3
at 4a42c1b).  Beside ``make env-trl`` they need evaluate, fire, lightning, scikit-learn, torchvision 0.28.0.
Two of them are for Transformers 4: an environment with 4.57.6 and PEFT 0.17.1, with accelerate 0.34.2 for
``run_clm_no_trainer.py`` and 1.10.1 for the other.

Tools with loaders of their own have environments of ``make env-torchtune``, ``env-litgpt`` and
``env-torchtitan``; the last one needs its repository at v0.2.2 in that folder.
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
    "accelerate",
    "lightning",
    "torchtune",
    "torchao",
    "litgpt",
    "torchtitan",
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
# Of our own programs.
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
CLM = ("--model_name_or_path", STEP[1], "--dataset_name", "wikitext", "--dataset_config_name",
    "wikitext-2-raw-v1", "--per_device_train_batch_size", "2", "--per_device_eval_batch_size", "2",
    "--block_size", "512", "--output_dir", "out")  # fmt: skip
OF_TRANSFORMERS = "transformers/examples/pytorch/language-modeling"
SEES = ("--dataset_name", "trl-lib/llava-instruct-mix", "--output_dir", "out",
    "--per_device_train_batch_size", "2", "--dtype", "bfloat16", "--use_peft",
    "--lora_target_modules", "q_proj", "k_proj", "v_proj", "o_proj")  # fmt: skip
# Examples of other projects as they are, by their paths in a folder of repositories, and the columns of
# their rows.
EXAMPLES: dict[tuple[str, ...], tuple[str, ...]] = {
    (f"{OF_TRANSFORMERS}/run_clm.py", *CLM, "--do_train", "--do_eval", "--bf16"): ("text",),
    (f"{OF_TRANSFORMERS}/run_clm_no_trainer.py", *CLM): ("text",),
    ("accelerate/examples/by_feature/gradient_accumulation_for_autoregressive_models.py",
     "--mixed_precision", "bf16", "--gradient_accumulation_steps", "2"): ("text",),
    ("peft/examples/dora_finetuning/dora_finetuning.py", "--base_model", STEP[1], "--batch_size", "2",
     "--use_dora"): ("text",),
    ("peft/examples/sft/train.py", "--model_name_or_path", STEP[1], "--output_dir", "out",
     "--use_peft_lora", "True", "--use_4bit_quantization", "True", "--use_nested_quant", "True",
     "--bnb_4bit_compute_dtype", "bfloat16", "--bf16", "True", "--per_device_train_batch_size", "2",
     "--max_length", "512"): ("text",),
    **{("trl/examples/scripts/sft_vlm.py", "--model_name_or_path", name, *SEES): ("messages", "images")
       for name in ("Qwen/Qwen2.5-VL-3B-Instruct", "google/gemma-3-4b-it")},
}  # fmt: skip
# Tools with loaders of their own, by their package: what stands in for a checkpoint, and the command.
OF_TUNE = ("tokenizer.max_seq_len=512", "gradient_accumulation_steps=2", "output_dir=out")
OF_TOOLS: dict[tuple[str, ...], tuple[str, tuple[str, ...]]] = {
    ("tune", "run", "lora_finetune_single_device", "--config", "llama3_2/1B_lora_single_device",
     "checkpointer.checkpoint_dir=llama", "tokenizer.path=llama/original/tokenizer.model", *OF_TUNE): (
        "torchtune", ("--checkpoint", "llama=meta-llama/Llama-3.2-1B-Instruct"),
    ),
    ("tune", "run", "full_finetune_single_device", "--config", "qwen2_5/0.5B_full_single_device",
     "checkpointer.checkpoint_dir=qwen", "tokenizer.path=qwen/vocab.json",
     "tokenizer.merges_file=qwen/merges.txt", *OF_TUNE): (
        "torchtune", ("--checkpoint", "qwen=Qwen/Qwen2.5-0.5B-Instruct"),
    ),
    ("litgpt", "finetune_lora", "meta-llama/Llama-3.2-1B", "--data", "JSON", "--data.json_path", "ROWS",
     "--data.val_split_fraction", "0.1", "--train.max_seq_length", "512", "--train.micro_batch_size", "4",
     "--train.global_batch_size", "8", "--precision", "bf16-true"): ("litgpt", ()),
    ("torchrun", "--nproc_per_node", "1", "-m", "torchtitan.train", "--job.config_file",
     "REPOSITORIES/torchtitan/torchtitan/models/llama3/train_configs/llama3_8b.toml",
     "--training.seq_len", "2048"): (
        "torchtitan", ("--checkpoint", "assets/hf/Llama-3.1-8B=meta-llama/Llama-3.1-8B"),
    ),
}  # fmt: skip
# Tasks of TRL, and those that ran with adapters, too.
ADAPTED_TASKS = ("sft", "dpo", "kto", "orpo", "reward", "grpo")
TASKS = (*ADAPTED_TASKS, "cpo", "tpo", "gkd", "rloo", "gmpo", "online_dpo", "sdft", "sdpo", "distillation")
ADAPTERS = ("lora", "dora", "oft", "vera", "adalora", "boft", "loha", "ia3", "prompt",
    "hira", "miss", "randlora", "c3a", "tokens")  # fmt: skip
OF_TRANSFORMERS_4 = ("run_clm_no_trainer.py", "dora_finetuning.py")
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
    ("lightning_loop.py", STEP[1]): (),
    **{("adapter.py", name): () for name in ADAPTERS},
    **{("trl_task.py", task): () for task in TASKS},
    **{("--check", name): () for name in FILES},
    **{("trl_task.py", task, "lora"): () for task in ADAPTED_TASKS},
    (*TRL_SFT, "--packing"): (),
    (*TRL_SFT, "--use_peft", "--gradient_checkpointing", "False", "--accelerate_config", "multi_gpu",
     *FOUR): (),
    **{(*TRL_SFT, "--accelerate_config", name, *FOUR): ()
       for name in ("multi_gpu", "fsdp2", "zero2", "zero3")},
    **dict.fromkeys(EXAMPLES, ()),
    **dict.fromkeys(OF_TOOLS, ()),
}  # fmt: skip


def main(repositories: Path | None) -> None:
    """Run what has no row yet, and write after each."""
    rows = (
        {row["program"]: row for row in csv.DictReader(PATH.open(encoding="utf-8"))} if PATH.exists() else {}
    )
    for program, traced in PROGRAMS.items():
        name = " ".join(program)
        if (
            name in rows
            or find_spec(_package_of(program)) is None
            or (program[0] != "--check" and program not in OF_TOOLS and _is_other_tool())
            or ((program in EXAMPLES or "torchtitan.train" in program) and repositories is None)
            or (
                program not in OF_TOOLS
                and version("transformers").startswith("4.") is not program[0].endswith(OF_TRANSFORMERS_4)
            )
        ):
            continue
        rows[name] = _row(name, program, traced, repositories or HERE)
        with PATH.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows[" ".join(each)] for each in PROGRAMS if " ".join(each) in rows)


def _package_of(program: tuple[str, ...]) -> str:
    return OF_TOOLS[program][0] if program in OF_TOOLS else FILES.get(program[-1], "peft")


def _is_other_tool() -> bool:
    """Both other tools bring TRL along, in versions of their own."""
    tools = (*FILES.values(), *(package for package, _ in OF_TOOLS.values()))
    return any(find_spec(tool) is not None for tool in tools)


def _row(name: str, program: tuple[str, ...], traced: tuple[str, ...], scripts: Path) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        _write_rows(program, rows)
        begun = time.monotonic()
        done = _trace(folder, *_words(program, rows, scripts))
        seconds = round(time.monotonic() - begun)
        beside = _trace(folder, *TRACED, *traced) if traced else None
    row: dict[str, object] = {"program": name, "versions": _versions(), "seconds": seconds}
    if done.returncode not in (0, 3, 4):
        return row | {"says": done.stderr.strip().splitlines()[-1][:200]}
    document = json.loads(done.stdout)
    row |= {
        "allocated_bytes": document["allocated_peak_bytes"],
        "reserved_bytes": document["reserved_peak_bytes"],
    }
    row |= {"largest_phase": document["peak"]["phase"], "assumed": len(document["assumptions"])}
    if beside is not None and beside.returncode in (0, 3, 4):
        row["trace_bytes"] = json.loads(beside.stdout)["allocated_peak_bytes"]
    return row


def _write_rows(program: tuple[str, ...], path: Path) -> None:
    """Few rows; an example of Accelerate chooses 500 of them.  A picture lies beside them."""
    columns = ("text",) if program[0] == "trl" else EXAMPLES.get(program, _COLUMNS)
    picture = path.with_name("picture.pbm")
    picture.write_text(f"P1\n{_SIDE} {_SIDE}\n" + ("0" * _SIDE + "\n") * _SIDE, encoding="utf-8")
    columns = ("text", "instruction", "input", "output") if program in OF_TOOLS else columns
    count = 512 if program in EXAMPLES else 64 if program in OF_TOOLS else 32
    samples = ({column: _sample(number, picture)[column] for column in columns} for number in range(count))
    path.write_text("".join(json.dumps(each) + "\n" for each in samples), encoding="utf-8")


def _words(program: tuple[str, ...], rows: Path, scripts: Path) -> tuple[str, ...]:
    """What comes behind ``measure trace`` and the card."""
    if program[0] == "--check":
        return "--check", str(HERE / program[1])
    if program in OF_TOOLS:
        own = (each.replace("REPOSITORIES", str(scripts)).replace("ROWS", str(rows)) for each in program)
        return *OF_TOOLS[program][1], "--data", str(rows), "--", *own
    data = ("--data", str(rows)) if program[0] in WITH_ROWS or program in EXAMPLES else ()
    folder = scripts if program in EXAMPLES else HERE
    own = program if program[0] == "trl" else ("python", str(folder / program[0]), *program[1:])
    return *data, "--", *own


def _trace(folder: str, *words: str) -> subprocess.CompletedProcess[str]:
    gpu = f"{CARD}:4" if FOUR[0] in words else CARD
    command = [sys.executable, "-m", "measure", "trace", "--gpu", gpu, "--json", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


_COLUMNS = ("text", "prompt", "completion", "chosen", "rejected", "label")
# Pixels of the side of a picture.
_SIDE = 448


def _sample(number: int, picture: Path) -> dict[str, object]:
    words = [f"w{(number * 7 + each) % 1000}" for each in range(512)]
    half, quarter = " ".join(words[256:]), " ".join(words[:128])
    said = [{"role": role, "content": quarter} for role in ("user", "assistant")]
    return {"text": " ".join(words), "prompt": " ".join(words[:256]), "label": number % 2 == 0,
        **dict.fromkeys(("completion", "chosen", "rejected"), half),
        "messages": said, "images": [str(picture)],
        "instruction": quarter, "input": "", "output": " ".join(words[128:])}  # fmt: skip


def _versions() -> str:
    found = []
    for library in LIBRARIES:
        try:
            found.append(f"{library} {version(library)}")
        except PackageNotFoundError:
            found.append(f"no {library}")
    return ", ".join(found)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None)
