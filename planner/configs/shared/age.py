"""Signs in a trainer's file: keys that tell the age of the software,
and keys that say that nothing is trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from planner.configs.said_by_file import Reading
from planner.configs.shared.key_tables import names_in
from planner.configs.shared.keys import Keys
from planner.errors import show

TRANSFORMERS_4 = names_in("transformers.toml", "gone_with_5")

Age = TypeVar("Age")


def enter_age(
    reading: Reading,
    ages: Sequence[Age],
    releases: Mapping[Age, tuple[str, str]],
    asked: str,
    sign: tuple[str, str] = ("", ""),
) -> Age:
    """The likeliest of the ``ages`` that a file's keys fit, which is the first; the others are entered, too.

    ``releases``: stack and tool with version of every age.  ``asked``: the stack that the file is read for,
    whatever its keys say.  ``sign``: the place of what tells the age, and the sentence that says so.
    """
    age = next((each for each, (stack, _) in releases.items() if stack == asked), ages[0])
    stack, tool = releases[age]
    if stack != asked:
        reading.fits = tuple(releases[each][0] for each in ages[1:])
    # What was said of the software before a file was read stays where nothing tells of another.
    if stack != reading.value("stack") and (stack == asked or sign[0]):
        place, text = sign if age == ages[0] else ("", "as asked")
        reading.take_stack(stack, tool, place or str(reading.path), text)
    return age


def refuse_no_training(keys: Keys) -> None:
    """Refuse a file whose job ends without a step of training.

    Raises:
        NotModelledError: ``do_train`` is false, or only a prediction is asked for.
    """
    train, predict = keys.flag("do_train"), keys.flag("do_predict")
    if train is False or (predict and not train):
        name = "do_predict" if train is None else "do_train"
        raise keys.trains_nothing(name, f"{show(keys.get(name))}: this file does not train")


def first_held(keys: Keys, names: Iterable[str]) -> str | None:
    """The first of these keys that the file gives, as a sign of its age."""
    return next((name for name in names if keys.has(name)), None)
