"""The script of fitcheck that measured its rows on a Tesla T4.

What is installed, beside ``measure``: transformers 5.0.0, peft 0.19.1, bitsandbytes 0.50.2, no triton.  The
script resets its counters after one step and reads them after the next: the two that a dry run makes.
"""

from __future__ import annotations

from tests.against_libraries.programs.strangers import Program

COMMIT = "83aea542"
NEEDS = {COMMIT: ("transformers", "5.0.0")}
TINY, SMOL = "TinyLlama/TinyLlama-1.1B-Chat-v1.0", "HuggingFaceTB/SmolLM2-1.7B"
QWEN, CODER = "Qwen/Qwen2.5-1.5B-Instruct", "deepseek-ai/deepseek-coder-1.3b-instruct"
QLORA, LORA, KEPT = "--qlora", "--grad-checkpoint", ""
SDPA = "--attn-impl sdpa"


def _on_t4(
    row: int, model: str, method: str, rank: int, batch: int, length: int, *words: str
) -> tuple[Program, str]:
    command = " ".join(
        ("python scripts/measure.py", model, *method.split(), "--precision fp16 --lora-r", str(rank),
         f"--batch-size {batch} --seq-len {length} --no-predict", *words)
    )  # fmt: skip
    rows = f"fitcheck-{row}" if row > 139 else f"fitcheck-{row:03};fitcheck-{row + 100}"
    return Program("Anassbzdd/fitcheck", COMMIT, command, card="t4"), rows


PROGRAMS = (
    _on_t4(19, TINY, QLORA, 32, 1, 1024),
    _on_t4(9, QWEN, QLORA, 32, 2, 1024),
    _on_t4(12, QWEN, LORA, 32, 1, 2048),
    _on_t4(15, SMOL, QLORA, 32, 1, 2048),
    _on_t4(18, SMOL, LORA, 32, 1, 2048, SDPA),
    _on_t4(24, TINY, QLORA, 32, 4, 1024),
    _on_t4(28, "Qwen/Qwen2.5-7B-Instruct", QLORA, 16, 1, 1024),
    _on_t4(29, "mistralai/Mistral-7B-Instruct-v0.3", QLORA, 16, 1, 1024),
    _on_t4(31, CODER, QLORA, 16, 1, 1024, SDPA),
    _on_t4(36, "meta-llama/Llama-3.2-3B-Instruct", QLORA, 16, 1, 1024),
    _on_t4(144, SMOL, KEPT, 32, 1, 512),
    _on_t4(146, "Qwen/Qwen2.5-0.5B", KEPT, 32, 2, 512),
    _on_t4(150, "google/gemma-2-2b", KEPT, 32, 1, 512),
    _on_t4(1, TINY, QLORA, 32, 2, 512),
    _on_t4(2, TINY, QLORA, 32, 2, 1024),
    _on_t4(3, TINY, QLORA, 32, 2, 2048),
    _on_t4(7, SMOL, QLORA, 32, 4, 1024),
    _on_t4(8, SMOL, QLORA, 32, 4, 1024, SDPA),
    _on_t4(11, QWEN, QLORA, 32, 1, 2048),
    _on_t4(16, SMOL, LORA, 32, 1, 2048),
    _on_t4(17, SMOL, QLORA, 32, 1, 2048, SDPA),
    _on_t4(26, TINY, QLORA, 32, 8, 1024),
    _on_t4(30, CODER, QLORA, 16, 1, 1024),
    _on_t4(34, "Qwen/Qwen2.5-Coder-1.5B-Instruct", QLORA, 16, 1, 1024),
    _on_t4(39, "meta-llama/Llama-3.2-1B-Instruct", QLORA, 16, 1, 1024),
    _on_t4(143, SMOL, KEPT, 32, 1, 512, SDPA),
    _on_t4(148, "Qwen/Qwen2.5-1.5B", KEPT, 32, 1, 512),
)
