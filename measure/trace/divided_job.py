"""A job that an engine divides over cards, laid out for a dry run of ``engine_program.py``, where the
engine's own code runs.
"""

from __future__ import annotations

import base64
import json
import pickle
from dataclasses import dataclass, replace
from pathlib import Path

from measure.recipe.modules import config_fields
from measure.trace.build import make_config
from measure.trace.engine_program import MODEL_FOLDER, SCENARIO_FILE
from measure.trace.traced_job import refuse_what_is_not_traced
from planner.domain.scenario import Scenario
from planner.errors import NotModelledError

PROGRAM = Path(__file__).with_name("engine_program.py")
# The second of them finds gradients, and those behind it are like it.
_MICRO_STEPS = 2


@dataclass(frozen=True, slots=True)
class DividedJob:
    """What is run on ``n_cards``: a command, and contents by name for the folder that it sees."""

    command: tuple[str, ...]
    files: dict[str, str]
    n_cards: int


def divided_job(scenario: Scenario) -> DividedJob:
    """The program of ``scenario``.

    Raises:
        NotModelledError: something that the program does not do; says what, and what to do.
    """
    refuse_what_is_not_traced(scenario)
    refuse_what_is_not_run(scenario)
    make_config(scenario)  # which refuses what Transformers does not ship
    batch = scenario.recipe.batch
    few = replace(batch, grad_accum=min(int(batch.grad_accum), _MICRO_STEPS))
    job = pickle.dumps(replace(scenario, recipe=replace(scenario.recipe, batch=few)))
    n_cards = int(scenario.hardware.world_size)
    files = {
        SCENARIO_FILE: base64.b64encode(job).decode("ascii"),
        f"{MODEL_FOLDER}/config.json": json.dumps(config_fields(scenario.model)),
    }
    return DividedJob(("torchrun", "--nproc_per_node", str(n_cards), str(PROGRAM)), files, n_cards)


def refuse_what_is_not_run(scenario: Scenario) -> None:
    """Refuse what the Trainer alone does not do.

    Raises:
        NotModelledError: names the setting and the way out.
    """
    recipe, stack = scenario.recipe, scenario.stack
    refused = (
        (recipe.task not in ("sft", "pretrain"), f"task '{recipe.task}'"),
        (recipe.loss not in ("hf", "liger"), f"loss '{recipe.loss}'"),
        (not stack.runs_trainer, f"the loop of stack '{stack.id}'"),
        (recipe.sharding.scope == "node", f"sharding '{recipe.sharding}'"),
        (stack.joins_rows(recipe), "packed samples in one row"),
    )
    for applies, what in refused:
        if applies:
            raise NotModelledError(
                f"{what} over several cards cannot be traced by flags; "
                "run its program: measure trace --gpu CARD:N -- torchrun train.py"
            )
