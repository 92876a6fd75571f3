"""``plan search``: the best recipes under what was given."""

from __future__ import annotations

from collections.abc import Mapping

from planner.api.searches import SearchOptions, answer_search
from planner.cli.outcome import Outcome, human_text
from planner.errors import ExitCode


def search(flags: Mapping[str, object], options: SearchOptions) -> Outcome:
    """Answer a search over everything that flags and a config file leave open; flags win."""
    from planner.report.search.sections import exit_code, search_sections

    answer = answer_search(flags, options)
    code = ExitCode(exit_code(answer))
    if options.output_format == "json":
        from planner.report.search.document import search_json

        return Outcome(search_json(answer), code)
    sections = search_sections(answer)
    if options.output_format == "markdown":
        from planner.report.render.markdown import to_markdown

        return Outcome(to_markdown(sections), code)
    return Outcome(human_text(sections), code)
