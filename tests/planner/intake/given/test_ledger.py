"""The book of values: what was given wins, and each value has one origin."""

from __future__ import annotations

from types import MappingProxyType

from planner.domain.origin import ASSUMED, stack_default
from planner.domain.scenario import Assumption
from planner.intake.given.ledger import Ledger
from planner.intake.given.request import Given, ScenarioRequest
from planner.units import GIB


def ledger(record_id: str | None = None, **given: object) -> Ledger:
    """A book for these given values."""
    values = {name: Given(value, "cli") for name, value in given.items()}
    return Ledger(ScenarioRequest(MappingProxyType(values), record_id))


def entry(book: Ledger, name: str) -> tuple[str, str, str]:
    """Value, origin and note of an entry."""
    (found,) = [each for each in book.assumptions if each.name == name]
    return found.value, found.origin, found.note


def test_what_was_given_wins_over_a_default() -> None:
    """Also where it is nothing: 0 and an empty list are values."""
    book = ledger(batch=4, lora_targets=())
    assert book.choose("batch", 1, ASSUMED) == 4
    assert book.choose("lora_targets", ("q_proj",), ASSUMED) == ()
    assert book.choose("seq", 512, ASSUMED, "a note") == 512
    assert (book.is_given("batch"), book.is_given("seq")) == (True, False)
    assert entry(book, "batch") == ("4", "cli", "")
    assert entry(book, "lora_targets") == ("none", "cli", "")
    assert entry(book, "seq") == ("512", ASSUMED, "a note")


def test_values_are_entered_as_they_would_be_typed() -> None:
    """Sizes with a unit, lists with semicolons, truth in small letters, and other numbers plain."""
    book = ledger()
    for name, value in (
        ("gpu_memory", 24 * GIB), ("seq", 1024), ("lora_targets", ("q_proj", "v_proj")),
        ("gradient_checkpointing", True), ("double_quant", False), ("price", None),
    ):  # fmt: skip
        book.enter(name, value, ASSUMED)
    assert {each.name: each.value for each in book.assumptions} == {
        "gpu_memory": "24.00 GiB", "seq": "1024", "lora_targets": "q_proj;v_proj",
        "gradient_checkpointing": "true", "double_quant": "false", "price": "none",
    }  # fmt: skip


def test_a_source_that_is_silent_did_not_choose_the_default_of_its_stack() -> None:
    """That it ran it is our assumption; what follows from something else keeps its origin."""
    book, person = ledger("doc-1"), ledger()
    for each in (book, person):
        each.choose("loss", "hf", stack_default("trl"), "as read")
        each.choose("seq", 512, "model")
    value, origin, note = entry(book, "loss")
    assert (value, origin) == ("hf", ASSUMED)
    assert note.startswith("the source does not say; ")
    assert note.endswith("; as read")
    assert "trl" in note
    assert entry(person, "loss") == ("hf", stack_default("trl"), "as read")
    assert entry(book, "seq") == ("512", "model", "")


def test_remarks_are_added_to_a_note() -> None:
    """The first becomes the note."""
    book = ledger()
    book.enter("seq", 512, ASSUMED)
    book.remark("seq", "one")
    book.remark("seq", "two")
    assert entry(book, "seq") == ("512", ASSUMED, "one; two")


def test_entries_are_in_the_order_of_the_help_and_each_is_there_once() -> None:
    """A later value replaces an earlier one; names that no flag has come last."""
    book = Ledger(ScenarioRequest(MappingProxyType({})), [Assumption("seq", "1", ASSUMED, "")])
    book.enter("unheard_of", 1, ASSUMED)
    book.enter("seq", 2, ASSUMED)
    book.enter("model", "m", ASSUMED)
    assert [(each.name, each.value) for each in book.assumptions] == [
        ("model", "m"), ("seq", "2"), ("unheard_of", "1"),
    ]  # fmt: skip
