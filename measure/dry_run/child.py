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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measure.dry_run.cuda.native import Native
from measure.dry_run.guesses import missing_behind, missing_module, raised_at
from measure.dry_run.invented_rows import Lacking, lacking_behind
from measure.dry_run.messages import ANSWER_FILE, STACKS_FILE, Ending, ProgramEnd, ProgramJob, events_file

if TYPE_CHECKING:
    from measure.dry_run.guesses import Guesses
    from measure.dry_run.setup import Pretended
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
    from measure.dry_run.libraries import inductor
    from measure.dry_run.setup import set_up

    pretended = set_up(native, job)
    ran = _run(job, pretended)
    inductor.note_graphs(pretended.guesses)
    faulthandler.cancel_dump_traceback_later()
    sys.stdout.flush()
    sys.stderr.flush()
    answer = _answer(ran, pretended.guesses, pretended.stages)
    _leave(job, native, pretended.stages, answer)
    # Without what programs do at exit: nothing that they would upload or join is there.
    os._exit(0)


def _end_with_parent() -> None:
    """Nobody is left to stop this process once the one that started it is gone,
    however it went (Linux alone has this).
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class _Ran:
    """How the program ended, why, its own exit code, and what it missed in invented rows."""

    ending: Ending
    reason: str = ""
    code: int = 0
    lacking: Lacking = field(default_factory=Lacking)


def _run(job: ProgramJob, pretended: Pretended) -> _Ran:
    """Run the program."""
    from measure.dry_run.run_program import run_program
    from measure.dry_run.stages import StepsDone

    try:
        run_program(job.command)
    except StepsDone:
        return _Ran("steps")
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        return _Ran("failed", f"it ended with exit code {code}", code) if code else _Ran("ended")
    except BaseException as error:  # noqa: BLE001 - whatever the program raises is its own
        if job.invented and (lacking := lacking_behind(error, job.invented)):
            return _Ran("failed", "", 1, lacking)
        traceback.print_exception(error.with_traceback(_from_program(error)))
        if reason := _why_refused(error):
            return _Ran("refused", reason, 1)
        if pretended.stages.evaluates and pretended.stages.steps_done >= job.n_steps:
            # The evaluation behind them was asked for here, where the program's own may never come.
            pretended.guesses.assume(
                "evaluation", f"left out, as it fails: {_first_line(error)}", "the program"
            )
            return _Ran("steps")
        return _Ran("failed", _first_line(error), 1)
    return _Ran("ended")


def _why_refused(error: BaseException) -> str:
    """What an error says that is none of the program's own; empty for one that is."""
    from measure.dry_run.libraries import inductor

    if (unknown := _NO_KERNEL.search(str(error))) is not None:
        place = raised_at(error)
        return f"operator {unknown[1]} has no stand-in for tensors of {unknown[2]}, at {place}"
    if inductor.fails(error):
        return f"torch.compile: {inductor.said(error)} {inductor.WITHOUT}"
    return str(missing_behind(error) or missing_module(error) or "")


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:300]


def _from_program(error: BaseException) -> Any:
    """The traceback without the frames that started the program."""
    found = error.__traceback__
    while found is not None and (
        "runpy" in found.tb_frame.f_code.co_filename
        or __package__.replace(".", "/") in found.tb_frame.f_code.co_filename
    ):
        found = found.tb_next
    return found or error.__traceback__


def _answer(ran: _Ran, guesses: Guesses, stages: Stages) -> ProgramEnd:
    ending, reason = ran.ending, ran.reason
    if guesses.refusals:
        (op, why), place = next(iter(guesses.refusals.items()))
        ending, reason = "refused", f"{op} {why}, at {place}"
    assumed = tuple(
        {"name": each.name, "value": each.value, "origin": each.origin, "note": each.note}
        for each in guesses.listed()
    )
    return ProgramEnd(
        ending,
        reason,
        ran.code,
        stages.steps_done,
        stages.micro_steps,
        stages.most_tokens,
        stages.allocator,
        assumed,
        lacks_data=guesses.lacks_data,
        lacks_column=ran.lacking.column,
        lacks_rows=ran.lacking.n_rows,
    )


def _unlike_named(n_named: int, n_processes: int, n_used: int) -> str:
    """Why the cards that were named are not those that train; empty where they are: a process for each,
    or one process that spreads the model over several.
    """
    if (n_processes == n_named and n_used == 1) or (n_processes == 1 and n_used > 1):
        return ""
    return (
        f"{n_named} cards are named, and {n_processes} processes train on {n_used} each: start one for each "
        'card, load with device_map="auto" in one process, or name one card'
    )


def _leave(job: ProgramJob, native: Native, stages: Stages, answer: ProgramEnd) -> None:
    from dataclasses import asdict, replace

    from measure.dry_run.collect import events_of
    from measure.dry_run.process_group import n_ranks
    from planner.allocator.events import write_jsonl

    folder = Path(job.folder)
    if answer.ending in ("steps", "ended"):
        found = events_of(native, stages)
        reason = _unlike_named(job.card.n_cards, n_ranks(), len(found))
        answer = replace(answer, cards=tuple(found))
        if reason:
            answer = replace(answer, ending="refused", reason=reason)
        for card, events in found.items():
            write_jsonl(folder / events_file(card), events)
    (folder / ANSWER_FILE).write_text(json.dumps(asdict(answer)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
