"""The first answer: what decides, what it costs, what to change and what it rests on,
within the rows of a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rich.console import Console

from planner.domain.prediction import Prediction
from planner.domain.recipes.job_line import short_job_line
from planner.domain.term import PHASE_WORDS, TermName
from planner.report.prediction.advice import assumption_choices, lever_choices, stacks_text
from planner.report.prediction.sections import asks_for_run, data_notes, run_notes, step_note
from planner.report.prediction.subject import Subject, terms_at_peak
from planner.report.prediction.verdict import doubts, failure_notes, uses_text, verdict_note
from planner.report.render.human import to_text
from planner.report.render.layout import Block, Choices, Note, Section
from planner.report.render.numbers import gib
from planner.searching.levers import Lever
from planner.searching.moves import CHEAP

MAX_LINES = 22
"""Lines of the first answer: on a terminal of 24 rows the command and the next prompt stay visible."""
N_PARTS = 5
N_LEVERS = 4
N_ASSUMPTIONS = 3
N_WARNINGS = 3
# Terms of one name are parts of the same thing.
_PARTS: dict[TermName, str] = {
    "weights": "weights",
    "quantization_constants": "weights",
    "adapters": "LoRA adapters",
    "master_weights": "fp32 master weights",
    "autocast_copies": "16-bit weight copies",
    "gradients": "gradients",
    "gradient_buckets": "gradients",
    "optimizer_states": "optimizer states",
    "optimizer_temporaries": "optimizer states",
    "paged_optimizer_states": "optimizer states",
    "saved_activations": "activations",
    "block_recompute": "activations",
    "logits_and_loss": "logits and loss",
    "kv_cache": "KV cache of generation",
    "vllm_awake": "vLLM while it generates",
    "dequantization": "dequantized weights",
    "gathered_parameters": "gathered parameters",
    "other_temporaries": "temporary buffers",
    "allocator_slack": "caching allocator",
    "context": "CUDA context",
    "nccl": "NCCL buffers",
    "vllm_engine": "vLLM beside the training",
}
_REST = "everything else"
# Rules whose warning the first line has already, or that of the step.
_SAID_ABOVE = ("[not-a-cuda-device]", "[gpu-speed-unknown]")
_RULE_ID = re.compile(r" \[[a-z0-9-]+\]$")


@dataclass(frozen=True, slots=True)
class Room:
    """How much of each list is shown, and whether blank lines part the report."""

    levers: int = N_LEVERS
    assumptions: int = N_ASSUMPTIONS
    warnings: int = N_WARNINGS
    stacks: bool = True
    lacks: bool = True
    blanks: bool = True
    whole_warnings: bool = True
    whole_job: bool = True


def rooms() -> Iterator[Room]:
    """From all that may be shown to the least.

    Blank lines go first, then levers, then assumptions, then what warnings say after their first line,
    then what the job's line says after its first, where card and stack may stand, then warnings, then stacks.
    """
    room = Room()
    yield room
    room = replace(room, blanks=False)
    yield room
    yield from (
        replace(room, levers=count, lacks=lacks)
        for lacks in (True, False)
        for count in (N_LEVERS, N_LEVERS - 1, N_LEVERS - 2)
    )
    room = replace(room, levers=2, lacks=False)
    yield from (replace(room, assumptions=count) for count in range(N_ASSUMPTIONS - 1, 0, -1))
    yield from (replace(room, assumptions=0, levers=count) for count in (2, 1))
    room = replace(room, whole_warnings=False)
    yield from (replace(room, assumptions=count) for count in range(N_ASSUMPTIONS, 0, -1))
    room = replace(room, whole_job=False)
    yield from (replace(room, levers=1, assumptions=1, warnings=count) for count in range(N_WARNINGS, 0, -1))
    room = replace(room, assumptions=0, warnings=1)
    yield replace(room, levers=1)
    yield from (replace(room, levers=count, stacks=False) for count in (1, 0))


def short_sections(subject: Subject, room: Room = Room()) -> tuple[Section, ...]:
    """The first answer with as much of each list as there is ``room``; empty parts are left out."""
    if not subject.scenario.hardware.gpu.is_cuda:
        # Terms and levers are those of CUDA's allocator.
        return (Section("", (verdict_note(subject), *_about(subject, room), *_warnings(subject, room))),)
    levers = _levers(subject, room.levers)
    parts: tuple[tuple[Block, ...], ...] = (
        (verdict_note(subject), *_about(subject, room), _parts(subject), *_warnings(subject, room)),
        levers,
        (
            *(_stacks(subject, with_lacks=room.lacks) if room.stacks else ()),
            *_assumptions(subject, room.assumptions, {row.flags for each in levers for row in each.rows}),
        ),
        (_more(subject),),
    )
    if room.blanks:
        return tuple(Section("", part) for part in parts if part)
    return (Section("", tuple(block for part in parts for block in part)),)


def _about(subject: Subject, room: Room) -> Iterator[Note]:
    prediction, scenario = subject.prediction, subject.scenario
    yield Note(uses_text(subject))
    yield from failure_notes(subject)
    host = prediction.host
    if prediction.verdict != "host_memory_short" and host.available_bytes is not None:
        sizes = f"{gib(host.required_per_node_bytes)} of {gib(host.available_bytes)} GiB"
        yield Note(f"Host RAM: a node needs {sizes}.")
    yield Note(short_job_line(scenario), "dim", cut=not room.whole_job)
    yield step_note(prediction)
    if asks_for_run(subject):
        yield from run_notes(subject)
    yield from data_notes(subject)


def _more(subject: Subject) -> Note:
    """How to ask for the rest."""
    price = "" if subject.scenario.run.usd_per_gpu_hour else " and --price"
    run = "" if asks_for_run(subject) else f"; --samples{price} for time and cost of a run"
    named = next((each.value for each in subject.scenario.assumptions if each.name == "calibration"), None)
    if named is not None:
        return Note(f"Calibration: {named}. More: --details", "dim")
    return Note(f"More: --details{run}", "dim")


def _warnings(subject: Subject, room: Room) -> Iterator[Note]:
    texts = [text for text in doubts(subject) if not text.endswith(_SAID_ABOVE)]
    count = room.warnings
    for text in texts[:count]:
        # The rule's id, by which plan rules lists it, is for who reads the details.
        yield Note(f"Warning: {_RULE_ID.sub('', text)}", "warn", cut=not room.whole_warnings)
    if len(texts) > count:
        more = len(texts) - count
        yield Note(f"{more} more warning{'s' if more > 1 else ''}: --details", "warn")


def _parts(subject: Subject) -> Note:
    """What the peak is made of, the largest first."""
    parts = (f"{name} {gib(size)}" for name, size in largest_parts(subject.prediction, N_PARTS))
    phase = subject.prediction.memory.limiting_phase
    # No setting of the step moves a peak that comes before the first one.
    when = f" ({PHASE_WORDS[phase]})" if phase in ("load", "adapters") else ""
    return Note(f"At the peak{when}, in GiB: {', '.join(parts)}")


def _levers(subject: Subject, count: int) -> tuple[Choices, ...]:
    """The cheap levers of a job that fits; of one that does not those that are enough,
    or what saves most where none is.
    """
    found = _one_stack(subject)
    if subject.prediction.verdict in ("fits", "no_verdict"):
        title, chosen = "What would save memory", [each for each in found if each.kind in CHEAP]
    elif enough := [each for each in found if each.fits]:
        title, chosen = "What would make it fit", enough
    else:
        title, verdict = "Nothing that was tried makes it fit; what saves most", subject.prediction.verdict
        chosen = sorted(found, key=lambda each: (-(each.fits_probability or 0.0), -each.saves_of(verdict)))
    # A second one of a kind says less than a change of another kind; other cards are a kind of their own, and
    # so is other software alone, which many cannot take.
    firsts = {(each.kind, each.hardware_text, _is_stack(each)): each for each in reversed(chosen)}.values()
    chosen = [*(each for each in chosen if each in firsts), *(each for each in chosen if each not in firsts)]
    # Whatever is left out, what is shown stands in the order of what it costs.
    shown = [each for each in found if each in chosen[:count]]
    return (lever_choices(title, shown, subject.prediction.verdict),) if shown else ()


def _one_stack(subject: Subject) -> list[Lever]:
    """The levers with the best other stack alone, where a line of the report shows all of them."""
    found = list(subject.levers or ())
    others = [each for each in found if _is_stack(each)]
    best = max(others, key=lambda each: (each.fits, each.saves_bytes), default=None)
    return [each for each in found if each is best or each not in others or not subject.stacks]


def _is_stack(lever: Lever) -> bool:
    return tuple(lever.flags) == ("stack",)


def _stacks(subject: Subject, *, with_lacks: bool) -> Iterator[Note]:
    """What the common stacks would need, where none is given."""
    if subject.stacks:
        yield Note(stacks_text(subject.stacks, with_lacks=with_lacks))


def _assumptions(subject: Subject, count: int, shown: set[str]) -> tuple[Block, ...]:
    """What moves the answer most of what was assumed, but for the flags that are ``shown`` already."""
    # Stacks have a line of their own.
    # Of a job that does not fit, nobody asks what would need still more.
    short = subject.prediction.verdict == "does_not_fit"
    moving = [
        each
        for each in subject.unsaid or ()
        if each.flags not in shown
        and not (subject.stacks and each.flags.startswith("--stack "))
        and not (short and each.moves_bytes >= 0)
    ][:count]
    if not moving:
        return ()
    title = "Assumptions: what if yours differ?"
    return (assumption_choices(title, moving, subject.prediction.verdict),)


def short_text(subject: Subject, console: Console) -> str:
    """The first answer for the stream of ``console``:
    the most that fits into :data:`MAX_LINES` lines of its width.
    """
    texts = (to_text(short_sections(subject, room), console) for room in rooms())
    text = next(texts)
    while text.count("\n") > MAX_LINES and (shorter := next(texts, "")):
        text = shorter
    return text


def largest_parts(prediction: Prediction, count: int) -> tuple[tuple[str, float], ...]:
    """Names and bytes of the ``count`` largest parts of the peak, the largest first,
    and everything else as one; they add up to the peak.
    """
    sizes: dict[str, float] = {}
    for term in terms_at_peak(prediction):
        part = _PARTS[term.name]
        sizes[part] = sizes.get(part, 0.0) + float(term.n_bytes)
    ordered = sorted(sizes.items(), key=lambda each: -each[1])
    # One part that is left over is shown under its own name.
    shown, others = (ordered, []) if len(ordered) == count + 1 else (ordered[:count], ordered[count:])
    rest = [(_REST, sum(size for _, size in others))] if others else []
    return (*shown, *rest)
