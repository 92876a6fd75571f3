"""Which layers are trained, as people write it."""

from __future__ import annotations

import pytest

from planner.errors import UsageError
from planner.intake.train_layers import Drawn, drawn, missing_layers, trained_parts


@pytest.mark.parametrize(
    ("selectors", "layers"),
    [
        (("last:2",), {6, 7}),
        (("first:3",), {0, 1, 2}),
        (("spread:2",), {3, 7}),
        (("spread:8",), {0, 1, 2, 3, 4, 5, 6, 7}),
        (("2-4",), {2, 3, 4}),
        (("5",), {5}),
        (("0", "5", "4-5"), {0, 4, 5}),
        (("drawn:3@20",), {5, 6, 7}),
        (("6-99",), {6, 7}),
        (("last:99",), {0, 1, 2, 3, 4, 5, 6, 7}),
        ((), set()),
    ],
)
def test_each_form_names_layers_of_eight(selectors: tuple[str, ...], layers: set[int]) -> None:
    """Numbers begin at 0, both ends of a range are in it, and layers that are not there mean nothing."""
    found = trained_parts(selectors, 8, tied=False)
    assert (found.layers, found.ends, found.mlp_only) == (layers, set(), set())


def test_a_part_of_a_layer_is_trained_where_the_whole_is_not() -> None:
    """Layer 3 is named whole, too."""
    found = trained_parts(("2-4:mlp", "3", "7-9:mlp"), 8, tied=False)
    assert (found.layers, found.mlp_only) == ({2, 3, 4, 7}, {2, 4, 7})


@pytest.mark.parametrize(
    ("selectors", "tied", "ends"),
    [
        (("norm",), True, {"norm"}),
        (("embed",), False, {"embed"}),
        (("embed",), True, {"embed", "head"}),
        (("head", "norm"), True, {"embed", "head", "norm"}),
    ],
)
def test_a_head_that_is_the_table_is_trained_with_it(
    selectors: tuple[str, ...], tied: bool, ends: set[str]
) -> None:
    """One tensor has one fate."""
    assert trained_parts(selectors, 8, tied=tied).ends == ends


@pytest.mark.parametrize(
    "selector",
    ["", "last", "last:0", "last:-1", "4-2", "all", "mlp", "1-", "drawn:2", "drawn:2@0", "head:mlp", "1:MLP"],
)
def test_what_is_no_form_is_refused_with_all_of_them(selector: str) -> None:
    """An empty range is none either."""
    with pytest.raises(UsageError, match=r"train_layers must be among last:8, .* but it is"):
        trained_parts((selector,), 8, tied=False)


def test_rows_must_be_equal() -> None:
    """Eight layers have no three rows of the same length."""
    with pytest.raises(UsageError, match="spread:3: 8 layers cannot be divided into 3 equal rows"):
        trained_parts(("spread:3",), 8, tied=False)


def test_layers_that_are_not_there_are_found_missing() -> None:
    """The last one has number 7."""
    asked = ("7", "8", "0-7", "0-8", "last:8", "last:9", "first:9", "norm", "drawn:9@5", "8:mlp")
    assert missing_layers(asked, 8) == ("8", "0-8", "last:9", "first:9", "drawn:9@5", "8:mlp")


def test_all_layers_are_drawn_after_some_time() -> None:
    """Half of eight each time: after three draws one of them is left on average, 8 / 2^3."""
    assert drawn(("norm", "drawn:4@20")) == Drawn(4, 20)
    assert drawn(("last:4",)) is None
    assert Drawn(4, 20).steps_to_all(8) == 60
    assert Drawn(8, 20).steps_to_all(8) == 0
    assert Drawn(1, 1).steps_to_all(2) == 1
