"""Starts the child of a dry run in a folder of its own, shows what it prints, and reads its answer."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import IO

from measure.dry_run import lay_out
from measure.dry_run.invented_rows import Lacking
from measure.dry_run.messages import ANSWER_FILE, DATA_SET, STACKS_FILE, ProgramEnd, ProgramJob, events_file
from measure.dry_run.sandbox import top_of, view_of, view_with_neighbours
from measure.output import write_foreign
from measure.trace.assumed import Assumed
from planner.allocator.events import AllocEvent, read_jsonl
from planner.errors import NotModelledError, PlannerError

_GRACE_S = 60.0
_ROOT = Path(__file__).resolve().parents[2]
# No network, no reports to anyone, and no threads that load weights while others run.
_VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_DEACTIVATE_ASYNC_LOAD": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_MODE": "disabled",
    "DO_NOT_TRACK": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
}
_DEVICES = "DRY_RUN_DEVICES"
"""How many cards the compiled part finds (native/device.cpp)."""
_VIEW = "work"
"""The folder of the files that the program sees."""
_PLACE = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
_PASSES_ON = ("/torch/", "/measure/dry_run/", "/runpy.py", "<frozen")


class ProgramError(PlannerError):
    """The program ended with an error of its own, or did not end."""


class DataNotHereError(NotModelledError):
    """The program found no tokenizer or data set."""


class RowsLackError(NotModelledError):
    """The program asked invented rows for what they do not have; ``lacking`` is that."""

    def __init__(self, lacking: Lacking) -> None:
        super().__init__(f"invented rows lack {lacking}")
        self.lacking = lacking


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a program allocates: its events by card, what was assumed, and how far it came."""

    cards: dict[int, list[AllocEvent]]
    assumed: tuple[Assumed, ...]
    steps: int
    micro_steps: int
    most_tokens: tuple[int, int]
    allocator: str


def dry_run(job: ProgramJob) -> DryRun:
    """Run ``job`` in a temporary folder.

    Raises:
        ProgramError: the program failed by itself, or came to no end in time;
        its own words went to standard error.
        NotModelledError: it needs something that cannot be pretended; names the operator and the place.
        DataNotHereError: it found no tokenizer or data set.
        RowsLackError: invented rows lack a column, or are too few.
    """
    with (
        _ends_in_order(),
        tempfile.TemporaryDirectory(prefix="measure-dry-run-", ignore_cleanup_errors=True) as name,
    ):
        folder = Path(name).resolve()
        code = _run_child(replace(job, folder=str(folder)), folder)
        answer = _answer_in(folder)
        if answer is None:
            raise _without_answer(code, folder, job.timeout_s)
        if answer.ending == "refused":
            kind = DataNotHereError if answer.lacks_data else NotModelledError
            raise kind(f"the program cannot be dry-run: {answer.reason}")
        if lacking := Lacking(answer.lacks_column, answer.lacks_rows):
            raise RowsLackError(lacking)
        if answer.ending == "failed":
            raise ProgramError(
                f"the program itself failed{_on(job, answer)} (its exit code would be {answer.exit_code}): "
                f"{answer.reason}"
            )
        if answer.steps == 0:
            raise NotModelledError(
                "the program ended without an optimizer step of torch, so its training was not seen; name "
                "the script that trains"
            )
        cards = {card: read_jsonl(folder / events_file(card)) for card in answer.cards}
        if not any(cards.values()):
            raise NotModelledError("the program put nothing on the card: it trained on the host")
    return DryRun(
        cards,
        tuple(Assumed(**each) for each in answer.assumed),
        answer.steps,
        answer.micro_steps,
        answer.most_tokens,
        answer.allocator,
    )


def _on(job: ProgramJob, answer: ProgramEnd) -> str:
    """Whether it read invented rows before, which may be why."""
    reads = job.invented and any(each["name"] == DATA_SET for each in answer.assumed)
    return f" on invented rows of {', '.join(job.invented)} (--data FILE gives others)" if reads else ""


@contextlib.contextmanager
def _ends_in_order() -> Iterator[None]:
    """A request to end takes the folder and the program with it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run_child(job: ProgramJob, folder: Path) -> int:
    work = view_with_neighbours(Path.cwd(), folder / _VIEW)
    for name, content in job.files.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(content, encoding="utf-8")
    variables = {**_environment(folder), **job.variables, _DEVICES: str(job.card.n_cards)}
    for name, model in job.checkpoints.items():
        failed = lay_out.start(work / name, model, variables)
        if failed:
            raise NotModelledError(f"--checkpoint {name} cannot be made: {failed}")
    # The files are there; a command line is too short for them.
    command = [sys.executable, "-m", "measure.dry_run.child", json.dumps(replace(job, files={}).to_fields())]
    with subprocess.Popen(
        command,
        cwd=work,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="backslashreplace",
        start_new_session=True,
    ) as child:
        shown = threading.Thread(target=_show, args=(child.stdout, folder), daemon=True)
        shown.start()
        try:
            code = child.wait(job.timeout_s + _GRACE_S)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        finally:
            # Whatever the program started goes with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        shown.join(_GRACE_S)
    return code


def _own_names(text: str, folder: Path) -> str:
    """Files in the view by the names that they have for the caller: from here, or from the top of the
    repository.
    """
    view = folder / _VIEW
    here = view / Path.cwd().relative_to(top_of(Path.cwd()))
    return text.replace(f"{here}/", "").replace(f"{view}/", "")


def _show(stream: IO[str] | None, folder: Path) -> None:
    """The program's own words go to standard error, with its files by their own names:
    the result alone is on standard output.
    """
    # It is closed while a line is awaited where the dry run itself is ended.
    with contextlib.suppress(ValueError):
        line = "\n"
        for line in stream or ():
            write_foreign(_own_names(line, folder))
        # A progress bar ends without one, and the report would go on in its line.
        if not line.endswith("\n"):
            write_foreign("\n")


def _environment(folder: Path) -> Mapping[str, str]:
    """The caller's variables with a home and temporary files of its own, and views of the caches
    of the Hub and of tiktoken.
    """
    home = folder / "home"
    home.mkdir()
    cache = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = str(view_of(cache, home / "hub")) if cache.is_dir() else str(home / "hub")
    # tiktoken keeps there what it loads, a file of this machine, too, and fails where it may not write (0.14
    # load.py read_file_cached).
    asked = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    words = view_of(Path(asked or Path(tempfile.gettempdir()) / "data-gym-cache"), home / "data-gym-cache")
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    own = {
        "TIKTOKEN_CACHE_DIR": str(words),
        "HOME": str(home),
        "TMPDIR": str(home),
        "HF_HOME": hub,
        "PYTHONPATH": os.pathsep.join(paths),
    }
    return {**os.environ, **_VARIABLES, **own}


def _answer_in(folder: Path) -> ProgramEnd | None:
    path = folder / ANSWER_FILE
    if not path.is_file():
        return None
    fields = json.loads(_own_names(path.read_text(encoding="utf-8"), folder))
    return ProgramEnd(
        **{**fields, **{name: tuple(fields[name]) for name in ("assumed", "most_tokens", "cards")}}
    )


def _without_answer(code: int, folder: Path, timeout_s: float) -> PlannerError:
    """Why a child ended without an answer: a kernel that touched memory, too little time,
    or an end from outside.
    """
    stacks = (folder / STACKS_FILE).read_text(encoding="utf-8") if (folder / STACKS_FILE).is_file() else ""
    place = next(_places(stacks), "an unknown place")
    if "Timeout" in stacks or code == -signal.SIGKILL:
        return ProgramError(
            f"the program came to no end in {timeout_s:g} seconds (--timeout); it was at {place}"
        )
    if code in (-signal.SIGSEGV, -signal.SIGBUS):
        return NotModelledError(
            f"the program cannot be dry-run: a kernel that has no stand-in read or wrote memory, at {place}"
        )
    return ProgramError(f"the program ended the process by itself (code {code}), so there is no answer")


def _places(stacks: str) -> Iterator[str]:
    for file, line, function in _PLACE.findall(stacks):
        if not any(part in file for part in _PASSES_ON):
            yield f"{PurePath(file).name}:{line} ({function})"
