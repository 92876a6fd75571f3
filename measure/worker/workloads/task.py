"""What a workload gets: the case, the device, and where to say what happens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure.run.cases.case import RunCase
from measure.run.cases.lengths import MicroBatch, plan_batches
from measure.run.pace import Pace
from measure.run.protocol import HISTORY_FILE, Reporter
from measure.worker.probes.device_memory import DeviceProbe
from measure.worker.probes.phase_peaks import PhaseRecorder
from planner.domain.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Task:
    """One case on one rank."""

    case: RunCase
    scenario: Scenario
    probe: DeviceProbe
    phases: PhaseRecorder
    reporter: Reporter

    @property
    def folder(self) -> Path:
        """Where the case may write; it is removed with all that is in it,
        whatever happens to this process.
        """
        return self.reporter.path.parent

    def batches(self) -> tuple[MicroBatch, ...]:
        """The micro-batches of this case."""
        return plan_batches(self.scenario.recipe.batch, self.case.options.lengths, self.case.options.seed)

    def begin_loss(self, hidden: Any) -> None:
        """The output projection begins; in an evaluation that is no phase of its own.

        The phase lasts until ``hidden``, what is projected, has its gradient: that is what predictions
        call the loss.
        """
        if self.phases.phase in ("forward", "forward_2"):
            self.phases.enter("loss")
            if getattr(hidden, "requires_grad", False):
                self.phases.loss_goes_back = True
                hidden.register_hook(lambda _: self.phases.enter("backward"))

    def end_loss(self) -> None:
        """The loss is there."""
        if not self.phases.loss_goes_back:
            self.phases.enter("backward")

    def say_model(self, model: Any, engine: Any, **configs: Any) -> None:
        """Report which classes really run, and the size of what they run."""
        total = sum(_elements(tensor) for tensor in model.parameters())
        trained = sum(_elements(tensor) for tensor in model.parameters() if tensor.requires_grad)
        self.reporter.say(
            "model",
            model_class=_name(model),
            engine_class=_name(engine),
            params=total,
            trained_params=trained,
            configs=configs,
        )

    def say_step(self, pace: Pace, times_s: tuple[float, float | None], batches: list[MicroBatch]) -> None:
        """Report one optimizer step and count it."""
        self.reporter.say(
            "step",
            index=len(pace.durations_s),
            warmup=pace.in_warmup,
            wall_s=times_s[0],
            device_s=times_s[1],
            real_tokens=sum(batch.real_tokens for batch in batches),
            padded_tokens=sum(batch.padded_tokens for batch in batches),
        )
        pace.add(times_s[0])
        if not pace.in_warmup:
            self.keep_history()

    def keep_history(self) -> None:
        """Write the allocator's history, where one is kept: it ends with the warm-up,
        so that counted steps are undisturbed.
        """
        packed = self.probe.stop_history(self.phases.marks)
        if packed is not None:
            (self.folder / HISTORY_FILE).write_bytes(packed)
            self.reporter.say("history", n_bytes=len(packed))


def _name(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _elements(tensor: Any) -> int:
    """Weights behind a parameter:
    packed ones and those that ZeRO-3 took away count as what they stand for.
    """
    state = getattr(tensor, "quant_state", None)
    if state is not None:
        return int(state.shape.numel())
    return int(getattr(tensor, "ds_numel", tensor.numel()))
