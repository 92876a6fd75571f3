"""Options that a `plan` command has beside those that say what the job is, which are in
``planner/intake/given/flags.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from planner.intake.given.flags import Config, Force, OwnOptions, with_scenario_options

__all__ = ["CHECK_OPTIONS", "SEARCH_OPTIONS", "VALIDATE_OPTIONS", "Format", "Json", "with_prediction_options"]

Format = Annotated[
    str | None, typer.Option("--format", metavar="NAME", help="human, json or markdown", show_default=False)
]

Json = Annotated[bool, typer.Option("--json", help="Short for --format json")]

_Calibration = Annotated[
    str | None,
    typer.Option(
        "--calibration",
        metavar="NAME",
        help=(
            "Fitted coefficients: a name, a .json file, or none; by default those of this machine, or default"
        ),
        show_default=False,
    ),
]

# How to read and answer, beside what the job is.
_ANSWER_OPTIONS: OwnOptions = {
    "config": (Config, None),
    "output_format": (Format, None),
    "as_json": (Json, False),
    "details": (
        Annotated[
            bool,
            typer.Option("--details", help="Show all terms, phases, memory over the step, host RAM and time"),
        ],
        False,
    ),
    "explain": (
        Annotated[
            bool,
            typer.Option(
                "--explain", help="How each number is made, with its source; with --details of all phases"
            ),
        ],
        False,
    ),
    "force": (Force, False),
    "calibration": (_Calibration, None),
    "trace": (
        Annotated[
            bool, typer.Option("--trace", help="Show measure trace beside it, row by row (measure extra)")
        ],
        False,
    ),
    "plot": (
        Annotated[
            str | None,
            typer.Option("--plot", metavar="FILE", help="Draw memory over the step as a PNG (plots extra)"),
        ],
        None,
    ),
    "version": (Annotated[bool, typer.Option("--version", help="Print the version and exit")], False),
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
    "command": (
        Annotated[
            list[str] | None,
            typer.Option(
                "--command",
                metavar="TEXT",
                help=(
                    "A command that starts a training: accelerate launch, torchrun, deepspeed or python with "
                    "a script of Transformers', TRL's, LMFlow's or Unsloth's arguments, trl, swift, "
                    "llamafactory-cli, axolotl or unsloth; it is read, never run"
                ),
                show_default=False,
            ),
        ],
        None,
    ),
    "tool": (
        Annotated[
            str | None,
            typer.Option(
                "--tool",
                metavar="NAME",
                help="What the files are for, where their keys do not say it: "
                "plan, llama-factory, llama-factory-v1, llama-factory-mca, axolotl, open-instruct, "
                "torchtitan, torchtune, nemo-automodel, ms-swift, ms-swift-megatron, lmflow, llava, qlora, "
                "llama-cookbook, unsloth, unsloth-cli, peft-sft, trl, transformers, deepspeed or accelerate",
                show_default=False,
            ),
        ],
        None,
    ),
    "deepspeed": (
        Annotated[
            str | None,
            typer.Option(
                "--deepspeed", metavar="FILE", help="DeepSpeed's JSON, instead of the one referred to"
            ),
        ],
        None,
    ),
    "accelerate": (
        Annotated[
            list[str] | None,
            typer.Option(
                "--accelerate",
                metavar="FILE",
                help=(
                    "The config of accelerate launch; given again, each is answered; CONFIG=FILE is "
                    "for that config alone"
                ),
                show_default=False,
            ),
        ],
        None,
    ),
    "write": (
        Annotated[
            str | None,
            typer.Option(
                "--write",
                metavar="FILE",
                help="Write the config with the first changes that make it fit and read it again; the exit "
                "code is then FILE's. "
                "Nothing is overwritten but the config itself, by its own name",
                show_default=False,
            ),
        ],
        None,
    ),
    "allow": (
        Annotated[
            str | None,
            typer.Option(
                "--allow",
                metavar="WORDS",
                help=(
                    "What counts as fitting in the exit code, too: uncertain, not-modelled, or both "
                    "with a comma"
                ),
                show_default=False,
            ),
        ],
        None,
    ),
    "trace": (
        Annotated[
            bool,
            typer.Option("--trace", help="Run the file by its own tool on a pretended card, too (measure)"),
        ],
        False,
    ),
    "calibration": _ANSWER_OPTIONS["calibration"],
    "force": (Force, False),
    "output_format": (Format, None),
    "as_json": (Json, False),
}


def _own(flag: str, metavar: str, text: str) -> Any:
    return Annotated[str | None, typer.Option(flag, metavar=metavar, help=text, show_default=False)]


SEARCH_OPTIONS: OwnOptions = {
    "global_batch": (
        _own("--global-batch", "N", "Samples per optimizer step on all GPUs, kept by accumulation"),
        None,
    ),
    "solve": (
        _own(
            "--solve", "batch|seq|gpus", "Find instead the largest batch or seq that fits, or the fewest gpus"
        ),
        None,
    ),
    "beyond_context": (
        Annotated[
            bool,
            typer.Option(
                "--beyond-context",
                help="With --solve seq: lengths above what the model was made for, up to 4,194,304",
            ),
        ],
        False,
    ),
    "confidence": (
        _own("--confidence", "X", "Chance from which a recipe counts as fitting (0.95, as plan says fits)"),
        None,
    ),
    "top": (_own("--top", "N", "Recipes to list for each way of training (3)"), None),
    "config": (Config, None),
    "calibration": (_Calibration, None),
    "output_format": (Format, None),
    "as_json": (Json, False),
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
    "rows": (Annotated[bool, typer.Option("--rows", help="List each row")], False),
    "explain": (
        Annotated[
            str | None,
            typer.Option("--explain", metavar="ROW", help="Walk through one row instead, by its id"),
        ],
        None,
    ),
    "history": (
        Annotated[
            bool, typer.Option("--history", help="Terms from the allocator histories beside the records, too")
        ],
        False,
    ),
    "cv": (Annotated[str, typer.Option("--cv", metavar="NAME", help="Hold out: none, or source")], "none"),
    "calibration": (
        Annotated[
            str | None,
            typer.Option(
                "--calibration",
                metavar="NAME",
                help="A name, a .json file, or none; by default the one that ships",
            ),
        ],
        None,
    ),
    "output_format": (Format, None),
    "as_json": (Json, False),
}


def with_prediction_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``command(ctx, **options)`` with all options of a prediction in its signature."""
    return with_scenario_options(command, _ANSWER_OPTIONS, context=True)
