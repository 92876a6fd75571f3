"""Options that a `plan` command has beside those that say what the job is, which are in
``planner/intake/given/flags.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from planner.intake.given.flags import Config, Force, OwnOptions, switch, valued, with_scenario_options

__all__ = ["CHECK_OPTIONS", "SEARCH_OPTIONS", "VALIDATE_OPTIONS", "Format", "Json", "with_prediction_options"]


Format = Annotated[
    str | None,
    typer.Option("--format", metavar="NAME", help="human, json or markdown [human]", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Short for --format json")]
_FORMATS: OwnOptions = {"output_format": (Format, None), "as_json": (Json, False)}
_CALIBRATION: OwnOptions = {
    "calibration": valued(
        "--calibration",
        "NAME",
        "Fitted coefficients: a name, a .json file, or none [of this machine, else default]",
    )
}

# How to read and answer, beside what the job is.
_ANSWER_OPTIONS: OwnOptions = {
    "config": (Config, None),
    **_FORMATS,
    "details": switch("--details", "Show all terms, phases, memory over the step, host RAM and time"),
    "explain": switch("--explain", "How each number is made, with its source; with --details of all phases"),
    "force": (Force, False),
    **_CALIBRATION,
    "trace": switch("--trace", "Show measure trace beside it, row by row (measure extra)"),
    "plot": valued("--plot", "FILE", "Draw memory over the step as a PNG (plots extra)"),
    "version": switch("--version", "Print the version and exit"),
}

CHECK_OPTIONS: OwnOptions = {
    "configs": (
        Annotated[
            list[str] | None,
            typer.Argument(
                metavar="CONFIG",
                help="Config files (TOML, YAML, JSON), launch scripts (.sh) or programs (.py, .ipynb)",
                show_default=False,
            ),
        ],
        None,
    ),
    "command": valued(
        "--command",
        "TEXT",
        "A command that starts a training: accelerate launch, torchrun, deepspeed or python with "
        "a script of Transformers', TRL's, LMFlow's or Unsloth's arguments, trl, swift, "
        "llamafactory-cli, axolotl or unsloth; it is read, never run",
        list[str],
    ),
    "tool": valued(
        "--tool",
        "NAME",
        "What the files are for, where their keys do not say it: "
        "plan, llama-factory, llama-factory-v1, llama-factory-mca, llama-factory-bridge, axolotl, "
        "open-instruct, torchtitan, torchtune, nemo-automodel, ms-swift, ms-swift-megatron, lmflow, llava, "
        "qlora, llama-cookbook, unsloth, unsloth-cli, peft-sft, trl, transformers, deepspeed or accelerate",
    ),
    "deepspeed": valued("--deepspeed", "FILE", "DeepSpeed's JSON, instead of the one referred to"),
    "accelerate": valued(
        "--accelerate",
        "FILE",
        "The config of accelerate launch; given again, each is answered; CONFIG=FILE is "
        "for that config alone",
        list[str],
    ),
    "write": valued(
        "--write",
        "FILE",
        "Write the config with the first changes that make it fit and read it again; the exit "
        "code is then FILE's. Nothing is overwritten but the config itself, by its own name",
    ),
    "allow": valued(
        "--allow",
        "WORDS",
        "What counts as fitting in the exit code, too: uncertain, not-modelled, or both with a comma",
    ),
    "trace": switch("--trace", "Run the file by its own tool on a pretended card, too (measure)"),
    **_CALIBRATION,
    "force": (Force, False),
    **_FORMATS,
}

SEARCH_OPTIONS: OwnOptions = {
    "global_batch": valued(
        "--global-batch", "N", "Samples per optimizer step on all GPUs, kept by accumulation"
    ),
    "solve": valued(
        "--solve", "batch|seq|gpus", "Find instead the largest batch or seq that fits, or the fewest gpus"
    ),
    "beyond_context": switch(
        "--beyond-context",
        "With --solve seq: lengths above what the model was made for, up to 4,194,304",
    ),
    "confidence": valued(
        "--confidence", "X", "Chance from which a recipe counts as fitting [0.95, as plan says FITS]"
    ),
    "top": valued("--top", "N", "Recipes to list for each method [3]"),
    "config": (Config, None),
    **_CALIBRATION,
    **_FORMATS,
}

VALIDATE_OPTIONS: OwnOptions = {
    "files": (
        Annotated[
            list[str],
            typer.Argument(
                metavar="FILE", help="Record files (.csv, .jsonl) or patterns", show_default=False
            ),
        ],
        ...,
    ),
    "rows": switch("--rows", "List each row"),
    "explain": valued("--explain", "ROW", "Walk through one row instead, by its id"),
    "history": switch("--history", "Terms from the allocator histories beside the records, too"),
    "cv": (Annotated[str, typer.Option("--cv", metavar="NAME", help="Hold out: none, or source")], "none"),
    "calibration": valued(
        "--calibration", "NAME", "Fitted coefficients: a name, a .json file, or none [default]"
    ),
    **_FORMATS,
}


def with_prediction_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``command(ctx, **options)`` with all options of a prediction in its signature."""
    return with_scenario_options(command, _ANSWER_OPTIONS, context=True, alone=True)
