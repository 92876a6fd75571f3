"""Transformers' Trainer evaluates after the last step of a dry run where the program asks for evaluation at
all, because an evaluation may set the peak.

Source: transformers 4.46.3 and 5.23.0 trainer_callback.py, trainer.py evaluation_loop.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from measure.dry_run.libraries.importing import OnImport
from measure.dry_run.stages import StepsDone

if TYPE_CHECKING:
    from measure.dry_run.guesses import Guesses
    from measure.dry_run.stages import Stages

# Batches alike need the same memory from the second on, unless the card keeps their predictions.
_ALIKE, _KEPT = 2, 16
# Arguments of trainers whose evaluation generates text.
_GENERATES = ("predict_with_generate", "generate_during_eval", "num_generations")


def install(imports: OnImport, stages: Stages, guesses: Guesses) -> None:
    """Change the Trainer when the program imports it."""
    evaluation = Evaluation(stages, guesses)
    imports.add("transformers.trainer_callback", evaluation.follow_callbacks)
    imports.add("transformers.trainer", evaluation.follow_loop)


class Evaluation:
    """One evaluation, after the last step, over its first batches."""

    def __init__(self, stages: Stages, guesses: Guesses) -> None:
        self._stages, self._guesses = stages, guesses
        self._left = 0

    def follow_callbacks(self, module: ModuleType) -> None:
        """Training begins, a step ends, a batch was evaluated."""
        handler: Any = module.CallbackHandler
        begin, end_step, end_batch = handler.on_train_begin, handler.on_step_end, handler.on_prediction_step

        def on_train_begin(self_: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            if not self._stages.evaluates and self._is_asked(args):
                self._stages.evaluates = True
                self._left = _ALIKE
            return begin(self_, args, state, control, **kwargs)

        def on_step_end(self_: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            control = end_step(self_, args, state, control, **kwargs)
            if self._left:
                control.should_evaluate = state.global_step == self._stages.n_steps
            return control

        def on_prediction_step(self_: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            control = end_batch(self_, args, state, control, **kwargs)
            if self._left:
                self._left -= 1
                if self._left == 0:
                    raise StepsDone
            return control

        handler.on_train_begin, handler.on_step_end = on_train_begin, on_step_end
        handler.on_prediction_step = on_prediction_step

    def follow_loop(self, module: ModuleType) -> None:
        """How many batches there are, and whether what the model returns stays on the card."""
        trainer_class: Any = module.Trainer
        evaluate = trainer_class.evaluation_loop

        def evaluation_loop(
            trainer: Any,
            dataloader: Any,
            description: str,
            prediction_loss_only: bool | None = None,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            if self._left:
                said = trainer.args if prediction_loss_only is None else None
                loss_only = said.prediction_loss_only if said else prediction_loss_only
                self._left = _ALIKE if loss_only or trainer.args.eval_accumulation_steps else _KEPT
                self._say(self._left, dataloader)
            return evaluate(trainer, dataloader, description, prediction_loss_only, *args, **kwargs)

        trainer_class.evaluation_loop = evaluation_loop

    def _is_asked(self, args: Any) -> bool:
        """Whether the program evaluates while it trains, in a way that a dry run follows."""
        strategy = getattr(args, "eval_strategy", None) or getattr(args, "evaluation_strategy", "no")
        if str(getattr(strategy, "value", strategy)) == "no":
            return False
        generates = next((name for name in _GENERATES if getattr(args, name, False)), "")
        if generates:
            self._guesses.assume("evaluation", f"not run, as it generates text ({generates})", "the Trainer")
        return not generates

    def _say(self, n_run: int, dataloader: Any) -> None:
        n_batches = len(dataloader) if hasattr(dataloader, "__len__") else None
        if n_batches is None or n_batches > n_run:
            more = ", and the card keeps what the model returns for each" if n_run == _KEPT else ""
            of_all = "batches" if n_batches is None else f"of {n_batches:,} batches"
            self._guesses.assume("evaluation", f"the first {n_run} {of_all}{more}", "the Trainer")
