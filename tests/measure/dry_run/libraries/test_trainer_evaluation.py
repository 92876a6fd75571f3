"""A Trainer that evaluates does so after the last step of a dry run, over the batches that count."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from tests.extras import needs

pytestmark = needs("torch")


class Handler:
    """Callbacks as the Trainer calls them."""

    eval_dataloader: list[int]

    def on_train_begin(self, args: Any, state: Any, control: Any) -> Any:
        """Nothing changes."""
        del args, state
        return control

    on_step_end = on_prediction_step = on_train_begin


class Trainer:
    """Evaluates every batch of a list; ``n_computed``: how many of them by the model."""

    eval_dataset: list[int] | None = None

    def __init__(self, handler: Any) -> None:
        self.handler, self.n_computed, self.shapes = handler, 0, set[tuple[int, ...]]()

    def train(self, args: Any, state: Any, control: Any) -> None:
        """As far as its beginning."""
        self.handler.on_train_begin(args, state, control)

    def prediction_step(self, model: Any, inputs: Any, prediction_loss_only: bool) -> Any:
        """A loss, and what the model returns."""
        import torch

        del model, inputs
        self.n_computed += 1
        return torch.zeros(()), None if prediction_loss_only else (torch.zeros(4, 7), None)

    def evaluate(self, n_batches: int, loss_only: bool, state: Any, *, streams: bool = False) -> None:
        """As Transformers does."""
        self.handler.eval_dataloader = WithoutLength() if streams else [0] * n_batches
        for _ in range(n_batches):
            _, found = self.prediction_step(None, None, loss_only)
            if found is not None:
                self.shapes.add(found[0].shape)
            self.handler.on_prediction_step(None, state, None)


class WithoutLength(list[int]):
    """Batches of data that come one by one, as a loader has them: it has the method, which fails."""

    def __len__(self) -> int:
        raise TypeError("object of type 'IterableDataset' has no len()")


class OfItsOwn(Trainer):
    """A prediction step that nobody sees."""

    def prediction_step(self, model: Any, inputs: Any, prediction_loss_only: bool) -> Any:
        """Nothing of the Trainer's is called."""
        del model, inputs, prediction_loss_only
        self.n_computed += 1
        return None, None


def evaluated(
    n_batches: int,
    loss_only: bool,
    *,
    own: bool = False,
    streams: bool = False,
    max_steps: int = 9,
    **said: Any,
) -> tuple[int, bool, list[str]]:
    """Batches that the model computed of so many, whether the dry run is over then, and what was assumed."""
    from measure.dry_run.libraries.trainer_evaluation import Evaluation
    from measure.dry_run.stages import StepsDone

    notes: list[str] = []
    stages: Any = SimpleNamespace(n_steps=2, evaluates=False)
    guesses: Any = SimpleNamespace(assume=lambda _, value, __: notes.append(value))
    base = type("Base", (Trainer,), {})
    changed: Any = SimpleNamespace(CallbackHandler=type("Handler", (Handler,), {}), Trainer=base)
    evaluation = Evaluation(stages, guesses)
    evaluation.follow_callbacks(changed)
    evaluation.follow_batches(changed)
    args = SimpleNamespace(**{"eval_strategy": "epoch", **said})
    handler = changed.CallbackHandler()
    trainer = type("Own", (OfItsOwn, base), {})(handler) if own else base(handler)
    control = SimpleNamespace(should_evaluate=False)
    trainer.eval_dataset = said.get("rows")
    trainer.train(args, SimpleNamespace(max_steps=max_steps), control)
    for step in range(1, min(2, max_steps) + 1):
        assert not control.should_evaluate
        handler.on_step_end(args, SimpleNamespace(global_step=step), control)
    over = False
    if control.should_evaluate:
        try:
            trainer.evaluate(n_batches, loss_only, SimpleNamespace(global_step=step), streams=streams)
        except StepsDone:
            over = True
    assert trainer.shapes <= {(4, 7)}
    return trainer.n_computed, over, notes


@pytest.mark.parametrize(
    ("n_batches", "loss_only", "how", "n_computed", "note"),
    [
        (30, True, {}, 2, "the first 2 of 30 batches"),
        (30, True, {"max_steps": 1}, 2, "the first 2 of 30 batches"),
        (30, True, {"eval_strategy": "no", "do_eval": True, "rows": [1]}, 2, "the first 2 of 30 batches"),
        (30, False, {}, 2, "what batch 2 returns, for each of the 28 after it"),
        (30, False, {"own": True}, 16, "the first 16 of 30 batches"),
        (30, True, {"streams": True}, 2, "the first 2 batches"),
        (30, False, {"streams": True}, 2, "the first 16 batches"),
        (1, True, {}, 1, ""),
        (2, False, {}, 2, ""),
    ],
)
def test_batches_that_count_are_evaluated(
    n_batches: int, loss_only: bool, how: dict[str, Any], n_computed: int, note: str
) -> None:
    """Two where nothing grows; all where the card keeps predictions, of which two are computed."""
    assert evaluated(n_batches, loss_only, **how) == (n_computed, True, [note] if note else [])


@pytest.mark.parametrize(
    ("said", "notes"),
    [
        ({"eval_strategy": "no"}, []),
        ({"eval_strategy": "no", "do_eval": True}, []),
        (
            {"eval_strategy": "no", "rows": [1]},
            ["not run, though there are rows for it: do_eval or eval_strategy would ask for it"],
        ),
        ({"predict_with_generate": True}, ["not run, as it generates text (predict_with_generate)"]),
    ],
)
def test_what_is_not_asked_for_or_generates_is_left_out(said: dict[str, Any], notes: list[str]) -> None:
    """Text that is generated is said."""
    assert evaluated(30, True, **said) == (0, False, notes)


def test_an_evaluation_before_training_ends_nothing() -> None:
    """``eval_on_start``: the steps come after it."""
    from measure.dry_run.libraries.trainer_evaluation import Evaluation

    stages: Any = SimpleNamespace(n_steps=2, evaluates=False)
    changed: Any = SimpleNamespace(CallbackHandler=type("Handler", (Handler,), {}), Trainer=Trainer)
    Evaluation(stages, SimpleNamespace()).follow_callbacks(changed)  # type: ignore[arg-type]
    handler = changed.CallbackHandler()
    args = SimpleNamespace(eval_strategy="steps")
    handler.on_train_begin(args, SimpleNamespace(max_steps=9), None)
    Trainer(handler).evaluate(5, loss_only=True, state=SimpleNamespace(global_step=0))
    assert stages.evaluates


def test_the_trainer_of_transformers_has_what_is_changed() -> None:
    """The names exist and take these arguments; who reads the source of a method finds its own."""
    from measure.dry_run.libraries.trainer_evaluation import Evaluation

    transformers = pytest.importorskip("transformers")
    handler = transformers.trainer_callback.CallbackHandler
    for name in ("on_train_begin", "on_step_end", "on_prediction_step"):
        assert list(inspect.signature(getattr(handler, name)).parameters)[1:4] == ["args", "state", "control"]
    changed: Any = SimpleNamespace(Trainer=type("T", (transformers.Trainer,), {}))
    before = inspect.getsource(transformers.Trainer.prediction_step)
    Evaluation(SimpleNamespace(), SimpleNamespace()).follow_batches(changed)  # type: ignore[arg-type]
    assert inspect.getsource(changed.Trainer.prediction_step) == before
    assert list(inspect.signature(changed.Trainer.prediction_step).parameters)[1:4] == [
        "model",
        "inputs",
        "prediction_loss_only",
    ]
