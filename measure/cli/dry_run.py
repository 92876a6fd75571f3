"""``measure trace -- PROGRAM``: the user's own program on a pretended card."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measure.cli.job_flags import ASSUMED_GPU, need
from measure.output import write_foreign, write_remark
from planner.catalog.gpus import load_gpu
from planner.domain.hardware import GpuSpec
from planner.errors import NotModelledError, PlannerError, UsageError
from planner.intake.given.fields import split_count

if TYPE_CHECKING:
    from measure.dry_run.cuda.card import CardFacts
    from measure.dry_run.messages import ProgramJob
    from measure.dry_run.parent import DryRun
    from measure.dry_run.tool_jobs import ToolJob
    from measure.trace.assumed import Assumed

# What a program can be joined with; all else the program says itself.
_TAKEN = ("gpu",)
# Where nobody says how many a card has: what torch calls their number decides about tiles, not about sizes.
_ASSUMED_MULTIPROCESSORS = 108


def cards_of(given: dict[str, Any]) -> tuple[GpuSpec, int]:
    """The card that was named with their number, or an A100 with a remark.

    Raises:
        UsageError: flags that a program says itself, or no CUDA card.
    """
    left = sorted(name for name, value in given.items() if value is not None and name not in _TAKEN)
    if left:
        way_out = "give a card by --gpu, and --fits SIZE" if left[0] == "gpu_memory" else "leave it out"
        raise UsageError(
            f"--{left[0].replace('_', '-')} cannot be joined with a program, which describes the job itself; "
            f"{way_out}"
        )
    name, count = split_count(given.get("gpu") or ASSUMED_GPU)
    if given.get("gpu") is None:
        write_remark(f"no --gpu was given: {ASSUMED_GPU} is assumed")
    card = load_gpu(name)
    if not card.is_cuda or card.visible_memory_bytes is None:
        raise UsageError(f"card '{card.id}' is no CUDA card of known size; plan gpus lists them")
    return card, count or 1


def run(command: Sequence[str], cards: tuple[GpuSpec, int], how: Any) -> Any:
    """The dry run of ``command``, or of the file in ``how.check`` by its own tool;
    ``how`` has the flags beside what the job is.

    A tool that finds no tokenizer or data set runs again, on rows as ``--check`` lays them.

    Raises:
        PlannerError: as :func:`measure.dry_run.parent.dry_run`.
    """
    from measure.dry_run.parent import DataNotHereError
    from measure.dry_run.tool_jobs import tool_job

    if how.check is not None:
        return _run(tool_job(Path(how.check), how.lengths, cards[1]), how.check, cards, how)
    try:
        return _run(tuple(map(_from_here, command)), "", cards, how)
    except DataNotHereError as error:
        job = None if how.data else _on_laid_rows(command, cards[1])
        if job is None:
            raise
        write_remark(f"{error}; it runs again on rows of {job.n_tokens:,} tokens, as long as its limit")
        return _run(job, "the command", cards, how)


def run_laid(
    command: tuple[str, ...], files: Mapping[str, str], cards: tuple[GpuSpec, int], how: Any
) -> DryRun:
    """The dry run of a command of our own, with what lies beside it: contents by name.  What libraries say
    meanwhile is shown where it fails alone.

    Raises:
        PlannerError: as :func:`measure.dry_run.parent.dry_run`.
    """
    from measure.dry_run.cuda.compile import compiled_library
    from measure.dry_run.messages import ProgramJob
    from measure.dry_run.parent import dry_run

    library, card = str(compiled_library()), facts_of(*cards)
    said = how.allocator or ""
    job = ProgramJob(library, "", command, card, how.steps, how.timeout_s, said, False, dict(files))
    words = io.StringIO()
    try:
        with contextlib.redirect_stderr(words):
            return dry_run(job)
    except PlannerError:
        write_foreign(words.getvalue())
        raise


def _on_laid_rows(command: Sequence[str], n_cards: int) -> ToolJob | None:
    """A tool's command on rows of full length; ``None`` for a program whose rows are not known."""
    from measure.dry_run.tool_jobs import tool_job_of_command

    try:
        return tool_job_of_command(command, n_cards)
    except PlannerError:
        return None


def _run(what: tuple[str, ...] | ToolJob, origin: str, cards: tuple[GpuSpec, int], how: Any) -> Any:
    """The dry run of a command, or of a tool on rows that stand in for the data of ``origin``."""
    from measure.dry_run.cuda.compile import compiled_library
    from measure.dry_run.messages import ProgramJob
    from measure.dry_run.run_program import check_program
    from measure.trace.assumed import Assumed

    laid, command = (None, what) if isinstance(what, tuple) else (what, what.command)
    check_program(command)
    need("measure", "torch")
    checkpoints = _checkpoints(how.checkpoint or ())
    rows = "" if how.data is None else str(Path(how.data).resolve())
    job = ProgramJob(
        str(compiled_library()), "", command, facts_of(*cards), how.steps, how.timeout_s,
        how.allocator or "", how.trust_remote_code, stands_in=laid is not None or bool(rows), rows=rows,
        checkpoints=checkpoints,
    )  # fmt: skip
    if laid is not None:
        job = replace(job, files=dict(laid.files), variables=dict(laid.variables), evaluates=laid.evaluates)
    ran, invented = _on_rows(job, how.lengths if laid is None else None)
    if laid is not None and ran.most_tokens[1] < laid.n_tokens // 2:
        raise NotModelledError(
            f"the tool made batches of {ran.most_tokens[1]:,} tokens of rows of {laid.n_tokens:,}, "
            "so its own data is needed: give the whole command after --, with --data"
        )
    stood_in = invented if laid is None else _stand_ins(laid, origin)
    stood_in += tuple(
        Assumed("checkpoint", "no weights, and a tokenizer of words", folder, model)
        for folder, model in checkpoints.items()
    )
    if ran.allocator and not how.allocator:
        said_by, way_out = "the program's variables", "--allocator says others"
        stood_in += (Assumed("settings of torch's allocator", ran.allocator, said_by, way_out),)
    return replace(ran, assumed=(*stood_in, *ran.assumed))


def _on_rows(job: ProgramJob, n_words: int | None) -> tuple[DryRun, tuple[Assumed, ...]]:
    """The dry run of ``job``; with ``n_words``, on invented rows of so many,
    with every column that it asks for.
    """
    from measure.dry_run.invented_rows import FILE, InventedRows
    from measure.dry_run.messages import DATA_SET
    from measure.dry_run.parent import RowsLackError, dry_run
    from measure.trace.assumed import Assumed

    if n_words is None:
        return dry_run(job), ()
    rows = InventedRows(n_words)
    while True:
        given = replace(job, files={FILE: rows.to_jsonl()}, rows=FILE, invented=rows.columns, stands_in=True)
        try:
            ran = dry_run(given)
        except RowsLackError as error:
            rows = rows.with_(error.lacking)
            write_remark(f"the program asks for {error.lacking}; it runs again with them")
        else:
            used = any(each.name == DATA_SET for each in ran.assumed)
            value, note = str(rows), "columns that the program asked for; --data FILE gives others"
            return ran, (Assumed("rows", value, "--lengths", note),) if used else ()


def facts_of(card: GpuSpec, n_cards: int) -> CardFacts:
    """What the program finds of a card."""
    from measure.dry_run.cuda.card import CardFacts

    major, minor = (int(each) for each in card.compute_capability.split("."))
    multiprocessors = card.multiprocessors or _ASSUMED_MULTIPROCESSORS
    return CardFacts(
        f"NVIDIA {card.name}", (major, minor), card.visible_memory_bytes or 0, multiprocessors, n_cards
    )


def _from_here(word: str) -> str:
    """A word of the command line that leads out of what the program has a view of, by its whole path."""
    from measure.dry_run.sandbox import top_of

    flag, equals, path = word.rpartition("=") if word.startswith("-") else ("", "", word)
    top = top_of(Path.cwd())
    leads_out = ".." in Path(path).parts and Path(path).exists() and top not in Path(path).resolve().parents
    return f"{flag}{equals}{Path(path).resolve()}" if leads_out else word


def _checkpoints(given: Sequence[str]) -> dict[str, str]:
    """Models by folder, of texts as ``FOLDER=MODEL``."""
    found = {}
    for each in given:
        folder, _, model = each.partition("=")
        if not folder or not model:
            raise UsageError(f"--checkpoint wants FOLDER=MODEL, not '{each}'")
        if Path(folder).is_absolute() or ".." in Path(folder).parts or Path(folder).exists():
            raise UsageError(f"--checkpoint {folder}: name a folder below this one that is not there yet")
        found[folder] = model
    return found


def _stand_ins(job: ToolJob, file: str) -> tuple[Assumed, ...]:
    """What stands in for the data of a tool's file, in words."""
    from measure.dry_run.tool_jobs import MICRO_STEPS
    from measure.trace.assumed import Assumed

    rows = Assumed(
        "data sets",
        f"rows of {job.n_tokens:,} tokens",
        file,
        "as long as its limit; --check with --lengths says another length",
    )
    noted = [rows]
    if job.left_out:
        noted.append(Assumed("text that it generates while it evaluates", "left out", file, job.left_out))
    if job.n_micro_steps:
        instead = f"over {MICRO_STEPS} micro-batches instead of {job.n_micro_steps}, which repeat the second"
        noted.append(Assumed("gradients", instead, file, "accumulated"))
    return tuple(noted)
