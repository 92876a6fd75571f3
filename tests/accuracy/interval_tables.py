"""Generated tables of ``data/accuracy.json`` about intervals, P(fits) and what fitted numbers are worth."""

from __future__ import annotations

from tests.accuracy.stored import stored_accuracy


def kinds_table() -> str:
    """How often 90 % intervals hold readings of each kind of job that was left out whole."""
    lines = [
        "| left out | kind | of | sources | readings | inside | median half-width |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {each['dimension']} | `{each['kind']}` | {each['of']} | {each['sources']} | {each['n']} "
        f"| {100 * each['inside']:.0f} % | {100 * each['half_width']:.0f} % |"
        for each in stored_accuracy()["kinds"]
    ]
    return "\n".join(lines) + "\n"


def reliability_table() -> str:
    """How many jobs ran, beside what P(fits) promised."""
    lines = ["| P(fits) | rows | promised | ran | one standard error |", "|---|--:|--:|--:|--:|"]
    lines += [
        f"| {100 * each['low']:.0f} to {100 * each['high']:.0f} % | {each['n']} | "
        f"{100 * each['promised']:.1f} % | {100 * each['ran']:.1f} % | {100 * each['error']:.1f} % |"
        for each in stored_accuracy()["reliability"]
    ]
    return "\n".join(lines) + "\n"


def worth_table() -> str:
    """Errors on left-out sources without and with each coefficient that a fit moves."""
    lines = ["| coefficient | without it | with it | worth | one standard error |", "|---|--:|--:|--:|--:|"]
    for name, each in stored_accuracy()["worth"].items():
        gain = each["without"] - each["with"]
        lines.append(
            f"| `{name}` | {100 * each['without']:.2f} % | {100 * each['with']:.2f} % "
            f"| {100 * gain:.2f} | {100 * each['error']:.2f} |"
        )
    return "\n".join(lines) + "\n"
