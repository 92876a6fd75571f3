"""``measure trace``: one training step of the real modules on fake tensors,
replayed through the allocator.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import typer

from measure.cli.job_flags import ASSUMED_GPU, need, quiet, scenario_of, size_bytes
from measure.output import write_remark, write_result
from measure.trace.assumed import Assumed
from measure.trace.host_records import NO_HOST_MEMORY, HostMemory
from measure.trace.report import other_cards, to_text, wrapped
from measure.trace.trace_json import to_json
from planner.allocator.documents.summary import (
    Room,
    Summary,
    room_on,
    summarize,
    timeline_of,
    timeline_over,
)
from planner.allocator.events import AllocEvent, write_jsonl
from planner.allocator.settings import parse_settings
from planner.catalog.hf_config import in_checkpoint_dtype, model_from_config
from planner.domain.model import ModelSpec
from planner.domain.recipes.job_line import picture_title
from planner.domain.scenario import Assumption, Scenario
from planner.errors import ExitCode, UnknownArchitectureError, UsageError
from planner.files.writing import check_picture, check_writable
from planner.intake.given.flags import Config, Force, OwnOptions, switch, valued
from planner.printing import width_of

EXAMPLE = "measure trace --model 7b --method lora --seq 1024 --batch 2"
_LIBRARIES = ("torch", "transformers", "peft", "accelerate")
# With states of the optimizer in the second, and little more than a minute of patience times ten.
_STEPS, _TIMEOUT_S = 2, 600.0
OPTIONS: OwnOptions = {
    "config": (Config, None),
    "force": (Force, False),
    "fits": valued("--fits", "SIZE", "Replay on a card that lets torch have SIZE"),
    "allocator": valued("--allocator", "TEXT", "Settings as in PYTORCH_CUDA_ALLOC_CONF"),
    "plot": valued("--plot", "FILE", "Draw the timeline as a PNG"),
    "export": valued("--export", "FILE", "Write a snapshot for PyTorch's memory visualiser"),
    "events": valued("--events", "FILE", "Write every allocation and free, one line each"),
    "all_layers": switch("--all-layers", "Run every layer, not one period of them"),
    "as_json": switch("--json", "Write JSON"),
    "steps": (
        Annotated[
            int,
            typer.Option(
                "--steps", metavar="N", min=1, help="Of a program: optimizer steps before it is stopped"
            ),
        ],
        _STEPS,
    ),
    "timeout_s": (
        Annotated[
            float,
            typer.Option("--timeout", metavar="SECONDS", min=1, help="Of a program: give up after this"),
        ],
        _TIMEOUT_S,
    ),
    "trust_remote_code": switch(
        "--trust-remote-code", "Of a program: run the code that comes with a checkpoint"
    ),
    "check": valued("--check", "FILE", "A training file: its own tool runs it, on rows of full length"),
    "lengths": (
        Annotated[
            int | None,
            typer.Option(
                "--lengths",
                metavar="TOKENS",
                min=1,
                help="Of --check: tokens of each row; of a program: words of each text that is not there",
            ),
        ],
        None,
    ),
    "data": valued("--data", "FILE", "Of a program: JSONL rows in place of each data set that is not there"),
    "checkpoint": valued(
        "--checkpoint",
        "FOLDER=MODEL",
        "Of a program: a folder that it finds with the files of this model, without weights",
        list[str],
    ),
    "program": (
        Annotated[
            list[str] | None,
            typer.Argument(
                metavar="-- PROGRAM ARGUMENTS", help="A program to run as it is, such as python train.py"
            ),
        ],
        None,
    ),
}


@dataclass(frozen=True, slots=True)
class TraceOutput:
    """How to answer, beside what the job is."""

    fits: str | None
    allocator: str | None
    plot: str | None
    export: str | None
    events: str | None
    all_layers: bool
    as_json: bool
    steps: int
    timeout_s: float
    trust_remote_code: bool
    check: str | None
    lengths: int | None
    data: str | None
    checkpoint: list[str] | None


def trace(**given: Any) -> int:
    """Run one training step of the real modules on fake tensors and replay its allocations; needs no GPU.

    With a program after -- that program runs instead, as it is, on a card that is not there.
    """
    program = given.pop("program")
    answer = TraceOutput(**{field.name: given.pop(field.name) for field in fields(TraceOutput)})
    # Everything that can be wrong is found before the work begins.
    limit_bytes = None if answer.fits is None else size_bytes("--fits", answer.fits)
    parse_settings(answer.allocator or "")
    for path in (answer.export, answer.events):
        if path is not None:
            check_writable(path)
    if answer.plot is not None:
        check_picture(answer.plot)
        need("plots", "matplotlib")
    _check_together(program, answer)
    if program or answer.check is not None:
        return _trace_program(program, given, answer, limit_bytes)
    said_apart = {"config": given.pop("config"), "force": given.pop("force")}
    scenario = scenario_of(given, **said_apart, example=EXAMPLE, reader=_described)
    need("measure", *_LIBRARIES)
    quiet()
    from measure.trace.traced_job import TraceOptions, is_divided, trace_step

    if is_divided(scenario.recipe):
        return _trace_divided(scenario, answer, limit_bytes)

    traced = trace_step(scenario, TraceOptions(answer.all_layers))
    assumed: tuple[Assumption | Assumed, ...] = (*scenario.assumptions, *_left_out(scenario))
    found = Recorded({0: traced.events}, assumed, picture_title(scenario), traced.host)
    answer = replace(answer, allocator=_allocator_of(answer, scenario))
    return _say(answer, found, limit_bytes or _room_in(scenario))


def _left_out(scenario: Scenario) -> tuple[Assumed, ...]:
    """What the trace of one card has no step of, with a remark."""
    if not scenario.run.evaluates:
        return ()
    write_remark("the evaluation is left out: plan counts it, and a dry run of the program runs it")
    return (Assumed("evaluation", "left out", "the trace of one step", "plan counts it"),)


def _room_in(scenario: Scenario) -> Room | None:
    """What the card leaves to the allocator, where one was named; an assumed one stands for its kernels."""
    hardware, gpu = scenario.hardware, next(each for each in scenario.assumptions if each.name == "gpu")
    if hardware.limit_bytes is None or (gpu.is_assumed and gpu.value == ASSUMED_GPU):
        return None
    return room_on(hardware.limit_bytes, hardware.world_size)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was recorded of a step or a program, by card, and what was assumed.  ``title``: of a picture.
    ``words``: what the report says behind it, of all that was assumed.
    """

    cards: Mapping[int, list[AllocEvent]]
    assumed: tuple[Assumption | Assumed, ...]
    title: str
    host: HostMemory = NO_HOST_MEMORY
    words: Callable[[tuple[Any, ...]], str] = lambda _: ""


def _say(answer: TraceOutput, found: Recorded, room: Room | int | None) -> int:
    """Replay each card, answer for the one that needs most, and write the files that were asked for."""
    settings = parse_settings(answer.allocator or "")
    summaries = {number: summarize(own, room, settings) for number, own in found.cards.items()}
    fullest = max(summaries, key=lambda number: _need_of(summaries[number]))
    summary, events = summaries[fullest], found.cards[fullest]
    assumed = (*other_cards(summaries, fullest), *found.assumed)
    _write_files(answer, found.title, events, summary)
    if answer.as_json:
        write_result(to_json(summary, timeline_of(events, summary), assumed, found.host))
    else:
        text = to_text(summary, found.host) + found.words(assumed)
        write_result(wrapped(text, width_of(sys.stdout)))
    return int(summary.exit_code)


def _allocator_of(answer: TraceOutput, scenario: Scenario) -> str:
    """The allocator's settings: those that were given, or those of the stack with a remark."""
    if answer.allocator is not None:
        return answer.allocator
    said = scenario.allocator_settings
    if said:
        write_remark(f"stack '{scenario.stack.id}' sets {said} of torch's allocator; --allocator says others")
    return said


def _check_together(program: list[str] | None, answer: TraceOutput) -> None:
    """Of flags about programs, those that say nothing here are refused."""
    if program and answer.check is not None:
        raise UsageError("--check names a file that its own tool runs, so no program can follow")
    if answer.lengths is not None and not program and answer.check is None:
        raise UsageError("--lengths says how long rows of --check FILE or of a program without data are")
    if answer.lengths is not None and answer.data is not None:
        raise UsageError("--data has rows, and --lengths invents some: leave one of them out")
    if answer.data is not None and not program:
        raise UsageError(
            "--data stands in for data sets of a program: measure trace --data rows.jsonl -- python train.py"
        )
    if answer.checkpoint and not program:
        raise UsageError(
            "--checkpoint makes a folder that a program finds: "
            "measure trace --checkpoint llama=meta-llama/Llama-3.2-1B -- python train.py"
        )


def _trace_divided(scenario: Scenario, answer: TraceOutput, limit_bytes: int | None) -> int:
    """The same of a job that an engine divides: the engine's own code runs, as in a program of the user's."""
    from measure.cli.dry_run import run_laid
    from measure.trace.divided_job import divided_job

    job = divided_job(scenario)
    answer = replace(answer, allocator=_allocator_of(answer, scenario))
    ran = run_laid(job.command, job.files, (scenario.hardware.gpu, job.n_cards), answer)
    found = Recorded(ran.cards, scenario.assumptions, picture_title(scenario))
    return _say(answer, found, limit_bytes or _room_in(scenario))


def _trace_program(
    program: list[str] | None, given: dict[str, Any], answer: TraceOutput, limit_bytes: int | None
) -> int:
    """The same of the user's own program.  Where no ``--fits`` is given,
    the limit is what the card leaves to the allocator.
    """
    from measure.cli.dry_run import cards_of, run

    del given["force"]
    cards = cards_of(given)
    card = cards[0]
    from measure.dry_run.program_report import to_text as what_was_assumed

    ran = run(program or (), cards, answer)
    title = f"{' '.join(program or ()) or answer.check}"[:80] + f", {card.id}"
    found = Recorded(ran.cards, ran.assumed, title, words=lambda all_of: what_was_assumed(ran, all_of))
    answer = replace(answer, allocator=answer.allocator or ran.allocator)
    visible_bytes = card.visible_memory_bytes
    room = None if visible_bytes is None else room_on(visible_bytes, cards[1])
    return _say(answer, found, limit_bytes or room)


def _need_of(summary: Summary) -> tuple[bool, bool, int]:
    """What decides which of the cards of one process the answer is about."""
    code = summary.exit_code
    return code == ExitCode.GPU_MEMORY_SHORT, code == ExitCode.UNCERTAIN, summary.reserved_peak_bytes


def _described(fields: Mapping[str, Any], where: str) -> ModelSpec:
    """A model that the catalog does not have: by formulas, or by its modules where there are none."""
    try:
        return model_from_config(fields, where)
    except UnknownArchitectureError as error:
        need("measure", *_LIBRARIES)
        quiet()
        from measure.trace.foreign import described_by_modules

        model = in_checkpoint_dtype(described_by_modules(fields, error).model, fields)
    write_remark(f"the prediction has no reader for '{model.architecture}'; its modules are traced")
    return model


def _write_files(answer: TraceOutput, title: str, events: list[AllocEvent], summary: Summary) -> None:
    if answer.plot is not None:
        from planner.allocator.documents.picture import PICTURE_MOMENTS, draw_timeline

        draw_timeline(answer.plot, title, timeline_over(events, summary, PICTURE_MOMENTS))
    if answer.export is not None:
        from planner.allocator.documents.export import write_snapshot

        write_snapshot(answer.export, events, answer.allocator or "")
    if answer.events is not None:
        write_jsonl(answer.events, events)
