"""Images that a processor cuts into squares, or whose rows end with a token of their own: what tokens they
give.

Source: transformers 5.23 models/got_ocr2/image_processing_got_ocr2.py get_optimal_tiled_canvas, which
InternVL's processor calls (``crop_to_patches`` in models/internvl/processing_internvl.py);
image_processing_utils.py select_best_resolution; models/llava_next/processing_llava_next.py
_get_number_of_features; models/pixtral/image_processing_pixtral.py get_resize_output_image_size,
models/pixtral/processing_pixtral.py;
models/llama4/image_processing_llama4.py get_best_fit, whose separators between tiles are text here.
"""

from __future__ import annotations

import math

from planner.domain.vision import ImageRule

_ROUNDED_DIGITS = 7
"""To which a side is rounded before it is cut off to a whole number of patches."""


def tiles_of(rule: ImageRule, width: int, height: int) -> tuple[int, int]:
    """Squares that the tower gets of one image of these pixels, and the image's tokens in the sequence."""
    if rule.kind == "tiled":
        columns, rows = _grid(rule, width, height)
        tiles = columns * rows + int(columns * rows > 1)
        return tiles, tiles * rule.tokens
    if rule.kind == "anyres":
        canvas = _canvas(rule, width, height)
        side = rule.side_pixels
        tiles = 1 + math.ceil(canvas[0] / side) * math.ceil(canvas[1] / side)
        return tiles, rule.tokens + _line_tokens(rule, canvas, width, height)
    if rule.kind == "fitted":
        canvas = _fitted_canvas(rule, width, height)
        tiles = canvas[0] * canvas[1] // rule.side_pixels**2
        tiles += int(tiles > 1)
        return tiles, tiles * rule.tokens
    return 1, rule.tokens


def bounded_tokens(rule: ImageRule, width: int, height: int) -> tuple[int, int]:
    """Columns and rows of tokens, without the ends of rows, which are text to the tower."""
    ratio = max(width / rule.side_pixels, height / rule.side_pixels)
    if ratio > 1:
        width, height = math.floor(width / ratio), math.floor(height / ratio)
    unit = rule.patch_pixels * rule.merge
    return (width - 1) // unit + 1, (height - 1) // unit + 1


def filled_tokens(rule: ImageRule, width: int, height: int) -> int:
    """Tokens of an image that is scaled to a number of patches.

    Source: transformers 5.23 models/gemma4/image_processing_gemma4.py get_aspect_ratio_preserving_size.
    """
    unit, area = rule.patch_pixels * rule.merge, rule.max_patches * rule.patch_pixels**2
    factor = math.sqrt(area / (width * height))
    columns, rows = math.floor(factor * width / unit), math.floor(factor * height / unit)
    longest = rule.max_patches // rule.merge**2
    if not rows:
        return min(width // height, longest) if columns else 0
    return columns * rows if columns else min(height // width, longest)


def most_tiles(rule: ImageRule) -> int:
    """The most squares that an image is cut into, without that of the whole."""
    side = rule.side_pixels
    return max([rule.max_tiles, *((height // side) * (width // side) for height, width in rule.canvases)])


def _grid(rule: ImageRule, width: int, height: int) -> tuple[int, int]:
    """Columns and rows whose shape is nearest to that of the image.

    Of several the last one of which the image covers more than half; they are tried from few to many tiles.
    """
    sides = range(1, rule.max_tiles + 1)
    known = [(columns, rows) for columns in sides for rows in sides if columns * rows <= rule.max_tiles]
    known.sort(key=lambda grid: grid[0] * grid[1])
    shape, best, least = width / height, (1, 1), math.inf
    for columns, rows in known:
        differs = abs(shape - columns / rows)
        covered = width * height > 0.5 * rule.side_pixels**2 * columns * rows
        if differs < least or (differs == least and covered):
            best, least = (columns, rows), differs
    return best


def _canvas(rule: ImageRule, width: int, height: int) -> tuple[int, int]:
    """Height and width of the canvas that shows most of the image, and of several the smallest."""

    def rank(canvas: tuple[int, int]) -> tuple[int, int]:
        scale = min(canvas[1] / width, canvas[0] / height)
        shown = min(int(width * scale) * int(height * scale), width * height)
        return shown, shown - canvas[0] * canvas[1]

    return max(rule.canvases, key=rank)


def _fitted_canvas(rule: ImageRule, width: int, height: int) -> tuple[int, int]:
    """Height and width of the canvas that enlarges the image least, else shrinks it least, and of several the
    smallest.
    """
    scales = {canvas: min(canvas[1] / width, canvas[0] / height) for canvas in rule.canvases}
    enlarging = [scale for scale in scales.values() if scale >= 1]
    chosen = min(enlarging) if enlarging else max(scales.values())
    return min((canvas for canvas in scales if scales[canvas] == chosen), key=math.prod)


def _line_tokens(rule: ImageRule, canvas: tuple[int, int], width: int, height: int) -> int:
    """Rows of patches that the image covers on its canvas, each with one token for its end."""
    side = rule.side_pixels // rule.patch_pixels
    rows, columns = (side * (pixels // rule.side_pixels) for pixels in canvas)
    if width / height > columns / rows:
        rows -= (rows - int(round(height * (columns / width), _ROUNDED_DIGITS))) // 2 * 2
    else:
        columns -= (columns - int(round(width * (rows / height), _ROUNDED_DIGITS))) // 2 * 2
    return rows * columns + rows
