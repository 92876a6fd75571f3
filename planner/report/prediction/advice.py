"""What would change the answer: levers, other software stacks, and what was assumed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from planner.domain.prediction import Verdict
from planner.report.prediction.subject import Subject
from planner.report.prediction.verdict import VERDICTS
from planner.report.render.layout import Block, Choices, Column, FlagChoice, Grid, Note, Row, Section
from planner.report.render.numbers import chance_text, gib
from planner.searching.levers import Lever
from planner.searching.stack_needs import StackNeed
from planner.searching.unsaid import Unsaid
from planner.units import GIB, NO_DECIMALS_GIB

# A ratio this close to 1 is not told apart from it.
_SAME = 0.02
# What two decimals of a GiB do not show.
_SAME_BYTES = 0.005 * GIB


def lever_section(subject: Subject) -> Section:
    """Every lever that was found."""
    if subject.levers is None:
        return Section("", ())
    if not subject.levers:
        return Section(
            "What would save memory", (Note("No change of this job that is modelled saves memory."),)
        )
    blocks: tuple[Block, ...] = (lever_choices("", subject.levers, subject.prediction.verdict),)
    if subject.prediction.verdict != "fits" and not any(each.fits for each in subject.levers):
        blocks += (Note("None of these is enough, nor any pair of them that was tried.", "warn"),)
    return Section("What would save memory", blocks)


def lever_choices(title: str, levers: Sequence[Lever], now: Verdict) -> Choices:
    """Levers with what they save, what they cost, and whether the job then fits."""
    host = now == "host_memory_short"
    columns = ("saves RAM" if host else "saves", "costs")
    rows = tuple(_lever(lever, lever.saves_of(now)) for lever in levers)
    return _with_verdicts(Choices(title, columns, rows, texts=not title), now, levers)


def _with_verdicts(choices: Choices, now: Verdict, changes: Sequence[Lever | Unsaid]) -> Choices:
    """The verdict after each change, unless none of them alters that of the job."""
    if all(each.verdict == now for each in changes):
        return choices
    rows = tuple(
        replace(row, facts=(*row.facts, VERDICTS[each.verdict][0].lower()))
        for row, each in zip(choices.rows, changes, strict=True)
    )
    return replace(choices, columns=(*choices.columns, "then"), rows=rows)


def _lever(lever: Lever, saves_bytes: int) -> FlagChoice:
    saves = f"{gib(saves_bytes)} GiB" if saves_bytes else "-"
    return FlagChoice(
        lever.flags_text,
        _meaning(lever),
        (saves, _cost(lever)),
        "good" if lever.fits else "plain",
    )


def _meaning(lever: Lever) -> str:
    """What the flags mean, unless they say it in the same words."""
    said, meant = (set(re.findall(r"\w+", text.lower())) for text in (lever.flags_text, lever.description))
    return "" if meant <= said else lever.description


def _cost(lever: Lever) -> str:
    """In few words, because flags stand beside them: ``free``, ``step x 1.23``, ``67 GiB RAM``,
    ``other cards``, ``more nodes``, ``changes training``, ``time`` where nobody knows how much.
    """
    trains_otherwise = lever.kind == "training"
    parts = ["changes training"] if trains_otherwise else [lever.hardware_text] if lever.hardware_text else []
    parts += [f"{lever.host_bytes / GIB:,.0f} GiB RAM"] if lever.host_bytes >= GIB else []
    if trains_otherwise:
        return ", ".join(parts)
    if lever.kind == "money" and not parts:
        parts.append("<1 GiB RAM")
    ratio, usd = lever.step_time_ratio, lever.usd_ratio
    if usd is not None and abs(usd - 1) >= _SAME:
        parts.append(f"USD x {usd:.2f}")
    elif ratio is not None and abs(ratio - 1) >= _SAME:
        parts.append(f"step x {ratio:.2f}")
    return ", ".join(parts) or lever.nothing_more


def stack_section(subject: Subject) -> Section:
    """What the common stacks need, with what their bare defaults lack."""
    if not subject.stacks:
        return Section("", ())
    columns = (
        Column("--stack"),
        Column("needs GiB", "right"),
        Column("uses GiB", "right"),
        Column("then"),
        Column(""),
    )
    rows = []
    for each in subject.stacks:
        lacks = f"off by default: {', '.join(each.lacks)}" if each.lacks else ""
        # The chance is that of the GPU's memory, which host RAM is no part of.
        known = None if each.verdict == "host_memory_short" else each.fits_probability
        chance = "" if known is None else f", chance {chance_text(known)}"
        then = f"{VERDICTS[each.verdict][0].lower()}{chance}"
        rows.append(Row((each.stack, gib(each.need_bytes), gib(each.peak_bytes), then, lacks)))
    return Section("By software stack", (Grid(columns, tuple(rows)),))


def stacks_text(stacks: Sequence[StackNeed], *, with_lacks: bool) -> str:
    """What the common stacks need, and what people usually set that their bare defaults lack."""
    needs = ", ".join(f"{each.stack} {_one_decimal(each.need_bytes)}" for each in stacks)
    lacks = "; ".join(f"{', '.join(each.lacks)} in {each.stack}" for each in stacks if each.lacks)
    off = f". Often switched on, but off by default: {lacks}" if lacks and with_lacks else ""
    return f"Needs in GiB by software (--stack), with its defaults: {needs}{off}"


def _one_decimal(n_bytes: int) -> str:
    size = n_bytes / GIB
    return f"{size:,.{0 if size >= NO_DECIMALS_GIB else 1}f}"


def sensitivity_section(subject: Subject) -> Section:
    """Assumptions that move the answer, each with what else people run."""
    if not subject.unsaid:
        return Section("", ())
    choices = assumption_choices("", subject.unsaid, subject.prediction.verdict)
    return Section("Assumptions that move the answer most", (choices,))


def assumption_choices(title: str, moving: Sequence[Unsaid], now: Verdict) -> Choices:
    """Assumptions with the flag that says otherwise, and the answer then."""
    rows = []
    for each in moving:
        moved = f"{'-' if each.moves_bytes < 0 else '+'}{gib(abs(each.moves_bytes))} GiB"
        moved = moved if abs(each.moves_bytes) >= _SAME_BYTES else "same"
        speed = "" if each.speed_ratio is None else f"x {each.speed_ratio:.2f}"
        rows.append(FlagChoice(each.flags, f"instead of {each.setting}", (moved, speed)))
    choices = Choices(title, ("memory", "tokens/s"), tuple(rows), texts=not title)
    return _with_verdicts(choices, now, moving)
