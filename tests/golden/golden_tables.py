"""The scenarios whose reports are kept as text."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from fixed_coefficients import FIXED
from rich.console import Console

from planner.api.answering import How, answer_job
from planner.api.calibration_choice import Choice, calibration_for
from planner.domain.scenario import Scenario
from planner.report.prediction.sections import build_sections
from planner.report.prediction.short import short_text
from planner.report.render.human import to_text
from tests.jobs import typed

COLUMNS = 120
FOLDER = Path(__file__).resolve().parent

# One scenario per mechanism worth watching.  Flags as on the command line;
# everything else is the stack's default.
SCENARIOS: dict[str, dict[str, object]] = {
    "qlora-7b-rtx4090": {"model": "7b", "method": "qlora", "gpu": "4090", "seq": 1024},
    "full-7b-zero3-offload": typed(
        "--model 7b --method full --gpu 4090:2 --seq 1024 --sharding zero3 --offload optimizer+params "
        "--gradient-checkpointing --host-memory 256GiB"
    ),
    "full-7b-fsdp-8gpus": typed(
        "--model 7b --method full --gpu h100-sxm:8 --seq 4096 --sharding fsdp --gradient-checkpointing"
    ),
    "lora-qwen25-7b-natural-lengths": typed(
        "--model qwen2.5-7b --method lora --gpu a100-80-sxm --seq 2048 --tokens-per-sample 800 "
        "--padding longest --gradient-checkpointing"
    ),
    "qlora-mixtral-8x7b": {"model": "mixtral-8x7b", "method": "qlora", "gpu": "h100-sxm", "seq": 2048},
    "lora-gemma2-9b-eager": typed(
        "--model gemma-2-9b --method lora --gpu a100-80-sxm --seq 2048 --attention eager "
        "--gradient-checkpointing"
    ),
}


def golden_text(name: str) -> str:
    """What ``<name>.txt`` has to hold: the first answer, and the whole report of the prediction,
    by the coefficients of these tables.

    The first answer shows what levers and stacks come to;
    all of them would move with every other stack and recipe.
    """
    flags = SCENARIOS[name]
    with patch("planner.api.answering.calibration_for", _fixed):
        subject = answer_job(flags, how=How(calibration="none"))
        alone = answer_job(flags, how=How(calibration="none", advise=False))
    console = Console(
        file=io.StringIO(), width=COLUMNS, color_system=None, highlight=False, markup=False, emoji=False
    )
    said = ", ".join(f"{key}={value}" for key, value in flags.items())
    parts = (f"flags: {said}\n", short_text(subject, console), to_text(build_sections(alone), console))
    return f"\n{'=' * COLUMNS}\n".join(parts)


def _fixed(scenario: Scenario, name: str | None) -> Choice:
    """As without a calibration, with the coefficients of these tables."""
    return replace(calibration_for(scenario, name), model=FIXED)


def golden_path(name: str) -> Path:
    """Where the report of one scenario is kept."""
    return FOLDER / f"{name}.txt"
