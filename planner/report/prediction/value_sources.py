"""``--explain``: coefficients and stack switches, each with its value, what settled it and the source."""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.stack import Stack
from planner.domain.uncertainty.coefficients import PRIORS, Coefficients
from planner.domain.uncertainty.prior import Prior
from planner.report.render.layout import Column, Grid, Row, Section
from planner.units import format_bytes

_PAIR = (Column(""), Column(""))


@dataclass(frozen=True, slots=True)
class SettledCoefficient:
    """A coefficient's prior, the value that is used, and what settled that value: the prior's word,
    or the calibration.
    """

    prior: Prior
    value: float
    settled_by: str


def settled_coefficients(coefficients: Coefficients) -> tuple[SettledCoefficient, ...]:
    """Each coefficient with the value that is used."""
    values = ((prior, float(getattr(coefficients, prior.name))) for prior in PRIORS)
    return tuple(
        SettledCoefficient(
            prior, value, prior.settled_by if value == prior.value else f"calibration {coefficients.name}"
        )
        for prior, value in values
    )


def coefficient_section(coefficients: Coefficients) -> Section:
    """Every coefficient with its value, what settled it and the source of its prior."""
    rows = tuple(
        Row(
            (
                each.prior.name,
                f"{_with_unit(each.value, each.prior.unit)}, {each.settled_by}: {each.prior.source}",
            )
        )
        for each in settled_coefficients(coefficients)
    )
    return Section("Coefficients: value, what settled it, source", (Grid(_PAIR, rows),))


def switch_section(stack: Stack) -> Section:
    """Every switch of the stack with its value, what settled it and the source."""
    rows = tuple(
        Row((name, f"{words_of(stack, name)}, {settled_by}: {source}"))
        for name, settled_by, source in stack.settled
    )
    return Section(f"Switches of {stack.id}: value, what settled it, source", (Grid(_PAIR, rows),))


def words_of(stack: Stack, name: str) -> str:
    """The value of a switch, of a default (``defaults.<name>``)
    or of a default over a quantised base (``quantized.<name>``).
    """
    value = stack.facts[name]
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _with_unit(value: float, unit: str) -> str:
    return format_bytes(value) if unit == "bytes" else f"{value:.4g} {unit}"
