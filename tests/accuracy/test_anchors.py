"""What one anchor row does for the rest of its machine,
and how the pull of a machine is chosen without the judged group.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.calibration.fit.calibrate import calibrate
from planner.calibration.fit.personal import OWN_PULL, OWN_PULLS
from planner.calibration.fit.solver import Pull
from planner.domain.uncertainty.coefficients import Coefficients
from planner.records import read_records
from tests.accuracy.anchors import AnchorGain, anchor_gains, chosen_pull, gains_under, machines_of
from tests.accuracy.published import published_dir
from tests.planner.calibration.simulated import MACHINES, simulated

SLOW = replace(Coefficients(), matmul_efficiency=0.5, matmul_efficiency_half_rate=0.6, memory_efficiency=0.5)


def test_the_gain_of_an_anchor_is_measured() -> None:
    """Where some machines are slow, an anchor row helps on each of them; the anchor itself is not scored."""
    records = simulated(dict.fromkeys(MACHINES, Coefficients()) | {"doc-b": SLOW, "doc-d": SLOW})
    gains = {gain.group: gain for gain in anchor_gains(calibrate(records), records)}
    assert gains["doc-d"].after < 0.6 * gains["doc-d"].before
    assert gains["doc-d"].n_rows == 12


def test_ambiguous_rows_neither_anchor_nor_count() -> None:
    """A row whose configuration is a guess says nothing of a machine, and its error nothing of the anchor."""
    records = simulated(dict.fromkeys(MACHINES, Coefficients()) | {"doc-d": SLOW})
    guessed = [replace(each, grade="C") if each.source_group == "doc-a" else each for each in records]
    assert {each.group for each in machines_of(guessed)} == set(MACHINES) - {"doc-a"}


def test_the_pull_is_chosen_on_other_groups() -> None:
    """A group's own gain has no say in how hard its machine is held, with or without offload;
    of one other, the default.
    """
    soft, hard = Pull(machine=1.0), Pull(machine=9.0)
    gains = {
        soft: [
            AnchorGain("a", 3, 0.3, 0.01),
            AnchorGain("a (offload)", 3, 0.3, 0.01),
            AnchorGain("b", 3, 0.3, 0.2),
            AnchorGain("c", 3, 0.3, 0.2),
        ],
        hard: [
            AnchorGain("a", 3, 0.3, 0.5),
            AnchorGain("a (offload)", 3, 0.3, 0.5),
            AnchorGain("b", 3, 0.3, 0.1),
            AnchorGain("c", 3, 0.3, 0.1),
        ],
    }
    assert chosen_pull(gains, "a") == hard
    assert chosen_pull(gains, "b") == soft
    assert chosen_pull({pull: each[:3] for pull, each in gains.items()}, "a") == OWN_PULL


def test_a_pull_that_is_hardly_better_is_not_taken() -> None:
    """Groups differ by more than pulls do:
    less than a standard error of the difference leaves the prior's own strength.
    """
    gains = {
        OWN_PULL: [
            AnchorGain("a", 3, 0.3, 0.10),
            AnchorGain("b", 3, 0.3, 0.20),
            AnchorGain("c", 3, 0.3, 0.1),
        ],
        Pull(machine=9.0): [
            AnchorGain("a", 3, 0.3, 0.13),
            AnchorGain("b", 3, 0.3, 0.12),
            AnchorGain("c", 3, 0.3, 0.11),
        ],
    }
    assert chosen_pull(gains) == OWN_PULL


def test_nothing_of_the_judged_group_leads_to_its_anchors() -> None:
    """What a pull is chosen on for one group does not change with that group's own rows,
    however wrong they are.
    """
    honest = simulated(dict.fromkeys(MACHINES, Coefficients()))
    wrong = [replace(each, step_time_s=9.0) if each.source_group == "doc-d" else each for each in honest]
    found = [gains_under(OWN_PULL, machines_of(records), lambda _: ()) for records in (honest, wrong)]
    others = [[gain for gain in gains if gain.group != "doc-d"] for gains in found]
    assert others[0] == others[1]
    assert found[0] != found[1]


@pytest.mark.slow
def test_the_shipped_pull_is_what_the_published_rows_choose() -> None:
    """Personal calibrations hold a machine's effects as hard as serves the published documents best."""
    records = read_records([published_dir() / "*.csv"]).records
    fitted, machines = calibrate(records), machines_of(records)
    gains = {
        pull: gains_under(pull, machines, lambda group: fitted.without[group].offsets) for pull in OWN_PULLS
    }
    assert chosen_pull(gains) == OWN_PULL
