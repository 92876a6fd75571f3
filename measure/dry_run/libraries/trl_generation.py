"""Trainers of TRL generate for several optimizer steps at once: the dry run lets the second step generate
anew, because only then are the optimizer's states on the card beside it.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from measure.dry_run.libraries.importing import Change, OnImport

if TYPE_CHECKING:
    from measure.dry_run.guesses import Guesses
    from measure.dry_run.stages import Stages


# Those that keep what was generated in ``_buffered_inputs``, by their modules.
_TRAINERS = {
    "trl.trainer.grpo_trainer": "GRPOTrainer",
    "trl.trainer.rloo_trainer": "RLOOTrainer",
    "trl.experimental.sdft.sdft_trainer": "SDFTTrainer",
    "trl.experimental.sdpo.sdpo_trainer": "SDPOTrainer",
}


def install(imports: OnImport, stages: Stages, guesses: Guesses) -> None:
    """Change each trainer when the program imports it."""

    def change_of(name: str) -> Change:
        def change(module: ModuleType) -> None:
            again_in_second_step(getattr(module, name), stages, guesses)

        return change

    for module, name in _TRAINERS.items():
        imports.add(module, change_of(name))


def again_in_second_step(trainer_class: Any, stages: Stages, guesses: Guesses) -> None:
    """What was generated is forgotten once, when the optimizer has stepped.

    Source: trl 0.24.0 and 1.16.0 trainer/grpo_trainer.py _prepare_inputs, which generates where nothing is
    buffered; its sampler repeats the prompts for that.  The same of 1.16.0 in the other trainers.
    """
    prepare = trainer_class._prepare_inputs  # noqa: SLF001 - TRL has no public name for it
    asked: set[int] = set()

    def prepare_inputs(trainer: Any, inputs: Any) -> Any:
        if stages.steps_done == 1 and trainer.model.training and id(trainer) not in asked:
            asked.add(id(trainer))
            trainer._buffered_inputs = None  # noqa: SLF001
            args = trainer.args
            if args.steps_per_generation * args.num_iterations > args.gradient_accumulation_steps:
                guesses.assume("completions", "generated again in the second step", trainer_class.__name__)
        return prepare(trainer, inputs)

    trainer_class._prepare_inputs = prepare_inputs  # noqa: SLF001
