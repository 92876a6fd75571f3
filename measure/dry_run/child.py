"""The process of a dry run: the pretended card first, then torch, then the program.
``python -m measure.dry_run.child JOB``.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import re
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measure.dry_run.cuda.native import Native
from measure.dry_run.messages import ANSWER_FILE, EVENTS_FILE, STACKS_FILE, Ending, ProgramEnd, ProgramJob

if TYPE_CHECKING:
    from measure.dry_run.guesses import Guesses
    from measure.dry_run.stages import Stages

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# How torch says that a kind of tensor has no kernels in this build, such as sparse ones.
_NO_KERNEL = re.compile(r"Could not run '([\w:.]+)' with arguments from the '(\w*CUDA)' backend")


def main(text: str) -> None:
    """Run one job and leave the answer in its folder."""
    _end_with_parent()
    job = ProgramJob.of_fields(json.loads(text))
    folder = Path(job.folder)
    stacks = (folder / STACKS_FILE).open("w", encoding="utf-8")
    faulthandler.enable(stacks)
    faulthandler.dump_traceback_later(job.timeout_s, exit=True, file=stacks)
    native = Native(Path(job.library))
    from measure.dry_run.process_group import n_ranks
    from measure.dry_run.setup import set_up

    pretended = set_up(native, job)
    ending, reason, code = _run(job)
    if ending in ("steps", "ended") and n_ranks() != job.card.n_cards:
        ending = "refused"
        reason = (
            f"{job.card.n_cards} cards are named, and {n_ranks()} processes train: start one for each, "
            "or name one card"
        )
    faulthandler.cancel_dump_traceback_later()
    sys.stdout.flush()
    sys.stderr.flush()
    _leave(
        folder, native, pretended.stages, _answer((ending, reason, code), pretended.guesses, pretended.stages)
    )
    # Without what programs do at exit: nothing that they would upload or join is there.
    os._exit(0)


def _end_with_parent() -> None:
    """Nobody is left to stop this process once the one that started it is gone,
    however it went (Linux alone has this).
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _run(job: ProgramJob) -> tuple[Ending, str, int]:
    """Run the program; how it ended, why, and its own exit code."""
    from measure.dry_run.run_program import run_program
    from measure.dry_run.stages import StepsDone

    try:
        run_program(job.command)
    except StepsDone:
        return "steps", "", 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        return ("failed", f"it ended with exit code {code}", code) if code else ("ended", "", 0)
    except BaseException as error:  # noqa: BLE001 - whatever the program raises is its own
        traceback.print_exception(error.with_traceback(_from_program(error)))
        if (unknown := _NO_KERNEL.search(str(error))) is not None:
            return "refused", f"operator {unknown[1]} has no stand-in for tensors of {unknown[2]}", 1
        return "failed", f"{type(error).__name__}: {error}".partition("\n")[0][:300], 1
    return "ended", "", 0


def _from_program(error: BaseException) -> Any:
    """The traceback without the frames that started the program."""
    found = error.__traceback__
    while found is not None and (
        "runpy" in found.tb_frame.f_code.co_filename
        or __package__.replace(".", "/") in found.tb_frame.f_code.co_filename
    ):
        found = found.tb_next
    return found or error.__traceback__


def _answer(run: tuple[Ending, str, int], guesses: Guesses, stages: Stages) -> ProgramEnd:
    ending, reason, code = run
    if guesses.refusals:
        (op, why), place = next(iter(guesses.refusals.items()))
        ending, reason = "refused", f"{op} {why}, at {place}"
    elif ending == "failed" and guesses.not_here and reason.startswith("OSError"):
        ending = "refused"
        reason = (
            f"{guesses.not_here[0]} is neither in the Hub's cache nor in the catalog; "
            "download it first, or name a folder that has it"
        )
    assumed = tuple(
        {"name": each.name, "value": each.value, "origin": each.origin, "note": each.note}
        for each in guesses.listed()
    )
    return ProgramEnd(
        ending,
        reason,
        code,
        stages.steps_done,
        stages.micro_steps,
        stages.most_tokens,
        stages.allocator,
        assumed,
    )


def _leave(folder: Path, native: Native, stages: Stages, answer: ProgramEnd) -> None:
    from dataclasses import asdict

    from measure.dry_run.collect import events_of
    from planner.allocator.events import write_jsonl

    if answer.ending in ("steps", "ended"):
        write_jsonl(folder / EVENTS_FILE, events_of(native, stages))
    (folder / ANSWER_FILE).write_text(json.dumps(asdict(answer)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
