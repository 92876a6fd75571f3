"""``plan check CONFIG...``: will these jobs fit here?  One line each, and the exit code of the worst."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.api.files import CheckOptions, check_file
from planner.cli.outcome import Outcome, human_text
from planner.errors import UsageError
from planner.intake.request import from_flags
from planner.report.check import check_sections, worst_exit_code

MAX_CONFIGS = 10_000


def check_configs(configs: Sequence[str], flags: Mapping[str, object], options: CheckOptions) -> Outcome:
    """Answer each config with the same flags, which win over it; one that cannot be answered does not stop the others.

    Raises:
        UsageError: a flag that cannot be used.
    """
    said = from_flags(flags)
    if len(configs) > MAX_CONFIGS:
        raise UsageError(f"at most {MAX_CONFIGS:,} configs at once, but {len(configs):,} are given")
    checked = [check_file(config, said, options) for config in configs]
    code = worst_exit_code(checked)
    if options.output_format == "json":
        from planner.report.check_json import check_json

        return Outcome(check_json(checked), code)
    sections = check_sections(checked)
    if options.output_format == "markdown":
        from planner.report.markdown import to_markdown

        return Outcome(to_markdown(sections), code)
    return Outcome(human_text(sections), code)
