"""Transformers' Trainer evaluates after the last step of a dry run where the program asks for evaluation,
while it trains or behind it, because an evaluation may set the peak.

Of batches that are alike the first two are computed.  Where the card keeps what the model returns for each
batch, the others return the same again, so that what is kept grows as it would.
Source: transformers 4.46.3 and 5.23.0 trainer_callback.py CallbackHandler, trainer.py prediction_step and
evaluation_loop, which no program's own trainer has to call.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only

from measure.dry_run.libraries.importing import OnImport
from measure.dry_run.stages import StepsDone

if TYPE_CHECKING:
    from measure.dry_run.guesses import Guesses
    from measure.dry_run.stages import Stages

_COMPUTED = 2
# Batches of a trainer with a prediction step of its own, which are all computed, and of data of no length.
_OF_OTHERS = 16
# Arguments of trainers whose evaluation generates text.
_GENERATES = ("predict_with_generate", "generate_during_eval", "num_generations")


def install(imports: OnImport, stages: Stages, guesses: Guesses) -> None:
    """Change the Trainer when the program imports it."""
    evaluation = Evaluation(stages, guesses)
    imports.add("transformers.trainer_callback", evaluation.follow_callbacks)
    imports.add("transformers.trainer", evaluation.follow_batches)


@dataclass(frozen=True, slots=True)
class _Tensor:
    """How a tensor is made again."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(tensor: torch.Tensor) -> _Tensor:
        """What ``tensor`` is like."""
        return _Tensor(tensor.shape, tensor.dtype, tensor.device)

    def made(self) -> torch.Tensor:
        """Another one like it."""
        return torch.empty(self.shape, dtype=self.dtype, device=self.device)


class Evaluation:
    """One evaluation, after the last step, of the first set of samples that the program has for it."""

    def __init__(self, stages: Stages, guesses: Guesses) -> None:
        self._stages, self._guesses = stages, guesses
        self._after_step = self._n_done = 0
        self._has_rows = False
        self._returned: list[Any] = []
        # Whether the card keeps what the model returns; unknown before a batch, and of other trainers.
        self._keeps: bool | None = None

    def follow_callbacks(self, module: ModuleType) -> None:
        """Training begins, a step ends, a batch was evaluated."""
        handler: Any = module.CallbackHandler
        begin, end_step, end_batch = handler.on_train_begin, handler.on_step_end, handler.on_prediction_step

        @wraps(begin)
        def on_train_begin(self_: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            if not self._stages.evaluates and self._is_asked(args):
                self._stages.evaluates = True
                self._after_step = min(self._stages.n_steps, state.max_steps)
            return begin(self_, args, state, control, **kwargs)

        @wraps(end_step)
        def on_step_end(self_: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            control = end_step(self_, args, state, control, **kwargs)
            if state.global_step == self._after_step:
                control.should_evaluate = True
                self._returned.clear()
            return control

        @wraps(end_batch)
        def on_prediction_step(self_: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            control = end_batch(self_, args, state, control, **kwargs)
            if self._after_step and state.global_step >= self._after_step:
                self._end_batch(self_.eval_dataloader)
            return control

        handler.on_train_begin, handler.on_step_end = on_train_begin, on_step_end
        handler.on_prediction_step = on_prediction_step

    def follow_batches(self, module: ModuleType) -> None:
        """Training begins with rows for an evaluation or without.  What the model returns for a batch: of a
        batch like others shapes alone are kept.
        """
        trainer_class: Any = module.Trainer
        train, predict = trainer_class.train, trainer_class.prediction_step

        @wraps(train)
        def train_(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            self._has_rows = getattr(trainer, "eval_dataset", None) is not None
            return train(trainer, *args, **kwargs)

        @wraps(predict)
        def prediction_step(
            trainer: Any, model: Any, inputs: Any, prediction_loss_only: bool, *args: Any, **kwargs: Any
        ) -> Any:
            if self._after_step:
                self._keeps = not prediction_loss_only
                if len(self._returned) == _COMPUTED:
                    return tree_map_only(_Tensor, _Tensor.made, self._returned[-1])
            found = predict(trainer, model, inputs, prediction_loss_only, *args, **kwargs)
            if self._after_step:
                self._returned.append(tree_map_only(torch.Tensor, _Tensor.of, found))
            return found

        trainer_class.train, trainer_class.prediction_step = train_, prediction_step

    def _is_asked(self, args: Any) -> bool:
        """Whether the program evaluates while it trains or behind it (``do_eval``), in a way that a dry run
        follows.
        """
        strategy = getattr(args, "eval_strategy", None) or getattr(args, "evaluation_strategy", "no")
        if str(getattr(strategy, "value", strategy)) == "no" and not self._has_rows:
            return False
        if str(getattr(strategy, "value", strategy)) == "no" and not getattr(args, "do_eval", False):
            why = "not run, though there are rows for it: do_eval or eval_strategy would ask for it"
            self._guesses.assume("evaluation", why, "the Trainer")
            return False
        generates = next((name for name in _GENERATES if getattr(args, name, False)), "")
        if generates:
            self._guesses.assume("evaluation", f"not run, as it generates text ({generates})", "the Trainer")
        return not generates

    def _end_batch(self, dataloader: Any) -> None:
        """Raises:
        StepsDone: no further batch would need more.
        """
        self._n_done += 1
        n_batches = _length(dataloader)
        n_run = {True: n_batches or _OF_OTHERS, False: _COMPUTED, None: _OF_OTHERS}[self._keeps]
        if self._n_done < min(n_run, n_batches or n_run):
            return
        if n_batches is None:
            self._guesses.assume("evaluation", f"the first {n_run} batches", "the Trainer")
        elif n_run < n_batches:
            self._guesses.assume("evaluation", f"the first {n_run} of {n_batches:,} batches", "the Trainer")
        elif n_batches > _COMPUTED and self._keeps:
            value = f"what batch {_COMPUTED} returns, for each of the {n_batches - _COMPUTED:,} after it"
            self._guesses.assume("evaluation", value, "the Trainer")
        raise StepsDone


def _length(dataloader: Any) -> int | None:
    """Batches of a loader; ``None`` where its data come one by one."""
    try:
        return len(dataloader)
    except TypeError:
        return None
