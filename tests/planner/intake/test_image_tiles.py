"""Squares and tokens of an image, counted by hand on small grids."""

from __future__ import annotations

import pytest

from planner.domain.vision import ImageRule
from planner.intake.image_tiles import bounded_tokens, filled_tokens, most_tiles, tiles_of

# Squares of 100 pixels, up to four of them; each gives ten tokens.
TILED = ImageRule("tiled", 10, side_pixels=100, tokens=10, max_tiles=4)
# Squares of 100 pixels have 10 x 10 patches; canvases of two squares in a row, in a column, and of four.
ANYRES = ImageRule("anyres", 10, side_pixels=100, tokens=100, canvases=((100, 200), (200, 100), (200, 200)))
FITTED = ImageRule("fitted", 10, side_pixels=100, tokens=10, canvases=((100, 200), (200, 100), (100, 100)))
# Tokens of 20 pixels, and no side above 100.
BOUNDED = ImageRule("bounded", 10, merge=2, side_pixels=100)
# Tokens of 20 pixels, scaled to at most 25 of them.
FILLED = ImageRule("filled", 10, merge=2, max_patches=100)


@pytest.mark.parametrize(
    ("width", "height", "tiles"),
    [
        (100, 100, 1),
        (200, 100, 3),
        (100, 200, 3),
        (300, 100, 4),
        (100, 400, 5),
        (900, 900, 5),
        (1000, 10, 5),
        (1, 1, 1),
    ],
)
def test_an_image_is_cut_into_the_grid_of_its_shape(width: int, height: int, tiles: int) -> None:
    """Two, three or four squares and one of the whole beside them; one square alone is the whole."""
    assert tiles_of(TILED, width, height) == (tiles, 10 * tiles)


def test_of_grids_of_one_shape_the_larger_needs_an_image_that_fills_half_of_it() -> None:
    """Two by two squares have 40,000 pixels."""
    assert tiles_of(TILED, 142, 142)[0] == 5
    assert tiles_of(TILED, 141, 141)[0] == 1


@pytest.mark.parametrize(
    ("width", "height", "tiles", "tokens"),
    [
        # 10 rows of 20 patches and 10 ends.
        (200, 100, 3, 100 + 10 * 20 + 10),
        (100, 200, 3, 100 + 20 * 10 + 20),
        (200, 200, 5, 100 + 20 * 20 + 20),
        # Five rows of patches on ten: pairs of empty ones are cut off, and the odd one stays.
        (200, 50, 3, 100 + 20 * 6 + 6),
    ],
)
def test_a_canvas_gives_tokens_where_the_image_is(width: int, height: int, tiles: int, tokens: int) -> None:
    """All squares of the canvas and the whole; rows that the image leaves empty are cut off on both sides."""
    assert tiles_of(ANYRES, width, height) == (tiles, tokens)


@pytest.mark.parametrize(
    ("width", "height", "tiles"),
    [
        (100, 100, 1),
        # Each canvas would enlarge it: the smallest does so as little as the others.
        (80, 80, 1),
        (150, 100, 3),
        (100, 150, 3),
        # Each would shrink it, all alike.
        (300, 300, 1),
        (400, 150, 3),
    ],
)
def test_a_canvas_that_changes_an_image_least(width: int, height: int, tiles: int) -> None:
    """All its squares and the whole give tokens; one square alone is the whole."""
    assert tiles_of(FITTED, width, height) == (tiles, 10 * tiles)


def test_a_square_has_the_tokens_of_its_rule() -> None:
    """Whatever the image."""
    assert tiles_of(ImageRule("square", 14, side_pixels=448, tokens=256), 7, 9000) == (1, 256)


@pytest.mark.parametrize(
    ("width", "height", "grid"),
    [
        (100, 100, (5, 5)),
        (20, 20, (1, 1)),
        (21, 1, (2, 1)),
        (200, 100, (5, 3)),
        (50, 1000, (1, 5)),
        (1, 1, (1, 1)),
    ],
)
def test_sides_become_whole_tokens(width: int, height: int, grid: tuple[int, int]) -> None:
    """A larger image is made smaller first: 200 x 100 becomes 100 x 50."""
    assert bounded_tokens(BOUNDED, width, height) == grid


def test_the_most_squares() -> None:
    """Of the largest canvas, or as many as a grid may have."""
    assert (most_tiles(TILED), most_tiles(ANYRES)) == (4, 4)


@pytest.mark.parametrize(
    ("width", "height", "tokens"),
    [
        (100, 100, 25),
        (7, 7, 25),
        (200, 100, 7 * 3),
        (3000, 100, 25),
        (100, 3000, 25),
        (2600, 100, 25),
        (900, 100, 15),
    ],
)
def test_an_image_is_scaled_to_a_number_of_tokens(width: int, height: int, tokens: int) -> None:
    """Sides are cut off to whole tokens; of a strip one row is left, no longer than all tokens."""
    assert filled_tokens(FILLED, width, height) == tokens
