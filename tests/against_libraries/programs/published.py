"""Programs whose peaks on a card were published, each at the commit and with the versions of its table:
writes ``published.csv`` beside it.

``ENV/bin/python -m tests.against_libraries.programs.published FOLDER``: the folder has clones named as the
repositories are.  A program runs where the package that ``NEEDS`` names has its version, and a row that is
there is not run again.  Column ``rows`` names the rows of ``data/published`` that were measured so.

All with torch 2.13, where the tables have 2.1 to 2.6.  What else is installed, beside ``measure``:

``can-i-finetune-this``: transformers 5.8.1, peft 0.19.1, bitsandbytes 0.49.2, and the repository itself.
The table is of Windows, whose builds of torch 2.6 have no FlashAttention: ``_without_flash``.

``fms-acceleration``: transformers 4.48.1, trl 0.13.0, peft 0.13.2, accelerate 1.0.1, bitsandbytes 0.43.3,
triton 3.0.0, fms-hf-tuning 2.5.0, and of the repository plugins/framework and plugins/accelerated-peft.

``litgpt``: Lightning at 71aed75 (2.1.0.rc0), bitsandbytes 0.41.1, no triton (0.41.1 imports what 2.1 had).
The table names commit 8641822, but its readings have the fp32 norms of 6178c7c, eight days younger: with
bf16 norms the row of Llama 2 7B is 3.2 % lower.  Each size of a micro-batch is a constant of the script.

``fsdp_qlora``: transformers 4.37.2, peft 0.9.0, accelerate 0.27.2, bitsandbytes 0.43.0, fastcore 1.5.29, no
triton, datasets.  Its rows of one long word are made of many short ones, which any tokenizer tells apart.

``classifier.py`` beside this file: transformers 4.28.1 (its page is of 4.15), bitsandbytes 0.43.3.

Old releases of bitsandbytes have no library for the CUDA that torch 2.13 is of: ``BNB_CUDA_VERSION``.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.against_libraries.programs import (
    published_fitcheck,
    published_litgpt,
    published_rasbt,
)
from tests.against_libraries.programs.strangers import COLUMNS as OF_STRANGERS
from tests.against_libraries.programs.strangers import Program, ran
from tests.against_libraries.programs.table import _versions as versions_here

PATH = Path(__file__).resolve().parent / "published.csv"
COLUMNS = (*OF_STRANGERS, "rows")
NEEDS = {
    "DaoyuanLi2816/can-i-finetune-this": ("bitsandbytes", "0.49.2"),
    "foundation-model-stack/fms-acceleration": ("bitsandbytes", "0.43.3"),
    "Lightning-AI/litgpt": ("bitsandbytes", "0.41.1"),
    "AnswerDotAI/fsdp_qlora": ("bitsandbytes", "0.43.0"),
    "huggingface/transformers": ("transformers", "4.28.1"),
}
BESIDE = (published_fitcheck, published_litgpt, published_rasbt)
BY_COMMIT = {commit: needed for each in BESIDE for commit, needed in each.NEEDS.items()}
CUDA = ("BNB_CUDA_VERSION=121",)


def _without_flash(root: Path) -> None:
    """The command of the package, behind two switches of torch."""
    (root / "without_flash.py").write_text(
        "import torch\ntorch.backends.cuda.enable_flash_sdp(False)\n"
        "torch.backends.cuda.enable_cudnn_sdp(False)\n"
        "from canifinetune.cli import app\napp()\n",
        encoding="utf-8",
    )


def _on_4080(rows: str, size: str, method: str, *words: str) -> tuple[Program, str]:
    command = " ".join(
        ("python without_flash.py bench --model", f"Qwen/Qwen2.5-{size}-Instruct --method", method,
         "--lora-rank 16", *words)
    )  # fmt: skip
    commit = "a06579cf3bcccf5ed8334d32373d886087ce4883"
    program = Program(
        "DaoyuanLi2816/can-i-finetune-this",
        commit,
        command,
        card="4080",
        makes=_without_flash,
        options=("--steps", "3"),
    )
    return program, rows


def _responses(root: Path) -> None:
    """Rows of the column that the benchmark trains on, which it packs."""
    answers = (" ".join(f"w{(number * 7 + each) % 1000}" for each in range(1500)) for number in range(400))
    text = "".join(json.dumps({"output": f"w1 \n### Response: {answer}"}) + "\n" for answer in answers)
    (root / "rows.jsonl").write_text(text, encoding="utf-8")


# scripts/benchmarks/defaults.yaml and benchmark.py.
OF_FMS = (
    r'-m tuning.sft_trainer --use_flash_attn True --response_template "\n### Response:" '
    "--dataset_text_field output --include_tokens_per_second True --num_train_epochs 1 "
    "--gradient_accumulation_steps 1 --gradient_checkpointing True --evaluation_strategy no "
    "--save_strategy no --weight_decay 0.01 --warmup_steps 10 --adam_epsilon 1e-4 "
    "--lr_scheduler_type linear --logging_strategy steps --logging_steps 10 --max_steps 100 "
    "--packing True --max_seq_len 4096 --training_data_path rows.jsonl --output_dir out "
    "--skip_memory_metrics False --torch_dtype bfloat16 --model_name_or_path mistralai/Mistral-7B-v0.1 "
)
ADAPTED = (
    "--learning_rate 2e-4 --peft_method lora --r 16 --lora_alpha 16 --lora_dropout 0.1 "
    "--target_modules q_proj k_proj v_proj o_proj "
)
ON_TWO = "accelerate launch --config_file scripts/benchmarks/accelerate.yaml --num_processes=2 "
FOUR_BITS = (
    "ACCELERATION_FRAMEWORK_CONFIG_FILE=sample-configurations/baseline-peft-bnb-nf4-sample-configuration.yaml"
)


def _of_fms(
    row: str, batch: int, *, cards: int = 1, full: bool = False, packed: bool = False
) -> tuple[Program, str]:
    words = f"{OF_FMS}{'--learning_rate 2e-5 ' if full else ADAPTED}{'--bf16 True ' if packed else ''}"
    program = Program(
        "foundation-model-stack/fms-acceleration",
        "24bdadb228e2d55bc0c69deec034b86a73da6917",
        f"{ON_TWO if cards > 1 else 'python '}{words}--per_device_train_batch_size {batch}",
        card=f"a100-80-sxm:{cards}" if cards > 1 else "a100-80-sxm",
        makes=_responses,
        options=("--data", "rows.jsonl"),
        variables=(*CUDA, *((FOUR_BITS,) if packed else ())),
    )
    return program, f"fms_accel_main-{row}"


def _litgpt_files(root: Path, model: str, micro_batch: int) -> None:
    """A checkpoint without tensors, which the script lets pass, and the longest sample first of others.

    The micro-batches of a step are two instead of 128, and those of an evaluation two instead of 100.
    """
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = root / "checkpoints/meta-llama" / model
    for made in (folder, root / "data/alpaca"):
        made.mkdir(parents=True)
    torch.save({}, folder / "lit_model.pth")
    (folder / "lit_config.json").write_text("{}", encoding="utf-8")
    words = {word: number for number, word in enumerate(("<unk>", "<s>", "</s>", "w"))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    special = json.dumps({"bos_token": "<s>", "eos_token": "</s>"})
    (folder / "tokenizer_config.json").write_text(special, encoding="utf-8")
    for name, lengths in (("train", (1304, *range(300, 332))), ("test", range(300, 308))):
        tokens = [torch.full((length,), 3) for length in lengths]
        samples = [{"input_ids": each, "labels": each.clone()} for each in tokens]
        torch.save(samples, root / f"data/alpaca/{name}.pt")
    script = root / "finetune/lora.py"
    text = script.read_text(encoding="utf-8")
    for name, number in (
        ("micro_batch_size", micro_batch),
        ("batch_size", 2 * micro_batch),
        ("eval_iters", 2),
    ):
        text = re.sub(rf"^{name} = .*$", f"{name} = {number}", text, flags=re.MULTILINE)
    script.write_text(text, encoding="utf-8")


def _of_litgpt(row: str, size: str, micro_batch: int, quantize: str = "") -> tuple[Program, str]:
    model = f"Llama-2-{size}-hf"
    program = Program(
        "Lightning-AI/litgpt",
        "6178c7cc58ba82e5cce138e7a3159c384e2d3b0f",
        "python finetune/lora.py --precision bf16-true --checkpoint_dir "
        f"checkpoints/meta-llama/{model}{quantize and f' --quantize {quantize}'}",
        card="a100-40-sxm",
        makes=partial(_litgpt_files, model=model, micro_batch=micro_batch),
        variables=CUDA,
    )
    return program, f"litgpt_resource-{row}"


def _short_words(root: Path) -> None:
    path = root / "train.py"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('["output"*', '["w1 "*'), encoding="utf-8")


def _of_fsdp_qlora(rows: str, batch: int, words: str, model: str = "Llama-2-7b-hf") -> tuple[Program, str]:
    owner = {"Yi-34B": "01-ai"}.get(model, "meta-llama")
    program = Program(
        "AnswerDotAI/fsdp_qlora",
        "50efa1efa0ed1451b466686bc89c07007637ae48",
        f"python train.py --model_name {model} --reentrant_checkpointing True --dataset dummy "
        f"--dataset_samples 64 --log_to stdout --batch_size {batch} {words}",
        card="rtx3090:2",
        makes=_short_words,
        options=("--checkpoint", f"{model}={owner}/{model}"),
        variables=CUDA,
    )
    return program, ";".join(f"fsdp_qlora-{each}" for each in rows.split())


def _classifier_files(root: Path) -> None:
    shutil.copy(PATH.with_name("classifier.py"), root)


def _of_classifier(row: int, words: str) -> tuple[Program, str]:
    program = Program(
        "huggingface/transformers",
        "",
        f"python classifier.py {words}",
        card="v100-16-sxm2",
        makes=_classifier_files,
        variables=CUDA,
    )
    return program, f"hf_perf_doc-{row:03}"


OF_ONE = "per_device_train_batch_size=1 gradient_accumulation_steps=4 gradient_checkpointing=True"
WHOLE = "--sharding_strategy ddp"
ON_CARDS, ON_HOST = "--use_cpu_offload False", "--use_cpu_offload True"


def _pair(first: int) -> str:
    return f"can_i_finetune-{first};can_i_finetune-{first + 1}"


PROGRAMS = (
    _on_4080(_pair(248), "0.5B", "lora", "--seq-len 1024 --steps 3"),
    _on_4080(_pair(250), "0.5B", "qlora", "--seq-len 1024 --steps 3"),
    _on_4080(_pair(252), "0.5B", "qlora", "--seq-len 2048 --steps 3"),
    _on_4080(_pair(254), "1.5B", "qlora", "--seq-len 1024 --steps 3"),
    _on_4080(_pair(256), "1.5B", "qlora", "--seq-len 1024 --steps 3 --no-gradient-checkpointing"),
    _on_4080(_pair(258), "1.5B", "qlora", "--seq-len 1024 --micro-batch-size 2 --steps 2"),
    _on_4080(_pair(260), "1.5B", "qlora", "--seq-len 2048 --steps 3"),
    _on_4080(_pair(262), "1.5B", "qlora", "--seq-len 4096 --steps 2"),
    _on_4080(_pair(264), "1.5B", "qlora", "--seq-len 512 --steps 3"),
    _on_4080(_pair(266), "3B", "qlora", "--seq-len 1024 --steps 2"),
    _on_4080(_pair(268), "7B", "qlora", "--seq-len 1024 --steps 2"),
    _of_fms("001", 4, full=True),
    _of_fms("003", 2, full=True, cards=2),
    _of_fms("009", 4),
    _of_fms("011", 2, cards=2),
    _of_fms("013", 8),
    _of_fms("015", 4, cards=2),
    _of_fms("021", 4, packed=True),
    _of_fms("023", 2, cards=2, packed=True),
    _of_fms("025", 8, packed=True),
    _of_fms("027", 4, cards=2, packed=True),
    _of_litgpt("062", "7b", 1),
    _of_litgpt("063", "7b", 1, "bnb.nf4"),
    _of_litgpt("064", "7b", 1, "bnb.nf4-dq"),
    _of_litgpt("065", "7b", 2),
    _of_litgpt("067", "13b", 1),
    _of_litgpt("068", "13b", 1, "bnb.nf4"),
    _of_litgpt("069", "13b", 1, "bnb.nf4-dq"),
    _of_fsdp_qlora("204", 1, f"--context_length 512 --train_type qlora {ON_CARDS}"),
    _of_fsdp_qlora("205", 1, f"--context_length 2048 --train_type qlora {ON_CARDS}"),
    _of_fsdp_qlora("206 206-allocated", 1, f"--context_length 512 --train_type lora {ON_CARDS}"),
    _of_fsdp_qlora("207 207-allocated", 1, f"--context_length 2048 --train_type lora {ON_CARDS}"),
    _of_fsdp_qlora("208", 4, f"--context_length 2048 --train_type qlora {ON_CARDS}"),
    _of_fsdp_qlora("209 221", 10, f"--context_length 2048 --train_type qlora {ON_CARDS}"),
    _of_fsdp_qlora("210", 4, f"--context_length 2048 --train_type lora {ON_CARDS}"),
    _of_fsdp_qlora("211 218", 6, f"--context_length 2048 --train_type lora {ON_CARDS}"),
    _of_fsdp_qlora("212 220", 8, f"--context_length 2048 --train_type qlora {ON_CARDS} {WHOLE}"),
    _of_fsdp_qlora("213 217", 4, f"--context_length 2048 --train_type lora {ON_CARDS} {WHOLE}"),
    _of_fsdp_qlora("219", 10, f"--context_length 2048 --train_type lora {ON_HOST}"),
    _of_fsdp_qlora("222", 12, f"--context_length 2048 --train_type qlora {ON_HOST}"),
    _of_fsdp_qlora("214 223", 2, f"--context_length 2048 --train_type qlora {ON_CARDS}", "Yi-34B"),
    _of_fsdp_qlora("215 224", 4, f"--context_length 2048 --train_type qlora {ON_HOST}", "Yi-34B"),
    _of_fsdp_qlora("216 225", 2, f"--context_length 2048 --train_type qlora {ON_HOST}", "Llama-2-70b-hf"),
    _of_classifier(3, OF_ONE),
    _of_classifier(5, f"{OF_ONE} fp16=True"),
    _of_classifier(7, f"{OF_ONE} fp16=True optim=adafactor"),
    _of_classifier(9, f"{OF_ONE} fp16=True adam8bit"),
    *(program for each in BESIDE for program in each.PROGRAMS),
)


def main(clones: Path) -> None:
    """Run what has no row yet and what this environment is for, and write after each."""
    stored = list(csv.DictReader(PATH.open(encoding="utf-8"))) if PATH.exists() else []
    rows: dict[str, dict[str, object]] = {row["rows"]: dict(row) for row in stored}
    for program, measured in PROGRAMS:
        needed = BY_COMMIT.get(program.commit) or NEEDS[program.repository]
        if measured in rows or not _is_here(*needed):
            continue
        said = {name: getattr(program, name) for name in COLUMNS[:5]}
        rows[measured] = said | {"versions": versions_here(), "rows": measured} | ran(program, clones)
        with PATH.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows[each] for _, each in PROGRAMS if each in rows)


def _is_here(package: str, wanted: str) -> bool:
    try:
        return version(package) == wanted
    except PackageNotFoundError:
        return False


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
