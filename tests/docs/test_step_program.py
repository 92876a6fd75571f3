"""The page about the step program quotes the program."""

from __future__ import annotations

from blocks import CODE_BLOCK, ROOT


def test_code_on_the_page_is_code_of_the_program() -> None:
    """Every block of Python on the page stands in one file of the program as it is."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "planner" / "program").rglob("*.py")]
    page = (ROOT / "docs" / "step_program.md").read_text(encoding="utf-8")
    quotes = [block["text"] for block in CODE_BLOCK.finditer(page) if block["language"] == "python"]
    assert quotes
    assert [quote for quote in quotes if not any(quote.rstrip("\n") in source for source in sources)] == []
