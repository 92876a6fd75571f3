"""``measure describe CONFIG``: the parameters of a model that ``plan`` has no reader for,
counted on its own modules.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from measure.cli.job_flags import need, quiet
from measure.output import write_result
from planner.catalog.described import description_json
from planner.catalog.hf_config import MAX_CONFIG_BYTES, config_fields, parse_config
from planner.errors import ExitCode, InputFileError, UnknownArchitectureError


def describe(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A config.json, or - for standard input")],
) -> int:
    """Build a model without memory, by classes that Transformers ships, and say what it holds, as JSON.

    No code of a checkpoint runs.
    """
    need("measure", "torch", "transformers")
    if config == "-":
        fields = parse_config(sys.stdin.buffer.read(MAX_CONFIG_BYTES + 1), config)
    else:
        fields = config_fields(Path(config))
    kind = fields.get("model_type")
    if not isinstance(kind, str):
        raise InputFileError(config, "field 'model_type' is missing")
    quiet()
    from measure.trace.foreign import described_by_modules

    described = described_by_modules(fields, UnknownArchitectureError(config, kind))
    write_result(description_json(described))
    return int(ExitCode.FITS)
