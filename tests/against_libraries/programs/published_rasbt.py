"""Scripts of "LLMs from scratch", ch05/10_llm-training-speed, whose reserved memory its page tells.

The page changes a script step by step.  Kept are its first step, and the last ones that differ from the
script that is there by a constant or a line.  What is installed, beside ``measure``: triton for what is
compiled.  The page has torch 2.6.  Its text is laid out as words, and its tokenizer makes one of each.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.against_libraries.programs.strangers import Program

COMMIT = "322000d"
FOLDER = "ch05/10_llm-training-speed"
NEEDS = {COMMIT: ("triton", "3.7.1")}
ONE = "01_opt_single_gpu.py"
SMALL = ('"batch_size": 32', '"batch_size": 8')
UNPADDED = ('"vocab_size": 50304', '"vocab_size": 50257')
PLAIN = ("model = torch.compile(model)", "pass")


def _files(root: Path, script: str, changes: tuple[tuple[str, str], ...]) -> None:
    folder = root / FOLDER
    (folder / "middlemarch.txt").write_text("word " * 400_000, encoding="utf-8")
    (folder / "tiktoken.py").write_text(
        "class _Words:\n    def encode(self, text, **_):\n        return [1] * len(text.split())\n"
        "    def decode(self, tokens):\n        return ''\n"
        "def get_encoding(_):\n    return _Words()\n",
        encoding="utf-8",
    )
    (folder / "matplotlib").mkdir()
    for name in ("__init__", "pyplot"):
        (folder / f"matplotlib/{name}.py").write_text("", encoding="utf-8")
    text = (folder / script).read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / script).write_text(text, encoding="utf-8")


def _on_a100(row: str, script: str, *changes: tuple[str, str], cards: int = 1) -> tuple[Program, str]:
    launcher = "python" if cards == 1 else f"torchrun --nproc_per_node={cards}"
    program = Program(
        "rasbt/LLMs-from-scratch",
        COMMIT,
        f"{launcher} {script}",
        folder=FOLDER,
        card="a100-80-sxm" if cards == 1 else f"a100-80-sxm:{cards}",
        makes=partial(_files, script=script, changes=changes),
    )
    return program, f"rasbt_speed-{row}"


PROGRAMS = (
    _on_a100("001", "00_orig.py"),
    _on_a100("008", ONE, SMALL, UNPADDED, PLAIN),
    _on_a100("009", ONE, SMALL, UNPADDED),
    _on_a100("010", ONE, SMALL),
    _on_a100("011", ONE),
    _on_a100("012", "02_opt_multi_gpu_ddp.py", cards=4),
)
