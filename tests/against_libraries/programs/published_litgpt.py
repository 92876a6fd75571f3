"""Files of LitGPT's config_hub, each at the commit that brought its row into the table there.

What is installed, beside ``measure``: Lightning as ``pyproject.toml`` of the commit pins it (``NEEDS``),
bitsandbytes 0.42.0, jsonargparse 4.32.1, litdata 0.2.17, no triton.

The rows are of alpaca_2k, cut at 512 tokens.  Here all have so many, and two micro-batches make a step where
the file has more: without a 4-bit base none leaves anything to the next.  With one, bitsandbytes keeps the
inputs of its layers in ``ctx.tensors`` (0.42.0 autograd/_functions.py) until the script binds the next loss.
The peak then has those of the micro-batch before the longest, whose length the table does not tell: such rows
are left out.  In full, the script refuses a checkpoint without tensors.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

from tests.against_libraries.programs.strangers import Program

REPOSITORY = "Lightning-AI/litgpt"
OF_APRIL = "5895df1004c3d05ef69f7aeffcfee757dbc42d58"
OF_PHI_3 = "f247be87eb110cab27b2342ca609040dd318f8a5"
OF_GEMMA_2_9B = "916a84ca021dd18550eabafc7f370a633e48a24b"
OF_LLAMA_3_1 = "fd71063ce749008f77a991e07879d35d8d4ba4ed"
OF_GEMMA_2_2B = "2b195c7f5bb39a65dcea7e7e073fc2b0255933dd"
OF_LLAMA_3_2 = "00af8b0d9b43eaa3f8c812e3e8bd53ef38cbb49d"
NEEDS = {
    OF_APRIL: ("lightning", "2.3.0.dev20240328"),
    OF_PHI_3: ("lightning", "2.3.0.dev20240428"),
    OF_GEMMA_2_9B: ("lightning", "2.3.0.dev20240428"),
    OF_LLAMA_3_1: ("lightning", "2.3.0.dev20240428"),
    OF_GEMMA_2_2B: ("lightning", "2.4.0.dev20240728"),
    OF_LLAMA_3_2: ("lightning", "2.4.0.dev20240728"),
}


def _files(root: Path, model: str, micro_batch: int) -> None:
    """A checkpoint without tensors, which the command lets pass, and rows for one pass over them."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = root / "checkpoints" / model
    folder.mkdir(parents=True)
    torch.save({}, folder / "lit_model.pth")
    words = {word: number for number, word in enumerate(("<unk>", "<s>", "</s>", "w"))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    special = json.dumps(
        {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    )
    (folder / "tokenizer_config.json").write_text(special, encoding="utf-8")
    _config(root, folder, model.split("/")[1])
    row = {"instruction": "w", "input": "", "output": " ".join("w" * 600)}
    for name in ("train", "val"):
        (root / f"{name}.json").write_text(json.dumps([row] * 8 * micro_batch), encoding="utf-8")


def _config(root: Path, folder: Path, name: str) -> None:
    """As LitGPT itself writes it beside a checkpoint, by its own table of models."""
    script = (
        "import dataclasses, sys, yaml; from litgpt.config import Config; "
        "config = dataclasses.asdict(Config.from_name(sys.argv[1])); "
        "yaml.safe_dump(config, open(sys.argv[2], 'w'))"
    )
    words = (sys.executable, "-c", script, name, str(folder / "model_config.yaml"))
    subprocess.run(words, cwd=root, check=True)


def _of(
    row: str, commit: str, file: str, model: str, micro_batch: int, n_micro_batches: int = 2
) -> tuple[Program, str]:
    method = file.split("/")[1]
    words = f"finetune {method}" if commit == OF_APRIL else f"finetune_{method} checkpoints/{model}"
    program = Program(
        REPOSITORY,
        commit,
        f"python -m litgpt {words} --config config_hub/finetune/{file}.yaml --data JSON --data.json_path . "
        f"--data.val_split_fraction null --train.global_batch_size {n_micro_batches * micro_batch}",
        card="a10g",
        makes=partial(_files, model=model, micro_batch=micro_batch),
    )
    return program, f"litgpt_config_hub-{row}"


PROGRAMS = (
    _of("081", OF_APRIL, "falcon-7b/lora", "tiiuae/falcon-7b", 1),
    _of("083", OF_APRIL, "gemma-2b/lora", "google/gemma-2b", 2),
    _of("087", OF_GEMMA_2_2B, "gemma2-2b/lora", "google/gemma-2-2b", 2),
    _of("091", OF_APRIL, "llama-2-7b/lora", "meta-llama/Llama-2-7b-hf", 2),
    _of("093", OF_APRIL, "llama-3-8b/lora", "meta-llama/Meta-Llama-3-8B", 1),
    _of("096", OF_LLAMA_3_1, "llama-3.1-8b/lora", "meta-llama/Meta-Llama-3.1-8B", 1),
    _of("099", OF_LLAMA_3_2, "llama-3.2-1B/lora", "meta-llama/Llama-3.2-1B", 1),
    _of("102", OF_LLAMA_3_2, "llama-3.2-3B/lora", "meta-llama/Llama-3.2-3B", 1),
    _of("106", OF_APRIL, "mistral-7b/lora", "mistralai/Mistral-7B-v0.1", 2),
    _of("108", OF_APRIL, "phi-2/lora", "microsoft/phi-2", 4),
    _of("111", OF_PHI_3, "phi-3/lora", "microsoft/Phi-3-mini-4k-instruct", 4),
    _of("114", OF_APRIL, "tiny-llama/lora", "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T", 8, 1),
)
