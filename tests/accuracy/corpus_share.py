# ruff: noqa: T201 - it prints a table
"""The share of public recipes that ``plan check`` answers: ``make corpus CORPUS=DIR``.

``DIR`` holds one folder for each repository at some age, with its config files at their places.  Every file
is checked from there, offline, for ``--gpu`` (eight H100 where nothing is said).  The table that is printed
says for each tool: files, those that do not train, recipes, how many of these are answered, and what the
others are refused for.

The rule for what is no training recipe was written before any file was counted:

1. a file that is no table, or names no model (``_MODEL_KEYS``): launch files, engines, lists of tokens,
   jobs of a cloud;
2. a file of LLaMA-Factory that asks for something else (``_OTHER_TASKS``)
   and does not say ``do_train: true``;
   (added later: or one for a chat, which has nothing of a training);
3. a file that says that it stops before training (``_STOPS``),
   or whose ``peft_config`` only merges (``export_dir``);
4. (added later) a file of torchtune without an optimizer: it generates, evaluates or quantises;
5. (added later) a launch script without a command that starts a training, or whose program evaluates,
   answers or converts, as its name says (``_OTHER_PROGRAMS``).  Of other scripts the first training counts,
   by rules 1 to 4, and what embeds or ranks (``_OTHER_MODELS``) trains no language model.

Counted apart are files that their own tool refuses on so many GPUs, which ``plan check`` says with
``refused-by-its-tool``.  Answered is exit code 0, 3, 4 or 5 with a prediction: a verdict, or a bounded answer
that says how sure it is.  A file that leaves the length of samples to the data, where the length decides,
is not answered.  Nor is one whose architecture is not modelled, where its bounds decide nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.api.launch_commands import is_script
from planner.cli.main import main as plan
from planner.configs.launchers.command_line import how_many, started
from planner.configs.read import recognise
from planner.configs.tools.llama_factory.llama_factory import OF_CHAT
from planner.configs.yaml_or_json import Document, read_document
from planner.errors import REFUSED_BY_TOOL, ExitCode, PlannerError

ANSWERED = (0, 3, 4, 5)
_SUFFIXES = (".yaml", ".yml", ".json", ".toml")
_MODEL_KEYS = (
    *("model_name_or_path", "base_model", "model", "model_config", "checkpointer"),
    *("model_id_or_path", "model_type", "load"),
)
_OTHER_TASKS = ("do_eval", "do_predict", "export_dir", "infer_backend", "task")
_STOPS = ("cache_dataset_only", "cache_logprobs_only")
_OTHER_PROGRAMS = re.compile(
    r"(?:^|_)(?:evaluat\w*|eval|infer\w*|\w*chatbot\w*|app|merge\w*|export|deploy)(?:_|$)"
)
_OTHER_MODELS = ("embedding", "reranker", "generative_reranker")
_QUOTED = re.compile(r"'[^']*'")


def why_no_training(table: dict[str, Any], tool: str) -> str:
    """The point of the rule that leaves a file out; empty for a training recipe."""
    if not any(table.get(name) for name in _MODEL_KEYS):
        return "names no model"
    other = any(table.get(name) not in (None, False) for name in _OTHER_TASKS)
    other = other or table.keys() <= OF_CHAT
    if tool == "llama-factory" and other and table.get("do_train") is not True:
        return "asks for something else than training"
    if tool == "torchtune" and not table.get("optimizer"):
        return "asks for something else than training"
    adapter = table.get("peft_config")
    if any(table.get(name) for name in _STOPS) or (isinstance(adapter, dict) and adapter.get("export_dir")):
        return "stops before training"
    return ""


def told_of_script(path: Path) -> tuple[str, str]:
    """The tool of a launch script's first training, and the point of the rule that leaves it out."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        if not how_many(path, text):
            return "none", "starts no training"
        job = started(path, text, 1)
    except PlannerError:
        return "none", ""
    if _OTHER_PROGRAMS.search(Path(job.script).stem):
        return job.tool or "none", "asks for something else than training"
    tool = job.tool or "none"
    with contextlib.suppress(PlannerError):
        tool = job.tool or recognise(Document(path, job.arguments)).name
    if job.arguments.get("task_type") in _OTHER_MODELS:
        return tool, "trains no language model"
    return tool, why_no_training(job.arguments, tool)


@dataclass
class Tally:
    """What became of the files of one tool."""

    files: int = 0
    answered: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def recipes(self) -> int:
        """Files that the rule does not leave out."""
        return self.files - sum(self.left_out.values())

    def row(self, tool: str) -> str:
        """One line of the table."""
        share = f"{100 * self.answered / self.recipes:.0f} %" if self.recipes else ""
        return (
            f"| {tool} | {self.files} | {self.files - self.recipes} | {self.recipes} | "
            f"{self.answered} | {share} |"
        )


def checked(file: str, gpu: str) -> tuple[int, str]:
    """Exit code of ``plan check`` and the sentence of a refusal."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            code = plan(["check", file, "--gpu", gpu, "--json"])
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
    try:
        result = json.loads(out.getvalue())["results"][0]
    except (ValueError, LookupError):
        return int(code or 0), "no answer"
    decided = (result["bounds"] or {}).get("verdict") in ("fits", "does_not_fit")
    code = result["exit_code"] if result["answer"] is not None or decided else ExitCode.NOT_MODELLED
    return int(code), reason_of(file, str(result["error"] or ""))


def reason_of(file: str, error: str) -> str:
    """A refusal without the file and without what it quotes, so that like ones count together."""
    text = _QUOTED.sub("...", error.replace(f"{file}:", "").strip())
    apart = f" [{REFUSED_BY_TOOL}]" if REFUSED_BY_TOOL in text else ""
    return re.split(r"[;,]|: say ", text, maxsplit=1)[0][:90] + apart


def files_of(root: Path, listed: Path | None) -> Iterator[tuple[str, str]]:
    """Repository and file: those that a list names, or all that may be configs."""
    if listed is not None:
        yield from (
            (str(folder), str(file)) for folder, file in json.loads(listed.read_text(encoding="utf-8"))
        )
        return
    for path in sorted(root.rglob("*")):
        if path.suffix in _SUFFIXES and path.is_file() and path.parent != root:
            folder, *rest = path.relative_to(root).parts
            yield folder, str(Path(*rest))


def tally(root: Path, listed: Path | None, gpu: str) -> dict[str, Tally]:
    """Every file, by the tool that its keys tell."""
    tallies: dict[str, Tally] = defaultdict(Tally)
    for folder, file in files_of(root, listed):
        os.chdir(root / folder)
        tool, left_out = "none", ""
        if is_script(file):
            tool, left_out = told_of_script(Path(file))
        else:
            with contextlib.suppress(PlannerError):
                document = read_document(Path(file))
                left_out = why_no_training(dict(document.table), "")
                tool = recognise(document).name
                left_out = why_no_training(dict(document.table), tool)
        found = tallies[tool]
        found.files += 1
        if left_out:
            found.left_out[left_out] += 1
            continue
        code, reason = checked(file, gpu)
        if code in ANSWERED:
            found.answered += 1
        elif REFUSED_BY_TOOL in reason:
            found.left_out[f"counted apart: {reason}"] += 1
        else:
            found.refused[reason] += 1
    return tallies


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--list", type=Path, help="JSON: [[repository, file], ...]; without it every config is tried"
    )
    parser.add_argument("--gpu", default="h100-sxm:8")
    said = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    tallies = tally(said.folder.resolve(), said.list and said.list.resolve(), said.gpu)
    print("| tool | files | not training | recipes | answered | share |\n|---|---|---|---|---|---|")
    whole = Tally()
    for tool, found in sorted(tallies.items()):
        print(found.row(tool))
        whole = Tally(
            whole.files + found.files, whole.answered + found.answered, whole.left_out + found.left_out
        )
    print(whole.row("all"))
    for tool, found in sorted(tallies.items()):
        for what, counted in (("left out", found.left_out), ("refused", found.refused)):
            for reason, count in counted.most_common():
                print(f"{tool}, {what}, {count}: {reason}")


if __name__ == "__main__":
    main()
