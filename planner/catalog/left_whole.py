"""Modules that the quantiser of a checkpoint left as they were, by the names that its config gives them.

Source: transformers 5.23 quantizers/quantizers_utils.py should_convert_module: a name counts from the start
of a module's path to the end of one of its parts, or as the end of the path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from planner.domain.model import BlockGroup, BlockSpec, LinearSpec, ModelSpec
from planner.errors import NotModelledError, show

_PARTS = {
    "attention": "self_attn",
    "mixer": "mamba",
    "mlp": "mlp",
    "expert": "mlp.experts",
    "shared_expert": "mlp",
    "router": "mlp",
}
# Around the layers, where nothing is quantised; norms, which have no matrix; or towers, which a name reaches
# from the start of the path alone.
_OUTSIDE = re.compile(
    r"(?:\w+\.)*(?:lm_head|embed_out|output|embed_tokens|wte|\w*norm\w*|visual|vision\w*"
    r"|e_score_correction_bias|multi_modal\w*|modality_projection|mm_\w+|audio\w*|merger|projector)"
)
# Of a model that sees, from the start of a path.
_TOWER = re.compile(r"model\.(?:visual|vision_\w+)")
_PROJECTOR = re.compile(r"model\.(?:visual|visual\.merger|multi_modal_projector|vision_adapter)")
HEADS = ("lm_head", "embed_out", "output")
"""Names of a head, which Transformers' quantisers leave whole where nobody lists what to leave."""


def with_left_whole(spec: ModelSpec, names: Iterable[str], where: str) -> ModelSpec:
    """``spec`` with the matrices marked that ``names`` leave as they were.

    Raises:
        NotModelledError: a name that is no plain path of a matrix, of a layer or of a part of one.
    """
    names = tuple(dict.fromkeys(names))
    spec = with_tower_whole(spec, tower=_has(_TOWER, names), projectors=_has(_PROJECTOR, names))
    inside = [name for name in names if not _OUTSIDE.fullmatch(name)]
    if not inside:
        return spec
    layers = [_without(block, number, inside) for number, block in enumerate(_blocks(spec))]
    paths = {
        path
        for number, block in enumerate(layers)
        for linear in block.linears
        for path in (_path(linear, number),)
    }
    for name in inside:
        if not any(_covers(name, path) for path in paths):
            raise NotModelledError(
                f"{where}: '{show(name)}' is left unquantised, which is no matrix of the layers that is known"
            )
    groups = tuple(BlockGroup(len(list(same)), block) for block, same in groupby(layers))
    return replace(spec, groups=groups)


def left_whole_paths(spec: ModelSpec) -> tuple[str, ...]:
    """Where the matrices of layers lie that the quantiser of the checkpoint left as they were."""
    return tuple(
        _path(linear, number)
        for number, block in enumerate(_blocks(spec))
        for linear in block.linears
        if linear.left_whole
    )


def _has(pattern: re.Pattern[str], names: Iterable[str]) -> bool:
    return any(pattern.fullmatch(name) for name in names)


def with_tower_whole(spec: ModelSpec, *, tower: bool = True, projectors: bool = True) -> ModelSpec:
    """``spec`` with every matrix of its tower, and of its projector, marked as left whole."""
    vision = spec.vision
    if vision is None or not (tower or projectors):
        return spec
    if tower:
        vision = replace(
            vision,
            entry=_whole(vision.entry),
            groups=_all_whole(vision.groups),
            stacked=_all_whole(vision.stacked),
        )
    if projectors:
        vision = replace(vision, projectors=_all_whole(vision.projectors))
    return replace(spec, vision=vision)


def packs_tower(spec: ModelSpec) -> bool:
    """Whether the quantiser of a checkpoint left a matrix of the tower or projector to be packed."""
    vision = spec.vision
    if vision is None:
        return False
    groups = (*vision.groups, *vision.stacked, *vision.projectors)
    return not all(linear.left_whole for group in groups for linear in group.block.linears)


def _all_whole(groups: tuple[BlockGroup, ...]) -> tuple[BlockGroup, ...]:
    return tuple(replace(each, block=_whole(each.block)) for each in groups)


def _whole(block: BlockSpec) -> BlockSpec:
    return replace(block, linears=tuple(replace(each, left_whole=True) for each in block.linears))


def _blocks(spec: ModelSpec) -> Iterator[BlockSpec]:
    for group in spec.groups:
        yield from (group.block,) * group.count


def _without(block: BlockSpec, number: int, names: list[str]) -> BlockSpec:
    linears = tuple(
        replace(linear, left_whole=True)
        if any(_covers(name, _path(linear, number)) for name in names)
        else linear
        for linear in block.linears
    )
    return replace(block, linears=linears)


def _path(linear: LinearSpec, number: int) -> str:
    """Where Llama and those built like it have a matrix."""
    return f"model.layers.{number}.{_PARTS.get(linear.group, linear.group)}.{linear.name}"


def _covers(name: str, path: str) -> bool:
    return path == name or path.startswith(f"{name}.") or path.endswith(name)
