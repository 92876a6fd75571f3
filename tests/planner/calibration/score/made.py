"""A record and a prediction made by hand, for comparisons between them."""

from __future__ import annotations

from planner.domain.prediction import HostPrediction, MemoryPrediction, PhasePeak, Prediction, TimePrediction
from planner.domain.run_record import RunRecord
from planner.units import GIB

RECORD = RunRecord(
    id="r1",
    source="s",
    source_group="g",
    model="llama-2-7b",
    gpu="rtx4090",
    method="qlora",
    seq_len=512,
    outcome="ok",
)


PHASES = (
    PhasePeak("load", 10 * GIB, 11 * GIB, 12 * GIB),
    PhasePeak("adapters", 8 * GIB, 9 * GIB, 10 * GIB),
    PhasePeak("forward", 14 * GIB, 16 * GIB, 17 * GIB),
    PhasePeak("backward", 20 * GIB, 23 * GIB, 25 * GIB),
)


MEMORY = MemoryPrediction(
    terms=(),
    phases=PHASES,
    limiting_phase="backward",
    allocated_peak_bytes=20 * GIB,
    reserved_peak_bytes=22 * GIB,
    driver_peak_bytes=24 * GIB,
    uncapped_driver_bytes=25 * GIB,
    must_have_bytes=22 * GIB,
    state_bytes=6 * GIB,
    limit_bytes=24 * GIB,
)


TIME = TimePrediction(
    terms=(),
    step_s=2.0,
    samples_per_s=4.0,
    tokens_per_s=2048.0,
    padded_tokens_per_s=4096.0,
    model_flop_per_step=1.0,
    mfu=None,
    run_time_s=250.0,
    cost_usd=None,
)


HOST = HostPrediction((), 10 * GIB, 40 * GIB, 9 * GIB, 24 * GIB, 8 * GIB, 32 * GIB, 40 * GIB, None)


PREDICTION = Prediction(MEMORY, HOST, TIME, "fits", "", None, "uncalibrated")
