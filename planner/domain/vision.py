"""What sees: the tower of a vision-language model, its projector, and the images of a sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from planner.domain.model import BlockGroup, BlockSpec, LinearSpec, NormSpec

TowerCode = Literal[
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "paddleocr_vl",
    "llava",
    "llava_next",
    "gemma3",
    "paligemma",
    "internvl",
    "pixtral",
    "mistral3",
    "llama4",
    "glm4v",
    "forward",
    "counted",
]
"""Whose modelling code runs around the layers of the tower; ``forward``: its matrices are known, so that it
can run where nothing of it needs a gradient; ``counted``: only its weights are.
"""
FrozenPart = Literal["vision_tower", "projector", "language_model"]
FROZEN_PARTS: tuple[FrozenPart, ...] = ("vision_tower", "projector", "language_model")


@dataclass(frozen=True, slots=True)
class ImageRule:
    """How the processor cuts an image: ``patch_pixels`` is the side of a patch,
    ``merge`` patches make the side of a token.

    ``resized``: both sides become multiples of ``patch_pixels x merge``, and their product lies within
    ``min_pixels`` and ``max_pixels``. ``square``: every image becomes one of ``side_pixels``, of ``tokens``
    tokens. ``tiled``: it is cut into up to ``max_tiles`` of these, and one of the whole is added to several.
    ``anyres``: it is fitted into the best of ``canvases`` (height and width), which is cut into such squares,
    and one of the whole is added; what the canvas has around the image gives no tokens, and each row of
    patches ends with one more. ``fitted``: into the one that enlarges it least, else shrinks it least; all of
    its squares give tokens, and that of the whole where there are several. ``bounded``: it is made smaller
    until no side is above ``side_pixels``, sides become whole tokens, and where ``ends_rows`` each row of
    tokens ends with one more. ``filled``: it is made smaller or larger until it has as nearly ``max_patches``
    as whole tokens allow, and rows of nothing fill what is left: the tower gets so many of each image; where
    patches are ``joined`` before, so many tokens. ``frames``: pictures that a patch holds, one being
    repeated. ``extra_patches``: what the tower adds to each square (a class token). ``pixel_bytes``: of each
    number that the processor hands over.
    """

    kind: Literal["resized", "square", "tiled", "anyres", "fitted", "bounded", "filled"]
    patch_pixels: int
    merge: int = 1
    frames: int = 1
    min_pixels: int = 0
    max_pixels: int = 0
    side_pixels: int = 0
    tokens: int = 0
    extra_patches: int = 0
    max_tiles: int = 1
    canvases: tuple[tuple[int, int], ...] = ()
    pixel_bytes: int = 4
    max_patches: int = 0
    joined: bool = False
    ends_rows: bool = True

    @property
    def grid(self) -> int:
        """Patches of a square."""
        return (self.side_pixels // self.patch_pixels) ** 2

    @property
    def patch_share(self) -> float:
        """Patches among what the tower computes of a square; 1 where it adds nothing."""
        return self.grid / (self.grid + self.extra_patches) if self.extra_patches else 1.0


@dataclass(frozen=True, slots=True)
class Images:
    """The images of each sample, all alike: ``per_sample`` of them, each of ``width`` x ``height`` pixels.

    ``patches``: rows that the tower computes for one image; ``tokens``: its tokens in the sequence;
    ``numbers``: its numbers in ``pixel_values``.  ``tiles``: squares that it is cut into, each of which the
    tower sees by itself, that of the whole among them; ``tile_tokens``: what each gives.
    """

    per_sample: int
    width: int
    height: int
    patches: int
    tokens: int
    numbers: int
    tiles: int = 1
    tile_tokens: int = 0

    @property
    def tile_patches(self) -> int:
        """Rows of one tile."""
        return self.patches // self.tiles


@dataclass(frozen=True, slots=True)
class TowerSpec:
    """A vision tower and what leads from it to the language model.

    ``entry``: the convolution over patches as a matrix, positions and a class token as ``extra_params``,
    norms before the layers.  ``groups``: the layers.  ``projectors``: what makes tokens of patches; the first
    one behind the last layer.  ``token_share``: tokens for each patch.  ``behind``: norms behind the layers.
    ``has_hook``: Transformers finds the input of the tower, so that it can require a gradient.
    ``deepstack``: numbers of the layers whose output blocks of their own (``stacked``) turn into what is
    added behind the first layers of the language model; without numbers one such block makes tokens of
    patches in front of the projector (Llama 4).  ``n_unread``: last layers that run though nothing
    reads what they return.  ``listed``: the classes that Transformers lists for the model
    (``_no_split_modules``) are all there, its own among them.  ``n_seeing``: how many groups of layers see,
    before those that hear.
    """

    code: TowerCode
    width: int
    rule: ImageRule
    entry: BlockSpec
    groups: tuple[BlockGroup, ...]
    projectors: tuple[BlockGroup, ...]
    token_share: float
    has_hook: bool = True
    deepstack: tuple[int, ...] = ()
    stacked: tuple[BlockGroup, ...] = ()
    behind: tuple[NormSpec, ...] = ()
    n_unread: int = 0
    listed: bool = False
    n_seeing: int = 0

    @property
    def n_layers(self) -> int:
        """Layers that are there."""
        return sum(group.count for group in self.groups)

    @property
    def patch(self) -> LinearSpec:
        """The convolution over patches."""
        return self.entry.linears[0]

    @property
    def tower_param_count(self) -> int:
        """Parameters of the tower without its projector."""
        layers = sum(group.count * group.block.param_count for group in (*self.groups, *self.stacked))
        return self.entry.param_count + layers + sum(norm.param_count for norm in self.behind)

    @property
    def projector_param_count(self) -> int:
        """Parameters of the projector."""
        return sum(group.count * group.block.param_count for group in self.projectors)

    @property
    def param_count(self) -> int:
        """All parameters."""
        return self.tower_param_count + self.projector_param_count

    def blocks(self) -> Iterator[tuple[BlockSpec, int]]:
        """Every kind of block with how many of it there are: entry, layers, what is stacked, projectors."""
        yield self.entry, 1
        yield from ((group.block, group.count) for group in (*self.groups, *self.stacked, *self.projectors))
