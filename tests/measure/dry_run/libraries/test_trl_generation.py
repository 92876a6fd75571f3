"""A trainer that generates for several optimizer steps at once does so in the second of a dry run, too."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from measure.dry_run.libraries.importing import OnImport
from measure.dry_run.libraries.trl_generation import again_in_second_step, install


class Trainer:
    """Generates where nothing is buffered, as TRL's does; ``made``: in which micro-steps."""

    def __init__(self, micro_steps: int, accumulated: int) -> None:
        self.args = SimpleNamespace(
            steps_per_generation=micro_steps, num_iterations=1, gradient_accumulation_steps=accumulated
        )
        self.model = SimpleNamespace(training=True)
        self.made: list[int] = []
        self._step = 0
        self._buffered_inputs: Any = None

    def _prepare_inputs(self, inputs: Any) -> Any:
        if self._step % self.args.steps_per_generation == 0 or self._buffered_inputs is None:
            self.made.append(self._step)
            self._buffered_inputs = inputs
        self._step += 1
        return self._buffered_inputs


@pytest.mark.parametrize(
    ("micro_steps", "accumulated", "made", "n_said"),
    [(8, 1, [0, 1], 1), (2, 2, [0, 2], 0), (1, 2, [0, 1, 2, 3], 0)],
)
def test_the_second_step_generates(micro_steps: int, accumulated: int, made: list[int], n_said: int) -> None:
    """Once more, and said where TRL would not have."""
    changed = type("Changed", (Trainer,), {})
    stages, said = SimpleNamespace(steps_done=0), []
    guesses = SimpleNamespace(assume=lambda *words: said.append(words))
    again_in_second_step(changed, stages, guesses)  # type: ignore[arg-type]
    trainer = changed(micro_steps, accumulated)
    for stages.steps_done in range(2):
        for number in range(accumulated):
            trainer._prepare_inputs(number)
    assert trainer.made == made
    assert len(said) == n_said


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("trl.trainer.grpo_trainer", "GRPOTrainer"),
        ("trl.trainer.rloo_trainer", "RLOOTrainer"),
        ("trl.experimental.sdft.sdft_trainer", "SDFTTrainer"),
        ("trl.experimental.sdpo.sdpo_trainer", "SDPOTrainer"),
    ],
)
def test_each_trainer_that_keeps_completions_is_changed(
    module: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRPO, RLOO and both that teach themselves, where the program has imported them."""
    changed: Any = type(name, (Trainer,), {})
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{name: changed}))
    install(OnImport(), SimpleNamespace(steps_done=0), SimpleNamespace())  # type: ignore[arg-type]
    assert changed._prepare_inputs is not Trainer._prepare_inputs
