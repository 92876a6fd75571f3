"""The callback for Trainers, in real ones on the CPU, and its lines about an answer."""

from __future__ import annotations

import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.domain.uncertainty.interval import Interval
from tests.extras import import_or_skip
from tests.planner.trainers import real_model, real_trainer

import_or_skip("transformers")

from planner.integrations.transformers import Measured, comparison, expectation


def answer() -> planner.Answer:
    """Of a small job that fits a card of 24 GiB."""
    return planner.estimate(model="smollm2-135m", method="lora", gpu="4090", seq=64, calibration="none")


def test_what_is_expected_leaves_out_what_nobody_knows() -> None:
    """A limit, an interval and a time, each where there is one."""
    said, one = answer(), 2**30
    peak = replace(said.peak, reserved_bytes=2 * one, reserved_interval=None)
    said = replace(said, needs_bytes=one, limit_bytes=None, peak=peak, step=None, verdict="no_verdict")
    assert expectation(said) == "no verdict: needs 1.00 GiB limit unknown, peak 2.00 GiB reserved"
    limited = replace(said, limit_bytes=24 * one, verdict="fits")
    assert expectation(limited) == "fits: needs 1.00 GiB of 24.00 GiB per GPU, peak 2.00 GiB reserved"
    sure = Interval(one, 3 * one)
    timed = replace(limited, peak=replace(peak, reserved_interval=sure), step=answer().step)
    assert "2.00 GiB reserved (1.00 GiB to 3.00 GiB); about " in expectation(timed)


def test_a_prediction_is_compared_with_what_was_seen() -> None:
    """A quarter too much, a half too little; nothing measured is no division by zero."""
    peak = replace(answer().peak, reserved_bytes=5 * 2**30, allocated_bytes=2**30)
    said = replace(answer(), peak=peak)
    line = comparison(said, Measured(allocated_bytes=2 * 2**30, reserved_bytes=4 * 2**30))
    assert line == (
        "peak reserved 5.00 GiB predicted, 4.00 GiB measured (+25.0%); "
        "allocated 1.00 GiB predicted, 2.00 GiB measured (-50.0%)"
    )
    assert "0.00 GiB measured" in comparison(said, Measured(0, 0))


def test_the_callback_says_what_it_expects_and_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first step the expected peak is said, after the last the measured one."""
    said: list[str] = []
    callback = planner.PrecheckCallback(gpu="4090", seq=16, say=said.append)
    real_trainer(real_model(), tmp_path, callback, max_steps=1).train()
    assert callback.answer is not None
    assert {f"planner: note: {warning}" for warning in callback.answer.warnings} <= set(said)
    assert callback.answer.fits
    assert callback.answer.peak.allocated_bytes > 0
    assert callback.measured is None
    assert "fits" in said[0]
    assert "no peak was measured" in said[-1]
    cuda = import_or_skip("torch").cuda
    for name, value in (
        ("is_available", True),
        ("max_memory_allocated", 2**30),
        ("max_memory_reserved", 2**31),
    ):
        monkeypatch.setattr(cuda, name, lambda value=value: value)
    callback.on_train_end(None, types.SimpleNamespace(is_world_process_zero=True), None)
    assert callback.measured == planner.Measured(2**30, 2**31)
    assert "2.00 GiB measured" in said[-1]


def test_the_callback_stops_a_job_that_does_not_fit(tmp_path: Path) -> None:
    """Short of memory: no step is made, or with ``warn`` it is said and training goes on."""
    wide = {"hidden_size": 512, "intermediate_size": 1024, "vocab_size": 8192}
    said: list[str] = []
    small: dict[str, Any] = {"gpu": "4090", "gpu_memory": 64 * 2**20, "seq": 16, "say": said.append}
    trainer = real_trainer(real_model(**wide), tmp_path, planner.PrecheckCallback(**small), max_steps=1)
    with pytest.raises(planner.DoesNotFit) as raised:
        trainer.train()
    assert trainer.state.global_step == 0
    said_of: Any = raised.value.answer
    assert said_of.verdict == "does_not_fit"
    warned = planner.PrecheckCallback(on_short="warn", **small)
    trainer = real_trainer(real_model(**wide), tmp_path, warned, max_steps=1)
    trainer.train()
    assert trainer.state.global_step == 1
    assert any("warning" in line for line in said)
    with pytest.raises(planner.UsageError, match="on_short"):
        planner.PrecheckCallback(on_short="never")  # type: ignore[arg-type]


def test_the_callback_does_not_stop_what_it_does_not_know(tmp_path: Path) -> None:
    """Without a formula there is no answer, and training goes on."""
    said: list[str] = []
    callback = planner.PrecheckCallback(gpu="4090", seq=16, say=said.append)
    trainer = real_trainer(real_model(), tmp_path, callback, max_steps=1, label_smoothing_factor=0.1)
    trainer.train()
    assert trainer.state.global_step == 1
    assert callback.answer is None
    assert "no prediction" in said[0]
