"""Units of FSDP: whole layers, or the feed-forward part of each,
beside which all that is left belongs to the root.

Every module of the classes that are named is a unit, and so are leaf modules with trained weights beside
adapters.  A unit that a checkpoint runs again after its backward has begun is left alone.
Source: torch 2.13 distributed/fsdp/wrap.py transformer_auto_wrap_policy, _runtime_utils.py _pre_forward;
peft 0.21 utils/other.py fsdp_auto_wrap_policy.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from planner.domain.stack import Stack
from planner.domain.vision import TowerSpec
from planner.program.engines.groups import Gradient, Sizes, part_of
from planner.program.job import Job
from planner.program.ops.tensors import Mark, Moment, PartStage
from planner.program.parameters import Weight
from planner.program.request_stream import Instance

_PART, _EXPERTS = ("mlp",), ("mlp", "experts")
"""Modules inside of a layer, as :mod:`planner.program.layers.feed_forward` enters them."""
INNER = " inner"
"""What the name of a unit inside of a layer ends with."""
Path = tuple[str, ...]
PASSES = ("before_forward", "after_forward", "before_backward", "after_backward")


def wraps_tower(vision: TowerSpec, stack: Stack) -> bool:
    """Whether layers of a tower are units of FSDP, as those of the language model.

    Where nothing names classes, all are taken that Transformers lists (``_no_split_modules``).  A list with a
    class that the model lacks stops the job, so that a job which starts has named others.
    Source: transformers 5.23 modeling_utils.py post_init; accelerate 1.15 utils/dataclasses.py
    set_auto_wrap_policy; peft 0.21 utils/other.py fsdp_auto_wrap_policy.  hiyouga/LLaMA-Factory ff6d4d12e
    src/llamafactory/v1/plugins/trainer_plugins/distributed/fsdp2.py get_transformer_layer_cls: what is first
    in any list of ``layers`` or ``blocks``.
    """
    if stack.fsdp2_units == "ends_in_root":
        return True
    return stack.tower_units == "layers" or (stack.tower_units == "as_listed" and vision.listed)


class Units:
    """Which unit a parameter belongs to.  ``path``: the module of a layer that is a unit; empty for none.

    Experts that are divided over GPUs are a unit inside of that of their layer.
    Source: torchtitan e347b1e5e models/llama4/infra/parallelize.py apply_fsdp.
    """

    def __init__(self, job: Job) -> None:
        experts = job.model.expert_parts > 1
        self.path = _EXPERTS if experts else _PART if job.stack.fsdp_units == "feed_forward" else ()
        self._nested = experts
        self._tower_in_root = job.model.vision is not None and not wraps_tower(job.model.vision, job.stack)
        self._inner = {
            linear.name
            for group in job.model.groups
            for linear in group.block.linears
            if (linear.group == "expert" if experts else not linear.mixes_tokens)
        }

    @property
    def inside(self) -> bool:
        """Whether units are parts of layers."""
        return bool(self.path)

    def of(self, weight: Weight) -> str:
        """The name of a parameter's unit; empty for the root's."""
        layer = part_of(weight)
        if self._tower_in_root and layer.startswith("vision "):
            return ""
        if not (layer and self.inside):
            return layer
        if weight.name.split()[2] in self._inner and (weight.stacked or not self._nested):
            return layer + INNER
        return layer if self._nested else ""


def pieces(part: Instance, stage: PartStage, path: Path) -> Iterator[tuple[array[int], Moment | None]]:
    """The events of a stage in pieces,
    with what happens behind each to the module ``path``, which is a unit: it is entered or left.
    """
    for events, mark in part.between_marks(stage, PASSES):
        own = mark is not None and part.template.modules[mark.number] == path
        yield events, mark.moment if mark is not None and own else None


def gradients_inside(sizes: Sizes, part: Instance, path: Path) -> tuple[list[Gradient], list[Gradient]]:
    """Gradients of the module ``path``, which is a unit, and those of the rest of the layer."""
    template = part.template
    inner = {
        mark.slot
        for marks in template.marks.values()
        for _, mark in marks
        if mark.moment == "gradient" and _is_inner(part, mark, path) and mark.slot is not None
    }
    slots = {part.slot(slot) for slot in inner}
    found: tuple[list[Gradient], list[Gradient]] = [], []
    for each in sizes.gradients_of(part):
        found[each.slot not in slots].append(each)
    return found


def _is_inner(part: Instance, mark: Mark, path: Path) -> bool:
    module = part.template.parameters[mark.number].module
    return part.template.modules[module][: len(path)] == path
