"""A callback for the Trainers of Transformers and TRL: the expected peak before the first step,
the measured one after the last.

This is the only module of the package that imports a framework:
the Trainer takes no callbacks but of its own class.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Unpack

from transformers import TrainerCallback

from planner.api.answering import How
from planner.api.answers import Answer
from planner.api.held import held_by_model
from planner.api.keywords import JobFlags, job_flags
from planner.api.precheck import precheck_held
from planner.errors import DoesNotFit, NotModelledError, UsageError, show
from planner.units import format_gib

OnShort = Literal["raise", "warn"]
_OWN = ("on_short", "say", "calibration", "force")
_PREFIX = "planner: "


@dataclass(frozen=True, slots=True)
class Measured:
    """Peaks of this process on its GPU, in bytes: ``torch.cuda.max_memory_allocated`` and
    ``torch.cuda.max_memory_reserved``.
    """

    allocated_bytes: int
    reserved_bytes: int


class PrecheckCallback(TrainerCallback):
    """Says before the first step what is expected, stops a job that does not fit,
    and compares after the last step.

    ::

        trainer = Trainer(model=model, args=args, train_dataset=data, callbacks=[PrecheckCallback(seq=1024)])

    Keywords are those of :func:`planner.precheck`; ``gpu`` is needed where no CUDA device is visible, ``seq``
    where the arguments have no ``max_length``.

    Args:
        on_short: ``raise`` stops a job that is short of memory; ``warn`` says so and goes on.
        say: takes each line that process 0 has to say; left out, standard error.
        calibration: a name, a file or ``none``; left out, the one that fits the job.
        force: turn refused combinations into warnings.
        flags: as for :func:`planner.estimate`; they win over what the Trainer holds.

    Attributes:
        answer: what was predicted; ``None`` before training and where nothing could be.
        measured: the peaks after training; ``None`` without a CUDA device.

    Raises:
        UnknownNameError: no such keyword.
        UsageError: ``on_short`` is neither.
    """

    def __init__(
        self,
        *,
        on_short: OnShort = "raise",
        say: Callable[[str], object] | None = None,
        calibration: str | None = None,
        force: bool = False,
        **flags: Unpack[JobFlags],
    ) -> None:
        if on_short not in ("raise", "warn"):
            raise UsageError(f'on_short must be "raise" or "warn", but it is {show(on_short)}')
        self._flags, self._how = job_flags(flags, _OWN), How(calibration, force)
        self._on_short, self._say = on_short, say or _to_stderr
        self.answer: Answer | None = None
        self.measured: Measured | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Predict, say so, and stop a job that is short of memory.

        Raises:
            DoesNotFit: memory is short and ``on_short`` is ``raise``.
            UsageError: something is missing or cannot be used.
        """
        del control
        self.answer = self.measured = None
        dataset = getattr(kwargs.get("train_dataloader"), "dataset", None)
        try:
            self.answer = precheck_held(
                held_by_model(args, kwargs.get("model"), dataset), self._flags, self._how
            )
        except NotModelledError as error:
            self._tell(state, f"no prediction: {error}")
            return
        for line in (expectation(self.answer), *(f"note: {each}" for each in self.answer.warnings)):
            self._tell(state, line)
        try:
            self.answer.raise_if_short()
        except DoesNotFit as error:
            if self._on_short == "raise":
                raise
            self._tell(state, f"warning: {error}")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Compare the predicted peak with the one that this process has seen."""
        del args, control, kwargs
        if self.answer is None:
            return
        self.measured = _measured()
        if self.measured is None:
            self._tell(state, "no CUDA device was used, so no peak was measured")
            return
        self._tell(state, comparison(self.answer, self.measured))

    def _tell(self, state: Any, line: str) -> None:
        if getattr(state, "is_world_process_zero", True):
            self._say(f"{_PREFIX}{line}")


def expectation(answer: Answer) -> str:
    """What is expected, in one line."""
    parts = [f"{answer.verdict.replace('_', ' ')}: needs {format_gib(answer.needs_bytes)}"]
    parts.append(
        "limit unknown" if answer.limit_bytes is None else f"of {format_gib(answer.limit_bytes)} per GPU"
    )
    line = " ".join(parts) + f", peak {format_gib(answer.peak.reserved_bytes)} reserved"
    if answer.peak.reserved_interval is not None:
        low, high = answer.peak.reserved_interval.low, answer.peak.reserved_interval.high
        line += f" ({format_gib(low)} to {format_gib(high)})"
    if answer.step is not None:
        line += f"; about {answer.step.seconds:.3g} s a step"
    return line


def comparison(answer: Answer, measured: Measured) -> str:
    """Predicted against measured peak, in one line."""
    pairs = (
        ("reserved", answer.peak.reserved_bytes, measured.reserved_bytes),
        ("allocated", answer.peak.allocated_bytes, measured.allocated_bytes),
    )
    texts = (
        (
            f"{level} {format_gib(predicted)} predicted, {format_gib(seen)} measured "
            f"({predicted / max(seen, 1) - 1:+.1%})"
        )
        for level, predicted, seen in pairs
    )
    return "peak " + "; ".join(texts)


def _measured() -> Measured | None:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_available() or not cuda.max_memory_reserved():
        return None
    return Measured(int(cuda.max_memory_allocated()), int(cuda.max_memory_reserved()))


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
