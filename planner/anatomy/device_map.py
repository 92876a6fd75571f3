"""Which GPU has which part of a model that ``device_map="auto"`` spreads over several in one process.

Source: transformers 5.23 integrations/accelerate.py get_balanced_memory, infer_auto_device_map,
compute_module_sizes, quantizers/base.py param_element_size and quantizer_bnb_4bit.py adjust_max_memory;
the same of 5.0.0 and 5.17.0; accelerate 1.15 utils/modeling.py get_max_layer_size.
Ignored: that 5.0 adds what a card has cached to its limit, which is 2 MiB.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.anatomy.packing import packed_bytes
from planner.anatomy.quantized_matrices import as_built, is_quantizable
from planner.domain.model import BlockSpec, LinearSpec, ModelSpec
from planner.domain.recipes.parallel import HEAD, NORM, TABLE, End
from planner.domain.recipes.recipe import BITSANDBYTES, DTYPE_BYTES
from planner.domain.scenario import Scenario

_ROOM = 1.25
"""Times a module, which every GPU but the last one gets beyond its even share."""
_PACKED_SHARE = 0.9
"""Of each limit, where matrices are packed while they are loaded."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one GPU has: ``layers`` from one number up to another, and which ends of the model."""

    layers: tuple[int, int]
    ends: tuple[End, ...]


@dataclass(slots=True)
class _Module:
    """A module of the model; ``whole``: it is not taken apart.  ``tied``: a part that goes where it goes."""

    name: str
    n_bytes: float
    children: tuple[_Module, ...] = ()
    whole: bool = False
    tied: str = ""

    def pieces(self) -> Iterator[_Module]:
        """The modules that are never taken apart."""
        if self.whole or not self.children:
            yield self
        for child in () if self.whole else self.children:
            yield from child.pieces()


def shares_of(scenario: Scenario) -> tuple[Share, ...] | None:
    """The share of each GPU, in order; ``None`` where the last of them overflows, so that the rest would go
    to host RAM or disk.

    Ignored: what the CUDA context takes of the GPUs' limits, which decides where weights nearly fill them.
    """
    n_gpus, sizes = scenario.recipe.parallel.pipeline, _Sizes(scenario)
    modules = _modules_of(sizes, as_built(scenario.model, scenario.stack))
    visible = scenario.hardware.gpu.visible_memory_bytes
    limits = _limits(sizes, modules, n_gpus, math.inf if visible is None else visible)
    places = _placed(modules, limits)
    return None if places is None else tuple(_share(places, number) for number in range(n_gpus))


class _Sizes:
    """Bytes of modules as the library counts them, in their loaded dtype."""

    def __init__(self, scenario: Scenario) -> None:
        recipe, self.stack = scenario.recipe, scenario.stack
        self.numerics = recipe.numerics
        self.width = DTYPE_BYTES[self.numerics.load_dtype]
        self.packs = self.numerics.quantization in BITSANDBYTES

    def plain(self, count: float) -> float:
        """Of parameters that are not packed."""
        return count * self.width

    def linear(self, spec: LinearSpec) -> float:
        """Of one matrix, with its bias."""
        if self.packs and is_quantizable(spec, self.stack.passes_over):
            return packed_bytes(self.numerics, spec.weight_count) + self.plain(spec.bias_count)
        return self.plain(spec.weight_count + spec.bias_count)

    def block(self, block: BlockSpec) -> float:
        """Of one layer."""
        norms = sum(norm.param_count for norm in block.norms)
        return sum(map(self.linear, block.linears)) + self.plain(norms + block.extra_params)


def _modules_of(sizes: _Sizes, model: ModelSpec) -> list[_Module]:
    """The top modules, in the order in which the model makes them."""
    blocks = [group.block for group in model.groups for _ in range(group.count)]
    layers = [
        _Module(f"layer {number}", sizes.block(block), whole=True) for number, block in enumerate(blocks)
    ]
    table = _Module(TABLE, sizes.plain(model.token_embedding.param_count), tied=HEAD if model.tied else "")
    norm = _Module(NORM, sizes.plain(sum(each.param_count for each in model.final_norms)))
    # Two buffers of frequencies in fp32, each of half of a head.
    rotary = _Module("rotary", 4.0 * blocks[0].attention.head_dim)
    inside = [table, _of_all("layers", layers), norm, rotary]
    head = 0.0 if model.tied else sizes.plain(model.head.weight_count + model.head.bias_count)
    return [_of_all("model", inside), _Module(HEAD, head)]


def _of_all(name: str, children: Sequence[_Module]) -> _Module:
    return _Module(name, sum(each.n_bytes for each in children), tuple(children))


def _limits(sizes: _Sizes, modules: list[_Module], n_gpus: int, gpu_bytes: float) -> list[float]:
    """Bytes that each GPU may get of the model."""
    pieces = [piece for module in modules for piece in module.pieces()]
    room = max(piece.n_bytes for piece in pieces)
    if sizes.stack.device_map == "layer":
        room = next(piece.n_bytes for piece in pieces if piece.whole)
    even = sum(module.n_bytes for module in modules) // n_gpus + int(_ROOM * room)
    limits = [*[min(even, gpu_bytes)] * (n_gpus - 1), gpu_bytes]
    return [limit * _PACKED_SHARE for limit in limits] if sizes.packs else limits


def _placed(modules: list[_Module], limits: Sequence[float]) -> dict[str, int] | None:
    """The GPU of each piece: one GPU is filled after the other.

    The first one keeps room for the largest piece that is left, as if it had to take pieces from the host.
    """
    waiting, places, used = list(modules), dict[str, int](), [0.0] * len(limits)
    gpu, most = 0, _Largest(waiting)
    while waiting:
        module = waiting.pop(0)
        most.without(module, waiting)
        limit = limits[gpu] - (most.n_bytes if gpu == 0 else 0)
        if used[gpu] + module.n_bytes <= limit:
            used[gpu] += module.n_bytes
            places.update({piece.name: gpu for piece in module.pieces()})
            for tied in [piece.tied for piece in module.pieces() if piece.tied]:
                places[tied] = gpu
                waiting = [each for each in waiting if each.name != tied]
        elif module.whole or not module.children:
            gpu += 1
            waiting.insert(0, module)
            if gpu == len(limits):
                return None
        else:
            waiting = [*module.children, *waiting]
            most = _Largest(waiting)
    return places


class _Largest:
    """The largest piece of what waits, which is looked for anew when all that are as large are gone."""

    def __init__(self, waiting: Sequence[_Module]) -> None:
        pieces = [piece for module in waiting for piece in module.pieces()]
        self.n_bytes = max((piece.n_bytes for piece in pieces), default=0.0)
        self._names = {piece.name for piece in pieces if piece.n_bytes == self.n_bytes}

    def without(self, module: _Module, waiting: Sequence[_Module]) -> None:
        """One module is looked at."""
        self._names -= {piece.name for piece in (module, *module.pieces())}
        if not self._names:
            found = _Largest(waiting)
            self.n_bytes, self._names = found.n_bytes, found._names


def _share(places: dict[str, int], gpu: int) -> Share:
    own = [name for name, number in places.items() if number == gpu]
    numbers = [int(name.removeprefix("layer ")) for name in own if name.startswith("layer ")]
    layers = (min(numbers), max(numbers) + 1) if numbers else (0, 0)
    return Share(layers, tuple(end for end in (TABLE, NORM, HEAD) if end in own))
