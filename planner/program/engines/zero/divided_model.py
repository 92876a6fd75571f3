"""Which module of a model holds which of its parameters, for the engine that divides them (ZeRO-3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from planner.intake.leaf_modules import LeafKind
from planner.program.engines.groups import HEAD
from planner.program.engines.params import Param
from planner.program.engines.zero.coordinator import NUMBER, Coordinator
from planner.program.engines.zero.gathers import Live, Module
from planner.program.recorded_part import Template
from planner.program.request_stream import labelled
from planner.program.runtime import Part

# What PEFT calls a module inside of its own.  Source: peft 0.21 tuners/tuners_utils.py BaseTunerLayer.
_WRAPPED, _READ = "base_layer", "lora_A"
_EXPERTS = ("experts",)
_FIRST_MADE = ("gate", "router", "experts")


@dataclass(slots=True)
class DividedModel:
    """The parameters of a model, the modules that hold them, and who fetches them.

    ``around``: the model and the one inside of it, behind PEFT's two, which prefetch for those behind them.
    ``modules`` and ``paths``: of each part by its name, in the order of its template.  ``readers``: whose
    forward reads the weights of a module itself: of each the one around it, and of the head the model, for
    its loss.  ``early``: modules whose weights are read before they are called, ``lora_A`` for its dtype.
    ``head``: the head, where it is never called.  ``wrappers``: PEFT's modules around others, seen by a pass
    without adapters.  ``leaves``: what is gathered whole; ``inside``: modules in one; ``leaf_of``: whose
    parameters are in which; ``experts_first``: mixtures make their experts before the router.
    """

    coordinator: Coordinator
    live: dict[Param, Live] = field(default_factory=dict)
    modules: dict[str, list[Module]] = field(default_factory=dict)
    paths: dict[str, Sequence[tuple[str, ...]]] = field(default_factory=dict)
    around: tuple[Module, ...] = ()
    head: Module | None = None
    readers: dict[Module, Module] = field(default_factory=dict)
    early: set[Module] = field(default_factory=set)
    wrappers: dict[Module, Module] = field(default_factory=dict)
    leaves: frozenset[LeafKind] = frozenset()
    inside: set[Module] = field(default_factory=set)
    leaf_of: dict[Param, Module] = field(default_factory=dict)
    experts_first: bool = False

    @property
    def outer(self) -> Module:
        """The model, which holds parameters that others read."""
        return self.around[-2]

    def note(self, parts: Sequence[Part], params: Mapping[str, Sequence[Param]], read: str) -> None:
        """Take the modules of ``parts`` and their ``params``; those at rest belong to none that runs.

        ``read``: the name of a head whose weight a loss reads, or nothing.
        """
        for param in (each for own in params.values() for each in own):
            if param not in self.live:
                self.live[param] = self.coordinator.live(param)
        for label, template in _templates(parts):
            self.paths[label] = template.modules
            modules = self.modules[label] = [Module() for _ in template.modules]
            for parameter, param in zip(template.parameters, params[label], strict=True):
                modules[parameter.module].own.append(self.live[param])
            by_path = dict(zip(template.modules, modules, strict=True))
            self.readers |= {by_path[path]: by_path[path[:-1]] for path in by_path if path}
            self.early |= {by_path[path] for path in by_path if path[-1:] == (_READ,)}
            if label.startswith("layer"):
                self._join(template.modules, by_path)
            if label == HEAD and read:
                self.head = modules[[".".join(each) for each in template.modules].index(read)]
                self.readers[self.head] = self.outer
                self.early.add(self.head)

    def _join(self, paths: Sequence[tuple[str, ...]], by_path: Mapping[tuple[str, ...], Module]) -> None:
        """A leaf gets all parameters of the modules inside of it, none of which has hooks.

        Source: DeepSpeed 0.19.8 runtime/zero/parameter_offload.py _register_deepspeed_module,
        partitioned_param_coordinator.py iter_params (``recurse``).
        """
        experts = next((path for path in paths if path[-1:] == _EXPERTS), None)
        if "layer" in self.leaves:
            top: tuple[str, ...] = ()
        elif experts and self.leaves:
            top = experts[:-1] if "mixture" in self.leaves else experts
        else:
            return
        leaf, within = by_path[top], [path for path in paths if path[: len(top)] == top]
        found = [(self._made_at(path), NUMBER(live), live) for path in within for live in by_path[path].own]
        leaf.own = [live for _, _, live in sorted(found, key=itemgetter(0, 1))]
        self.inside.update(by_path[path] for path in within if path != top)
        self.leaf_of.update((live.param, leaf) for live in leaf.own)

    def _made_at(self, path: tuple[str, ...]) -> int:
        """Places of what a mixture makes first; all else of a leaf is taken in the order that it runs in."""
        for name in path:
            if name in _FIRST_MADE:
                place = _FIRST_MADE.index(name)
                return -place if self.experts_first else place
        return len(_FIRST_MADE) if "mlp" in path else -len(_FIRST_MADE)

    def without_adapters(self, parts: Sequence[Part]) -> DividedModel:
        """The same modules and their coordinator, as the passes of ``parts`` see them, whose adapters are
        switched off.
        """
        made = DividedModel(self.coordinator, self.live, around=self.around, head=self.head)
        made.readers, made.early, made.inside = self.readers, self.early, self.inside
        for label, template in _templates(parts):
            known = dict(zip(self.paths[label], self.modules[label], strict=True))
            modules = made.modules[label] = []
            for path in template.modules:
                inner = known.get((*path, _WRAPPED))
                modules.append(inner or known[path])
                if inner:
                    made.wrappers[inner] = known[path]
        return made


def _templates(parts: Sequence[Part]) -> Iterator[tuple[str, Template]]:
    return labelled((part.name, part.template, part.count) for part in parts)
