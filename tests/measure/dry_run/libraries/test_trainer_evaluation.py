"""A Trainer that evaluates at some time does so after the last step of a dry run, over a few batches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.extras import needs

pytestmark = needs("torch")


class Handler:
    """Callbacks as the Trainer calls them."""

    def on_train_begin(self, args: Any, state: Any, control: Any) -> Any:
        """Nothing changes."""
        del args, state
        return control

    on_step_end = on_prediction_step = on_train_begin


class Trainer:
    """Evaluates every batch of a list; ``n_done``: how many."""

    def __init__(self, args: Any, handler: Any) -> None:
        self.args, self.handler, self.n_done = args, handler, 0

    def evaluation_loop(
        self, dataloader: Any, description: str, prediction_loss_only: bool | None = None
    ) -> None:
        """As Transformers calls it."""
        del description, prediction_loss_only
        for _ in dataloader:
            self.n_done += 1
            self.handler.on_prediction_step(self.args, None, None)


def evaluated(n_batches: int, loss_only: bool | None = None, **said: Any) -> tuple[int, bool, list[Any]]:
    """Batches that were evaluated of so many, whether the dry run is over then, and what was assumed."""
    from measure.dry_run.libraries.trainer_evaluation import Evaluation
    from measure.dry_run.stages import StepsDone

    notes: list[Any] = []
    stages: Any = SimpleNamespace(n_steps=2, evaluates=False)
    guesses: Any = SimpleNamespace(assume=lambda *words: notes.append(words))
    changed: Any = SimpleNamespace(
        CallbackHandler=type("Handler", (Handler,), {}), Trainer=type("T", (Trainer,), {})
    )
    evaluation = Evaluation(stages, guesses)
    evaluation.follow_callbacks(changed)
    evaluation.follow_loop(changed)
    args = SimpleNamespace(
        **{"eval_strategy": "epoch", "prediction_loss_only": False, "eval_accumulation_steps": None, **said}
    )
    handler = changed.CallbackHandler()
    trainer, control = changed.Trainer(args, handler), SimpleNamespace(should_evaluate=False)
    handler.on_train_begin(args, None, control)
    over = False
    for step in (1, 2):
        handler.on_step_end(args, SimpleNamespace(global_step=step), control)
        assert control.should_evaluate == (step == 2 and stages.evaluates)
    if control.should_evaluate:
        try:
            trainer.evaluation_loop([0] * n_batches, "Evaluation", loss_only)
        except StepsDone:
            over = True
    return trainer.n_done, over, notes


@pytest.mark.parametrize(
    ("n_batches", "loss_only", "said", "n_done", "note"),
    [
        (30, True, {}, 2, "the first 2 of 30 batches"),
        (30, None, {"prediction_loss_only": True}, 2, "the first 2 of 30 batches"),
        (30, None, {"eval_accumulation_steps": 4}, 2, "the first 2 of 30 batches"),
        (30, False, {}, 16, "the first 16 of 30 batches, and the card keeps what the model returns for each"),
        (1, True, {}, 1, ""),
        (30, True, {"eval_strategy": "no"}, 0, ""),
        (
            30,
            True,
            {"predict_with_generate": True},
            0,
            "not run, as it generates text (predict_with_generate)",
        ),
    ],
)
def test_the_first_batches_are_evaluated(
    n_batches: int, loss_only: bool | None, said: dict[str, Any], n_done: int, note: str
) -> None:
    """Two where nothing grows, more where the card keeps predictions; what is left out is said."""
    done, over, notes = evaluated(n_batches, loss_only, **said)
    assert (done, over) == (n_done, 1 < n_done < n_batches)
    assert [words[1] for words in notes] == ([note] if note else [])


def test_the_trainer_of_transformers_has_what_is_changed() -> None:
    """The names exist, and the loop takes the same arguments."""
    import inspect

    transformers = pytest.importorskip("transformers")
    taken = list(inspect.signature(transformers.Trainer.evaluation_loop).parameters)
    assert taken[1:4] == ["dataloader", "description", "prediction_loss_only"]
    handler = transformers.trainer_callback.CallbackHandler
    for name in ("on_train_begin", "on_step_end", "on_prediction_step"):
        assert list(inspect.signature(getattr(handler, name)).parameters)[1:4] == ["args", "state", "control"]
