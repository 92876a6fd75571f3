"""The prediction and a trace side by side, with round numbers by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from planner.allocator.documents.trace_document import TraceDocument
from planner.api.answering import How, answer_job
from planner.domain.prediction import HostPrediction, MemoryPrediction, PhasePeak, Prediction
from planner.domain.term import HostTerm, Phase, Term, TermName
from planner.report.prediction.to_json import prediction_document
from planner.report.render.layout import Grid
from planner.report.trace.comparison import Pair, beside_sections, put_beside
from planner.report.trace.document import beside_json
from planner.report.trace.requests import Difference, Request
from planner.report.trace.updates import Updates
from planner.units import GIB
from tests.jobs import typed


def term(name: TermName, gib: float, *phases: Phase) -> Term:
    """A term that is there in some phases."""
    return Term(name, name, gib * GIB, "replicated", frozenset(phases), "")


def predicted(*host: HostTerm) -> Prediction:
    """9 GiB in backward, of which 6 are weights; logits are there before."""
    memory = MemoryPrediction(
        terms=(
            term("weights", 6, "loss", "backward"), term("gradients", 3, "backward"),
            term("logits_and_loss", 2, "loss"), term("context", 1, "backward"),
        ),
        phases=(
            PhasePeak("loss", 8 * GIB, 9 * GIB, 10 * GIB), PhasePeak("backward", 9 * GIB, 11 * GIB, 12 * GIB),
            PhasePeak("save", 1, 1, 1),
        ),
        limiting_phase="backward", allocated_peak_bytes=9 * GIB, reserved_peak_bytes=11 * GIB,
        driver_peak_bytes=12 * GIB, uncapped_driver_bytes=12 * GIB, must_have_bytes=9 * GIB,
        state_bytes=6 * GIB, limit_bytes=None,
    )  # fmt: skip
    return Prediction(memory, HostPrediction(host, 0, 0, 0, 0, 0, 0, 0, None), None, "fits", "", None, "u")


def moment(phase: str, gib: int, **terms: int) -> dict[str, Any]:
    """What is held after one event."""
    listed = [{"name": name, "bytes": size * GIB} for name, size in terms.items()]
    return {
        "event": 1, "phase": phase, "operator": "aten::mm", "module": "layers.0", "unused_bytes": 0,
        "allocated_bytes": gib * GIB, "reserved_bytes": gib * GIB, "terms": listed,
    }  # fmt: skip


def traced(processes: int = 1, **host: int) -> TraceDocument:
    """8 GiB in loss, 10 in backward, where 12 are reserved."""
    peak = moment("backward", 10, weights=7, gradients=2, other_temporaries=1)
    phases = [
        {"phase": name, "allocated_bytes": allocated * GIB, "reserved_bytes": reserved * GIB, "at_peak": at}
        for name, allocated, reserved, at in (("loss", 8, 8, moment("loss", 8)), ("backward", 10, 12, peak))
    ]
    terms = [
        {"name": name, "kind": "pinned", "bytes": size * GIB, "requested_bytes": size * GIB}
        for name, size in host.items()
    ]
    return TraceDocument.model_validate({
        "schema": "measure/trace@1", "allocated_peak_bytes": 10 * GIB, "reserved_peak_bytes": 12 * GIB,
        "peak": peak, "reserved_peak": peak, "phases": phases, "timeline": [], "events": 5,
        "host": {
            "processes_per_node": processes, "per_process_bytes": 0, "per_node_bytes": 0,
            "setup_peak_per_process_bytes": 0, "terms": terms,
        },
        "verdict": None, "assumptions": [],
    })  # fmt: skip


def gib_of(pairs: tuple[Pair, ...]) -> list[tuple[str, float, float, float]]:
    """Name, plan, trace and peak in GiB."""
    return [
        (each.name, each.plan_bytes / GIB, each.trace_bytes / GIB, each.peak_bytes / GIB) for each in pairs
    ]


def test_peaks_and_phases_are_measured_by_the_peaks_of_the_trace() -> None:
    """Of what is allocated by 10 GiB, of what is reserved by 12; phases that the trace lacks are left out."""
    beside = put_beside(predicted(), traced())
    assert gib_of(beside.peaks) == [("allocated", 9, 10, 10), ("reserved", 11, 12, 12)]
    assert gib_of(beside.allocated) == [("loss", 8, 8, 10), ("backward", 9, 10, 10)]
    assert gib_of(beside.reserved) == [("loss", 9, 8, 12), ("backward", 11, 12, 12)]
    assert (beside.phase, beside.operator, beside.module) == ("backward", "aten::mm", "layers.0")
    first = beside.peaks[0]
    assert (first.difference_bytes, first.difference_of_peak) == (-GIB, pytest.approx(-0.1))


def test_updates_are_those_that_the_trace_has() -> None:
    """Not the most of all that the program makes."""
    trace = traced()
    phases = [*trace.phases, trace.phases[0].model_copy(update={"phase": "optimizer_step"})]
    beside = put_beside(
        predicted(), trace.model_copy(update={"phases": phases}), updates=Updates(7 * GIB, 10 * GIB)
    )
    assert gib_of(beside.allocated)[-1] == ("optimizer_step", 7, 8, 10)
    assert gib_of(beside.reserved)[-1] == ("optimizer_step", 10, 8, 12)


def test_terms_are_those_of_the_phase_of_the_peak() -> None:
    """Neither logits, which are gone by then, nor the context, which no allocator holds."""
    beside = put_beside(predicted(), traced())
    assert gib_of(beside.terms) == [
        ("weights", 6, 7, 10),
        ("gradients", 3, 2, 10),
        ("other_temporaries", 0, 1, 10),
    ]


def test_host_memory_is_measured_by_the_larger_sum() -> None:
    """Two processes of a node: what every process holds is not traced, and one side may have nothing."""
    host = (HostTerm("offloaded_optimizer", 6 * GIB, ""), HostTerm("process", 4 * GIB, ""))
    beside = put_beside(predicted(*host), traced(processes=2, offloaded_optimizer=5, upload_buffer=3))
    assert gib_of(beside.host) == [
        ("offloaded_optimizer", 6, 5, 8),
        ("upload_buffer", 0, 3, 8),
        ("per process", 6, 8, 8),
        ("per node", 12, 16, 16),
    ]
    assert put_beside(predicted(HostTerm("process", 4 * GIB, "")), traced()).host == ()


def test_tables_show_what_differs() -> None:
    """In GiB with a sign, and as a share of the peak."""
    sections = beside_sections(put_beside(predicted(), traced()))
    grid = sections[0].blocks[0]
    assert isinstance(grid, Grid)
    assert [row.cells for row in grid.rows] == [
        ("allocated", "9.00", "10.00", "-1.00", "-10.0 %"),
        ("reserved", "11.00", "12.00", "-1.00", "-8.3 %"),
    ]
    assert len(sections) == 3


def test_the_first_request_that_differs_has_a_table() -> None:
    """One side may have ended; what is freed behind it is listed from the largest."""
    request = Request(4096, "loss", "head", "lm_head", "mm", [16, 2048])
    beside = put_beside(predicted(), traced(), Difference(1234, request, None))
    section = beside_sections(beside)[-1]
    grid = section.blocks[0]
    assert isinstance(grid, Grid)
    assert [row.cells for row in grid.rows] == [("plan", "loss", "head lm_head", "mm", "4,096", "2,048, 16")]
    assert "number 1,234" in section.title
    alone = replace(beside, difference=Difference(1, replace(request, freed=[]), None))
    last = beside_sections(alone)[-1].blocks[0]
    assert isinstance(last, Grid)
    assert last.rows[0].cells[-1] == "nothing"


def test_the_document_has_rows_and_both_answers() -> None:
    """Each row with its difference."""
    whole = prediction_document(
        answer_job(typed("--model 1b --method lora --gpu 4090 --seq 512"), how=How(advise=False))
    )
    document = json.loads(beside_json(put_beside(predicted(), traced()), whole, traced()))
    assert document["peaks"][0] == {
        "name": "allocated", "plan_bytes": 9 * GIB, "trace_bytes": 10 * GIB, "peak_bytes": 10 * GIB,
        "difference_bytes": -GIB, "difference_of_peak": pytest.approx(-0.1),
    }  # fmt: skip
    assert document["peak"] == {"phase": "backward", "operator": "aten::mm", "module": "layers.0"}
    assert (document["prediction"]["verdict"], document["first_difference"]) == ("fits", None)
    assert document["trace"]["schema"] == "measure/trace@1"
