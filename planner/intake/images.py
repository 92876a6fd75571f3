"""Images of a sample: what was given about them, and what the model's processor makes of each."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from planner.domain.model import BlockGroup, BlockSpec, ModelSpec
from planner.domain.origin import is_tool_default
from planner.domain.stack import Stack
from planner.domain.vision import FROZEN_PARTS, FrozenPart, ImageRule, Images, TowerSpec
from planner.errors import NotModelledError, UsageError, show
from planner.intake.given.ledger import Ledger
from planner.intake.image_tiles import bounded_tokens, filled_tokens, most_tiles, tiles_of

_SIZE = re.compile(r"([1-9][0-9]{0,4})\s*[x*]\s*([1-9][0-9]{0,4})")
_MOST_UNEQUAL = 200
"""Sides of an image that differ more are refused by Qwen's processor,
as in transformers 5.23 smart_resize.
"""


def loaded_part(ledger: Ledger, model: ModelSpec, stack: Stack) -> ModelSpec:
    """What is loaded of a checkpoint whose text part Transformers also loads by itself;
    other models as they are.
    """
    if model.vision is None or not model.text_class:
        return model
    scores = ledger.request.get("task") in ("reward", "classify")
    whole_for_text = model.loads_whole and stack.model_code == "transformers-5"
    if _sees(ledger, model) or stack.loads_tower or scores or whole_for_text:
        whole = "AutoModelForCausalLM" if whole_for_text else "AutoModelForImageTextToText"
        whole = "AutoModelForSequenceClassification" if scores else whole
        ledger.remark("model", f"with its vision tower, as {whole} loads it")
        return model
    text = model.text_part()
    ledger.remark("model", f"without {text.omits}: AutoModelForCausalLM loads {text.text_class}")
    return text


def _sees(ledger: Ledger, model: ModelSpec) -> bool:
    """Whether the job has images; a tool's default says nothing of models that are mostly trained on text."""
    number = ledger.request.get("images_per_sample")
    if number is not None and not _is_silent(ledger, model, "images_per_sample"):
        return bool(number)
    return ledger.is_given("image_size") and not _is_silent(ledger, model, "image_size")


def _is_silent(ledger: Ledger, model: ModelSpec, name: str) -> bool:
    given = ledger.request.values.get(name)
    return given is None or (bool(model.text_class) and is_tool_default(given.origin))


def resolve_images(ledger: Ledger, model: ModelSpec) -> Images | None:
    """The images of each sequence; ``None`` for text alone.

    Raises:
        UsageError: images of a model that sees none, or without a size where that decides.
        NotModelledError: a file that trains with images, of a model whose tower is not in the catalog.
    """
    said_size = ledger.is_given("image_size")
    if model.vision is None:
        if not model.text_class or _sees(ledger, model):
            _refuse_images(ledger, model)
        return None
    note = "text alone: the vision tower is loaded and does not run; say --images-per-sample and --image-size"
    if model.text_class and not _sees(ledger, model):
        ledger.enter("images_per_sample", 0, "assumed", note)
        return None
    implied = said_size and not is_tool_default(ledger.request.values["image_size"].origin)
    number: int = ledger.choose("images_per_sample", int(implied), "assumed", "" if implied else note)
    if not number:
        return None
    if model.vision.code == "counted":
        # A rule refuses them, behind those about errors of the software.
        return Images(number, 0, 0, 0, 0, 0)
    rule = model.vision.rule
    if rule.kind == "square":
        size = (rule.side_pixels, rule.side_pixels)
        ledger.choose(
            "image_size", f"{size[0]}x{size[1]}", "catalog", "the processor makes every image this large"
        )
        return images_of(rule, model.vision, number, size)
    largest = ""
    if not said_size:
        if _is_asked(ledger, "images_per_sample"):
            raise UsageError(
                f"missing image_size: {model.id} makes more tokens of larger images; such as "
                "--image-size 1024x768"
            )
        largest = _largest(model.vision, ledger.request.get("seq") or 0)
    given: str = ledger.choose(
        "image_size", largest, "assumed", "the largest square whose tokens fit into the sequence"
    )
    return images_of(rule, model.vision, number, parse_size(given))


def _refuse_images(ledger: Ledger, model: ModelSpec) -> None:
    """Refuse what was given about images of a model that sees none."""
    given = ledger.request.values.get("images_per_sample")
    if given is not None and given.note and not is_tool_default(given.origin):
        raise NotModelledError(
            f"{given.origin}: training with images, for which the catalog knows no vision tower of {model.id}"
        )
    if _is_asked(ledger, "images_per_sample") or _is_asked(ledger, "image_size"):
        raise UsageError(f"{model.id} has no vision tower: leave out --images-per-sample and --image-size")


def _largest(tower: TowerSpec, seq_len: int) -> str:
    """The largest square image whose tokens fit into a sequence, within the processor's limits."""
    rule = tower.rule
    if rule.kind == "resized":
        unit = rule.patch_pixels * rule.merge
        side = unit * max(1, min(math.isqrt(seq_len), math.isqrt(rule.max_pixels) // unit))
        return f"{side}x{side}"
    if rule.kind == "filled":
        side = rule.patch_pixels * math.isqrt(rule.max_patches) // rule.merge * rule.merge
        return f"{side}x{side}"
    if rule.kind == "bounded":
        # As many rows as columns, each row with its end.
        unit, row = rule.patch_pixels * rule.merge, (math.isqrt(4 * seq_len + 1) - 1) // 2
        side = unit * max(1, min(row, rule.side_pixels // unit))
        return f"{side}x{side}"
    sides = [number * rule.side_pixels for number in range(math.isqrt(most_tiles(rule)), 0, -1)]
    fits = (side for side in sides if images_of(rule, tower, 1, (side, side)).tokens <= seq_len)
    side = next(fits, sides[-1])
    return f"{side}x{side}"


def _is_asked(ledger: Ledger, name: str) -> bool:
    """Whether the user gave it: a tool's default, or what a file's reader took (which notes it),
    is not that.
    """
    given = ledger.request.values.get(name)
    return given is not None and not is_tool_default(given.origin) and not given.note


def parse_size(text: str) -> tuple[int, int]:
    """Width and height of ``1024x768``.

    Raises:
        UsageError: not written so.
    """
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None:
        raise UsageError(
            f"image_size must be width x height in pixels, such as 1024x768, but it is '{show(text)}'"
        )
    return int(match[1]), int(match[2])


def images_of(rule: ImageRule, tower: TowerSpec, number: int, size: tuple[int, int]) -> Images:
    """``number`` images of this size as the processor hands them over.

    Raises:
        UsageError: a shape that it refuses.
    """
    width, height = size
    if rule.kind == "bounded":
        columns, rows = bounded_tokens(rule, width, height)
        if not columns * rows:
            raise UsageError(
                f"image_size {width}x{height}: the processor leaves no pixel of its shorter side"
            )
        patches, tokens = columns * rows * rule.merge**2, (columns + int(rule.ends_rows)) * rows
        return Images(number, width, height, patches, tokens, patches * tower.patch.in_features)
    if rule.kind == "filled":
        rows = rule.max_patches // (rule.merge**2 if rule.joined else 1)
        tokens = filled_tokens(rule, width, height)
        return Images(number, width, height, rows, tokens, rows * tower.patch.in_features)
    if rule.kind != "resized":
        tiles, tokens = tiles_of(rule, width, height)
        patches, numbers = tiles * (rule.grid + rule.extra_patches), tiles * 3 * rule.side_pixels**2
        return Images(number, width, height, patches, tokens, numbers, tiles, rule.tokens)
    if max(size) > _MOST_UNEQUAL * min(size):
        raise UsageError(
            f"image_size {width}x{height}: the processor refuses sides of which one is over 200 "
            "times the other"
        )
    columns, rows = (side // rule.patch_pixels for side in resized(rule, width, height))
    patches = columns * rows
    return Images(number, width, height, patches, patches // rule.merge**2, patches * tower.patch.in_features)


def resized(rule: ImageRule, width: int, height: int) -> tuple[int, int]:
    """Width and height after the processor: multiples of a token's side, within its limits of pixels.

    Source: transformers 5.23 models/qwen2_vl/image_processing_qwen2_vl.py smart_resize.
    """
    unit = rule.patch_pixels * rule.merge
    new_width, new_height = (round(side / unit) * unit for side in (width, height))
    if new_width * new_height > rule.max_pixels:
        shrink = math.sqrt(width * height / rule.max_pixels)
        new_width, new_height = (
            max(unit, math.floor(side / shrink / unit) * unit) for side in (width, height)
        )
    elif new_width * new_height < rule.min_pixels:
        grow = math.sqrt(rule.min_pixels / (width * height))
        new_width, new_height = (math.ceil(side * grow / unit) * unit for side in (width, height))
    return new_width, new_height


def resolve_frozen(ledger: Ledger, model: ModelSpec) -> tuple[FrozenPart, ...]:
    """The parts of a vision-language model that are not trained.

    Raises:
        UsageError: a part that there is not, or all of them.
    """
    is_text_part = model.vision is None and bool(model.text_class)
    if (
        not ledger.is_given("freeze")
        or is_text_part
        or (model.vision is None and not _is_asked(ledger, "freeze"))
    ):
        return ()
    given: tuple[str, ...] = ledger.choose("freeze", (), "assumed")
    unknown = [name for name in given if name not in FROZEN_PARTS]
    if unknown:
        raise UsageError(f"freeze must be among {', '.join(FROZEN_PARTS)}, but it is '{show(unknown[0])}'")
    if model.vision is None:
        raise UsageError(
            f"{model.id} has no vision tower: --train-layers says which of its layers are trained"
        )
    if len(set(given)) == len(FROZEN_PARTS):
        raise UsageError("freeze names every part of the model, so that nothing is trained")
    return tuple(name for name in FROZEN_PARTS if name in given)


def without_adapters(model: ModelSpec, frozen: tuple[FrozenPart, ...]) -> ModelSpec:
    """``model`` whose frozen parts PEFT's targets do not reach."""
    if not frozen or model.vision is None:
        return model
    vision = model.vision
    if "vision_tower" in frozen:
        around, layers = _unreached_block(vision.entry), _unreached(vision.groups)
        vision = replace(vision, entry=around, groups=layers, stacked=_unreached(vision.stacked))
    if "projector" in frozen:
        vision = replace(vision, projectors=_unreached(vision.projectors))
    groups = _unreached(model.groups) if "language_model" in frozen else model.groups
    return replace(model, vision=vision, groups=groups)


def _unreached(groups: tuple[BlockGroup, ...]) -> tuple[BlockGroup, ...]:
    return tuple(replace(group, block=_unreached_block(group.block)) for group in groups)


def _unreached_block(block: BlockSpec) -> BlockSpec:
    linears = tuple(replace(linear, adaptable=False, legacy_names=()) for linear in block.linears)
    return replace(block, linears=linears)
