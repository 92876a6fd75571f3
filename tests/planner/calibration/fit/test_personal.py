"""A machine of one's own: its records move it, others are refused, and one anchor row helps the rest."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from planner.calibration.fit.calibrate import Fitted, calibrate
from planner.calibration.fit.personal import calibrate_machine
from planner.domain.uncertainty.calibration import Environment
from planner.domain.uncertainty.coefficients import Coefficients
from planner.domain.uncertainty.hierarchy import FREEDOM, moved
from planner.errors import UsageError
from planner.intake.given.request import from_record
from planner.intake.resolve import resolve
from planner.predicting import estimate
from tests.planner.calibration.simulated import MACHINES, simulated

SLOW = replace(Coefficients(), matmul_efficiency=0.5, matmul_efficiency_half_rate=0.6, memory_efficiency=0.5)


@cache
def base() -> Fitted:
    """A calibration of three machines that follow the priors and a slow fourth one."""
    return calibrate(simulated(dict.fromkeys(MACHINES, Coefficients()) | {"doc-d": SLOW}), free=FREEDOM)


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


def test_what_ships_is_what_predictions_use_without_the_machine() -> None:
    """For the job of the first record."""
    records = simulated({"doc-d": SLOW}, noise=0.0)
    shipped = base().without["doc-d"]
    own = calibrate_machine(records, "my-lab", shipped)
    scenario = resolve(from_record(records[0]), force=True)
    value = moved("memory_efficiency", own.shipped["memory_efficiency"])
    assert value == pytest.approx(shipped.coefficients_for(scenario).memory_efficiency)


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
    assert [(each.record_id, each.rule) for each in own.left_out] == [
        (each.id, "other_machine") for each in other
    ]
    assert "a100-80-sxm, the calibration is of rtx4090" in own.left_out[0].reason


@pytest.mark.parametrize("field", ["machine", "driver"])
def test_machines_are_told_apart_by_what_measure_attached(field: str) -> None:
    """One card in two machines, or under two driver families: two environments;
    a record that does not say agrees with both.
    """
    records = simulated({"doc-d": SLOW})[:5]
    attachments = {each.id: attached() for each in records[:3]}
    attachments[records[3].id] = attached(**{field: "590.1" if field == "driver" else "other"})
    own = calibrate_machine(records, "my-lab", base().calibration, attachments)
    assert [each.record_id for each in own.left_out] == [records[3].id]
    assert own.calibration.environment == Environment(
        "rtx4090", ("hf-trainer@5",), machine="lab-1", drivers=("570",)
    )


def attached(machine: str = "lab-1", driver: str = "570.86.15") -> dict[str, object]:
    """What ``measure`` attaches to a record of its environment."""
    gpu = {"name": "RTX 4090", "uuid_hash": "x", "memory_bytes": 1, "driver": driver, "cuda_driver": "12.8"}
    facts = {
        "machine": machine,
        "os": "Linux",
        "python": "3.11",
        "cpu": "x",
        "host_memory_bytes": 1,
        "gpus": (gpu,),
    }
    return {"environment": facts}


def test_nothing_usable_is_refused_with_the_reason() -> None:
    """Records of a CPU run say nothing about a GPU."""
    records = [replace(each, gpu="cpu") for each in simulated({"doc-d": SLOW})[:2]]
    with pytest.raises(UsageError, match="cpu_record"):
        calibrate_machine(records, "my-lab", base().calibration)
