"""What a Markdown file shows in fenced blocks: the commands of a README, the config of a model card.

Source: CommonMark 0.31.2, 4.5 (fenced code blocks).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from planner.configs.launchers.shell_texts import closes_quotes
from planner.errors import InputFileError

MARKDOWN = ".md"
_FENCE = re.compile(r"^[ \t]*(```+|~~~+)[ \t]*([\w+-]*)")
_OF_SHELLS = frozenset({"", "bash", "sh", "shell", "zsh", "console", "shell-session"})
_PROMPT = re.compile(r"^[ \t]*\$[ \t]+")


def shell_of(text: str) -> str:
    """The blocks that are a shell's, or that name no language, without prompts; text that is none of a shell,
    as it leaves a quote open, is left out.
    """
    blocks = ("\n".join(_PROMPT.sub("", line) for line in block) for block in _blocks(text, _OF_SHELLS))
    return "\n".join(block for block in blocks if closes_quotes(block.splitlines()))


def yaml_of(path: Path, text: str) -> str:
    """The one block of YAML.

    Raises:
        InputFileError: none, or several.
    """
    found = ["\n".join(block) for block in _blocks(text, ("yaml", "yml"))]
    if len(found) != 1:
        what = f"{len(found)} blocks of YAML" if found else "no block of YAML and no command of a training"
        raise InputFileError(path, f"{what}: write the job's into a file of its own")
    return found[0]


def _blocks(text: str, languages: Collection[str]) -> Iterator[list[str]]:
    fence, wanted, block = "", False, list[str]()
    for line in text.splitlines():
        found = _FENCE.match(line)
        if not fence and found:
            fence, wanted, block = found[1], found[2].lower() in languages, []
        elif fence and found and found[1].startswith(fence) and not found[2]:
            if wanted:
                yield block
            fence = ""
        else:
            block.append(line)
