"""A machine of one's own: its records move it, others are refused, and one anchor row helps the rest."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from planner.calibration.anchors import AnchorGain, anchor_gains, chosen_pull, gains_under, machines_of
from planner.calibration.fit.calibrate import Fitted, calibrate
from planner.calibration.fit.personal import OWN_PULL, OWN_PULLS, calibrate_machine
from planner.calibration.fit.solver import Pull
from planner.calibration.published import published_dir
from planner.domain.coefficients import Coefficients
from planner.domain.environment import Environment
from planner.errors import UsageError
from planner.intake.request import from_record
from planner.intake.resolve import resolve
from planner.prediction import estimate
from planner.records import read_records
from planner.report.render.layout import Grid
from planner.report.validation.cross_validation import personal_sections
from tests.planner.calibration.simulated import MACHINES, simulated

SLOW = replace(Coefficients(), matmul_efficiency=0.5, matmul_efficiency_half_rate=0.6, memory_efficiency=0.5)


@cache
def base() -> Fitted:
    """A calibration of three machines that follow the priors and a slow fourth one."""
    return calibrate(simulated(dict.fromkeys(MACHINES, Coefficients()) | {"doc-d": SLOW}))


def test_one_record_corrects_the_others_of_its_machine() -> None:
    """From one anchor row the step times of all other recipes on the machine are much closer."""
    records = simulated({"doc-d": SLOW}, noise=0.0)
    shipped = base().without["doc-d"]
    own = calibrate_machine([records[3]], "my-lab", shipped).calibration

    def error(index: int, *, personal: bool) -> float:
        scenario = resolve(from_record(records[index]), force=True)
        time = estimate(scenario, (own if personal else shipped).coefficients_for(scenario)).time
        assert time is not None
        return abs(float(time.step_s) / (records[index].step_time_s or 0.0) - 1)

    others = [index for index in range(len(records)) if index != 3]
    assert sum(error(i, personal=True) for i in others) < 0.6 * sum(error(i, personal=False) for i in others)


def test_what_ships_and_what_holds_here_stand_side_by_side() -> None:
    """The table's values are the coefficients that predictions use, before and with the machine's own offsets."""
    records = simulated({"doc-d": SLOW}, noise=0.0)
    shipped = base().without["doc-d"]
    own = calibrate_machine(records, "my-lab", shipped)
    scenario = resolve(from_record(records[0]), force=True)
    rows = {
        row.cells[0]: row.cells for block in personal_sections(own)[0].blocks if isinstance(block, Grid) for row in block.rows
    }
    for column, calibration in ((1, shipped), (2, own.calibration)):
        value = calibration.coefficients_for(scenario).memory_efficiency
        assert float(rows["memory_efficiency"][column]) == pytest.approx(value, rel=0.01)


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
    """A group's own gain has no say in how hard its machine is held, with or without offload; of one other, the default."""
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
    """Groups differ by more than pulls do: less than a standard error of the difference leaves the prior's own strength."""
    gains = {
        OWN_PULL: [AnchorGain("a", 3, 0.3, 0.10), AnchorGain("b", 3, 0.3, 0.20), AnchorGain("c", 3, 0.3, 0.1)],
        Pull(machine=9.0): [AnchorGain("a", 3, 0.3, 0.13), AnchorGain("b", 3, 0.3, 0.12), AnchorGain("c", 3, 0.3, 0.11)],
    }
    assert chosen_pull(gains) == OWN_PULL


def test_nothing_of_the_judged_group_leads_to_its_anchors() -> None:
    """What a pull is chosen on for one group does not change with that group's own rows, however wrong they are."""
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
    gains = {pull: gains_under(pull, machines, lambda group: fitted.without[group].offsets) for pull in OWN_PULLS}
    assert chosen_pull(gains) == OWN_PULL


def test_as_many_records_of_one_machine_as_of_another_are_refused() -> None:
    """Nobody can say which machine is meant; the message names both cards."""
    records = simulated({"doc-a": Coefficients(), "doc-d": SLOW})
    with pytest.raises(UsageError, match=r"a100-80-sxm as of rtx4090.*each under a name of its own"):
        calibrate_machine(records, "my-lab", base().calibration)


def test_records_of_another_machine_are_left_out_by_name() -> None:
    """The machine of most records is calibrated; each record of another is listed with both machines."""
    mine, other = simulated({"doc-d": SLOW})[:4], simulated({"doc-a": Coefficients()})[:2]
    own = calibrate_machine([*other, *mine], "my-lab", base().calibration)
    assert own.calibration.environment == Environment(gpu="rtx4090", stacks=("hf-trainer@5",))
    assert [(each.record_id, each.rule) for each in own.left_out] == [(each.id, "other_machine") for each in other]
    assert "a100-80-sxm, the calibration is of rtx4090" in own.left_out[0].reason


@pytest.mark.parametrize("field", ["machine", "driver"])
def test_machines_are_told_apart_by_what_measure_attached(field: str) -> None:
    """One card in two machines, or under two driver families: two environments; a record that does not say agrees with both."""
    records = simulated({"doc-d": SLOW})[:5]
    attachments = {each.id: attached() for each in records[:3]}
    attachments[records[3].id] = attached(**{field: "590.1" if field == "driver" else "other"})
    own = calibrate_machine(records, "my-lab", base().calibration, attachments)
    assert [each.record_id for each in own.left_out] == [records[3].id]
    assert own.calibration.environment == Environment("rtx4090", ("hf-trainer@5",), machine="lab-1", drivers=("570",))


def attached(machine: str = "lab-1", driver: str = "570.86.15") -> dict[str, object]:
    """What ``measure`` attaches to a record of its environment."""
    gpu = {"name": "RTX 4090", "uuid_hash": "x", "memory_bytes": 1, "driver": driver, "cuda_driver": "12.8"}
    facts = {"machine": machine, "os": "Linux", "python": "3.11", "cpu": "x", "host_memory_bytes": 1, "gpus": (gpu,)}
    return {"environment": facts}


def test_nothing_usable_is_refused_with_the_reason() -> None:
    """Records of a CPU run say nothing about a GPU."""
    records = [replace(each, gpu="cpu") for each in simulated({"doc-d": SLOW})[:2]]
    with pytest.raises(UsageError, match="cpu_record"):
        calibrate_machine(records, "my-lab", base().calibration)
