"""FSDP1: what ``FullyShardedDataParallel`` allocates on one rank, moment by moment.

Source: torch 2.13 distributed/fsdp/_flat_param.py, _runtime_utils.py, _limiter_utils.py and
_exec_order_utils.py; each method names its counterpart.  The streams are those in which each is called: the
backward of ``torch.split`` runs in the one in which parameters were split (torch/csrc/autograd/engine.cpp,
the stream of a node is that of its forward).
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from itertools import takewhile

from measure.trace.record import OUTSIDE, HostName, Record, Role, TracedBlock
from measure.trace.sharding.ddp import broadcast
from measure.trace.sharding.flat_units import NEEDS_BACKWARD
from measure.trace.sharding.fsdp_units import ROOT
from measure.trace.sharding.late_records import LateRecords
from measure.trace.sharding.runtime_settings import FlatSettings
from measure.trace.sharding.shard_records import GATHER_STREAM, REDUCE_STREAM, Steps, TracedPurpose
from measure.trace.sharding.sharded_parameters import TracedParameter

_CAST_STREAM, _NODE_STREAM = 3, 4
_MOST_FREES = 2  # _limiter_utils.py, _max_num_inflight_all_gathers
_FP32 = 4
_WHOLE = TracedPurpose("parameter before it is divided", "workspace")
_JOINED = TracedPurpose("flat parameter", "workspace")
_MADE = TracedPurpose("init_flat_param_attributes", "gathered_parameters")
_CAST = TracedPurpose("_mp_shard", "gathered_parameters", _CAST_STREAM)
_UPLOADED = TracedPurpose("shard from the host", "gathered_parameters", _CAST_STREAM)
_GATHERED = TracedPurpose("_full_param_padded", "gathered_parameters", GATHER_STREAM)
_ZEROS = TracedPurpose("zeros", "gradient_buckets", GATHER_STREAM)
_FLAT_GRADIENT = TracedPurpose("cat", "gradient_buckets", GATHER_STREAM)
_VIEW = TracedPurpose("_use_unsharded_grad_views", "gradient_buckets", GATHER_STREAM)
_PADDED = TracedPurpose("pad", "gradient_buckets", REDUCE_STREAM)
_RECEIVED = TracedPurpose("new_sharded_grad", "gradient_buckets", REDUCE_STREAM)
_GRADIENT = TracedPurpose("_cast_grad_to_param_dtype", "gradients", REDUCE_STREAM)


@dataclass(slots=True, eq=False)
class _Unit:
    """One flat parameter.  ``post_index``: its place in the order of forwards, as torch notes it."""

    name: str
    own: bool = False
    parameters: list[TracedParameter] = field(default_factory=list)
    blocks: list[TracedBlock] = field(default_factory=list)
    shard: TracedBlock | None = None
    narrow: TracedBlock | None = None
    whole: TracedBlock | None = None
    gradients: dict[tuple[str, str], TracedBlock] = field(default_factory=dict)
    flat: TracedBlock | None = None
    reduced: TracedBlock | None = None
    needs_backward: bool = False
    prefetched: bool = False
    post_index: int | None = None

    @property
    def trained(self) -> bool:
        """Whether the flat parameter requires a gradient."""
        return any(each.trained for each in self.parameters)


class FlatRank:
    """One rank under FSDP1."""

    def __init__(self, stream: LateRecords, settings: FlatSettings) -> None:
        self._stream, self._settings = stream, settings
        self._units: dict[str, _Unit] = {}
        self._order: list[_Unit] = []
        self._frees: deque[int] = deque()
        self._steps: Steps = []
        self._initialised = False

    # -- loading

    def load(self, parameter: TracedParameter, record: Record) -> None:
        """A k-bit model is on the card before it is divided; others come unit by unit."""
        if not parameter.is_float:
            self._stream.pass_on(record)
            return
        name, own = _unit_of(parameter)
        unit = self._units.setdefault(name, _Unit(name, own))
        unit.parameters.insert(_place_of(parameter, unit.parameters), parameter)
        if self._settings.quantized:
            n_bytes = parameter.elements * parameter.stored_bytes
            role, module = record.block.role, record.block.module
            unit.blocks.append(self._stream.take(n_bytes, TracedPurpose(_WHOLE.name, role, module=module)))

    @property
    def updated_bytes(self) -> int:
        """Those of parts."""
        trained = (unit for unit in self._units.values() if unit.trained)
        return max(map(self._stored_bytes, trained), default=0)

    def shard_groups(self) -> list[list[tuple[int, ...]]]:
        """What the optimizer of the first rank sees of its part of each flat parameter: the first of its
        parameters whole, one in part and none of the others (``_use_sharded_views``).
        """
        groups: dict[int, list[tuple[int, ...]]] = {}
        for unit in self._units.values():
            left = self._shard_elements(unit)
            for each in unit.parameters:
                seen = min(self._aligned(each.elements), left)
                left -= seen
                if each.trained and seen:
                    groups.setdefault(each.group, []).append((min(seen, each.elements),))
        return [groups[number] for number in sorted(groups)]

    def set_up(self, steps: Steps) -> None:
        """Units inside of others come first, the root last (``_recursive_wrap``); then Accelerate widens the
        parts that are trained, from the root on (accelerate 1.15 accelerator.py prepare_model).
        """
        self._steps = steps
        units = self._in_order()
        for unit in units:
            self._divide(unit)
        for unit in [*units[-1:], *units[:-1]]:
            self._widen(unit)

    def _in_order(self) -> list[_Unit]:
        """Adapters are units inside of that of their layer."""
        layers = [each for each in self._units.values() if each.name != ROOT]
        inside: dict[str, list[_Unit]] = {each.name: [] for each in layers}
        for each in layers:
            around = next((name for name in inside if each.name.startswith(f"{name}.")), each.name)
            inside[around].append(each)
        found = [each for several in inside.values() for each in sorted(several, key=lambda one: not one.own)]
        return [*found, *(each for each in self._units.values() if each.name == ROOT)]

    def _divide(self, unit: _Unit) -> None:
        """``_init_param_handle_from_module``, ``FlatParamHandle.shard``."""
        width = unit.parameters[0].stored_bytes
        whole = unit.blocks or [self._stream.take(each.elements * width, _WHOLE) for each in unit.parameters]
        broadcast(self._stream, [(width, True, each.n_bytes) for each in whole])
        flat = self._stream.take(self._elements(unit) * width, _JOINED)
        role: Role = "adapters" if unit.own else "weights"
        shard = self._stream.take(self._shard_elements(unit) * width, TracedPurpose("shard", role))
        self._stream.free(flat, *whole)
        unit.blocks, unit.shard = [], shard
        if self._settings.offloads:
            self._stream.free(shard)
            host_name: HostName = "offloaded_optimizer" if unit.trained else "offloaded_parameters"
            n_bytes = self._shard_elements(unit) * self._stored_bytes(unit)
            self._stream.keep_on_host(n_bytes, "shard", host_name, pinned=True)

    def _widen(self, unit: _Unit) -> None:
        """The part before it goes when views of the new one are made (``_use_sharded_views``)."""
        wider = self._stored_bytes(unit)
        if self._settings.offloads or wider == unit.parameters[0].stored_bytes or unit.shard is None:
            return
        unit.narrow = unit.shard
        role = unit.shard.role
        unit.shard = self._stream.take(self._shard_elements(unit) * wider, TracedPurpose("upcast", role))

    # -- sizes

    def _aligned(self, elements: int) -> int:
        """``_init_flat_param_and_metadata``: the next parameter begins at a multiple of 16 bytes."""
        multiple = self._settings.aligned_elements
        return -(-elements // multiple) * multiple

    def _elements(self, unit: _Unit) -> int:
        *first, last = unit.parameters
        total = sum(self._aligned(each.elements) for each in first) + last.elements
        shards = self._settings.shards
        return -(-total // shards) * shards if self._settings.aligned_elements > 1 else total

    def _shard_elements(self, unit: _Unit) -> int:
        return -(-self._elements(unit) // self._settings.shards)

    def _stored_bytes(self, unit: _Unit) -> int:
        widens = self._settings.mixed and unit.trained
        return _FP32 if widens else unit.parameters[0].stored_bytes

    def _casts(self, unit: _Unit) -> bool:
        """``_uses_param_mixed_precision``: the part here has another dtype than what is gathered."""
        stored = self._stored_bytes(unit)
        return stored != self._seen_bytes(unit) or (self._settings.halves_differ and stored < _FP32)

    # -- moments

    def at(self, moment: str, module: str, aliases: str) -> None:
        """A hook of the unit whose marks name ``module``."""
        if moment == "host_waits":
            self._stream.wait_for()
        unit = self._units.get(module or ROOT)
        if unit is None:
            return
        if moment == "before_forward":
            if not unit.prefetched:
                self._unshard(unit)
        elif moment == "after_forward":
            self._after_forward(unit, needs=aliases == NEEDS_BACKWARD)
        elif moment == "before_backward":
            self._before_backward(unit)
        elif moment == "after_backward":
            self._after_backward(unit)

    def gradient(self, parameter: TracedParameter, block: TracedBlock, *, boundary: bool) -> None:
        """Gradients of views wait for the others of their flat parameter; an adapter's has no others."""
        unit = self._units[_unit_of(parameter)[0]]
        unit.gradients[parameter.key] = block
        if unit.own and len(unit.gradients) == sum(each.trained for each in unit.parameters):
            self._reduce(unit, boundary=boundary)

    def end_of_backward(self, *, boundary: bool) -> None:
        """``_post_backward_final_callback``; behind it the loop looks at the loss, and the host waits."""
        del boundary
        self._order.clear()
        for unit in self._units.values():
            unit.needs_backward, unit.post_index, unit.prefetched = False, None, False
            if self._settings.offloads:
                self._stream.free(unit.reduced)  # prepare_gradient_for_optim: the one on the host
                unit.reduced = None
        self._stream.wait_for()

    def step(self, number: int) -> None:
        """The optimizer updates views of the parts; then their gradients go."""
        if self._steps:
            for records in self._steps[number]:
                self._stream.splice(records)
        for unit in self._units.values():
            self._stream.free(unit.reduced)
            unit.reduced = None

    def _after_forward(self, unit: _Unit, *, needs: bool) -> None:
        """``_post_forward``, ``record_post_forward``, ``_post_forward_reshard``."""
        if not unit.post_index:
            unit.post_index = len(self._order)
        self._order.append(unit)
        self._let_go_of_narrow(unit, forward=True)
        self._reshard(unit, frees=unit.name != ROOT and self._settings.reshards_after_forward)
        unit.needs_backward = needs

    def _before_backward(self, unit: _Unit) -> None:
        """``_pre_backward_hook``: gathered if nobody has done so; then the one before it is sent for."""
        if unit.needs_backward and not unit.prefetched:
            self._unshard(unit)
        unit.needs_backward = False
        if not self._settings.prefetches or not unit.post_index:
            return
        before = self._order[unit.post_index - 1]
        if before.needs_backward and not before.prefetched:
            self._unshard(before)
            before.prefetched = True

    def _after_backward(self, unit: _Unit) -> None:
        """``_post_backward_hook``, ``_post_backward_reshard_only_hook`` or ``_catch_all_reshard``."""
        boundary = self._stream.place.micro_step % 2 == 1 or not self._settings.reduces_last_only
        if unit.gradients:
            self._reduce(unit, boundary=boundary)
        elif unit.whole is not None:
            self._reshard(unit, frees=self._frees_in_backward(boundary=boundary))

    def _frees_in_backward(self, *, boundary: bool) -> bool:
        """``_should_free_in_backward``."""
        return boundary or not self._settings.reduces_last_only or self._settings.reshards_after_forward

    # -- gathering

    def _unshard(self, unit: _Unit) -> None:
        """``_unshard``: the limit on gathers counts those, too, that find all in its place, and a part on the
        host is sent for and cast once more (``pre_unshard``).
        """
        if not self._initialised:
            self._initialise()
        settings, part = self._settings, self._shard_elements(unit)
        cast = uploaded = None
        stored, seen = self._stored_bytes(unit), self._seen_bytes(unit)
        if unit.whole is None or settings.offloads:
            cast = self._stream.take(part * seen, _CAST) if self._casts(unit) else None
            uploaded = self._stream.take(part * stored, _UPLOADED) if settings.offloads else None
            if cast is not None:
                self._stream.free(uploaded)
        if len(self._frees) >= _MOST_FREES:
            self._stream.wait_for(self._frees.popleft())
        if unit.whole is None:
            unit.whole = self._stream.take(part * settings.shards * seen, _GATHERED)
        self._stream.free_behind(cast or uploaded)

    def _reshard(self, unit: _Unit, *, frees: bool, in_gathers: bool = False) -> None:
        """``_reshard``: what is given back in another stream than that of the gathers comes back later."""
        if frees:
            if in_gathers:
                self._stream.free(unit.whole)
            else:
                self._stream.free_behind(unit.whole)
            unit.whole = None
            self._frees.append(self._stream.event())
        unit.prefetched = False

    def _seen_bytes(self, unit: _Unit) -> int:
        return max(each.element_bytes for each in unit.parameters)

    def _initialise(self) -> None:
        """``init_flat_param_attributes``: tensors are made, and their memory is given back at once."""
        self._initialised = True
        units = self._in_order()
        for unit in [*units[-1:], *units[:-1]]:
            part, seen, stored = (
                self._shard_elements(unit),
                self._seen_bytes(unit),
                self._stored_bytes(unit),
            )
            whole = part * self._settings.shards
            sizes = [part * seen, whole * seen, whole * stored] if self._casts(unit) else [whole * seen]
            if self._settings.offloads:
                self._stream.pin(part * stored, "_cpu_grad")
            for n_bytes in sizes:
                self._stream.brief(n_bytes, _MADE)

    def _let_go_of_narrow(self, unit: _Unit, *, forward: bool) -> None:
        if self._settings.reshards_after_forward or not forward:
            self._stream.free(unit.narrow)
            unit.narrow = None

    # -- gradients

    def _reduce(self, unit: _Unit, *, boundary: bool) -> None:
        """``_post_backward_hook`` behind the backward of ``torch.split``."""
        first = unit.flat is None
        self._join(unit)
        self._let_go_of_narrow(unit, forward=False)
        self._reshard(unit, frees=self._frees_in_backward(boundary=boundary), in_gathers=True)
        if boundary or not self._settings.reduces_last_only:
            self._reduce_grad(unit)
        elif first:
            self._make_views(unit)

    def _make_views(self, unit: _Unit) -> None:
        """``_use_unsharded_grad_views``: a gradient of the part that is here, whose place that of the whole
        parameter takes at once.
        """
        left, stored = self._shard_elements(unit), self._stored_bytes(unit)
        for each in unit.parameters if self._settings.aligned_elements > 1 else ():
            seen = min(each.elements, left)
            left -= min(self._aligned(each.elements), left)
            if seen and not self._settings.offloads:
                self._stream.brief(seen * stored, _VIEW)

    def _join(self, unit: _Unit) -> None:
        """Gradients of all views in one tensor, with zeros for frozen ones; autograd says of each that the
        other stream uses it.  What was not reduced yet is added to.
        """
        width = self._seen_bytes(unit)
        lacking = [each for each in unit.parameters if each.key not in unit.gradients]
        zeros = [self._stream.take(each.elements * width, _ZEROS) for each in lacking]
        flat = self._stream.take(self._elements(unit) * width, _FLAT_GRADIENT)
        self._stream.free(*zeros)
        for each in unit.parameters:
            block = unit.gradients.pop(each.key, None)
            if block is not None and block.stream == GATHER_STREAM:
                self._stream.free(block)
            else:
                self._stream.free_behind(block)
        if unit.flat is None:
            unit.flat = flat
        else:
            self._stream.free(flat)

    def _reduce_grad(self, unit: _Unit) -> None:
        """``_reduce_grad``, ``_accumulate_sharded_grad``."""
        part, seen, stored = self._shard_elements(unit), self._seen_bytes(unit), self._stored_bytes(unit)
        whole = part * self._settings.shards
        padded = self._stream.take(whole * seen, _PADDED) if whole > self._elements(unit) else None
        received = self._stream.take(part * seen, _RECEIVED)
        kept = received
        if stored != seen:
            # The sum over nodes has a stream of its own, in which it is cast.
            stream = _NODE_STREAM if self._settings.replicates else REDUCE_STREAM
            kept = self._stream.take(part * stored, _GRADIENT.on(stream))
            if self._settings.replicates:
                self._stream.free_behind(received)
            else:
                self._stream.free(received)
        else:
            received.role = _GRADIENT.role
        self._stream.free(padded)
        if unit.reduced is not None:
            self._stream.free(kept)
        else:
            unit.reduced = kept
        self._stream.free_behind(unit.flat)
        unit.flat = None


def _place_of(parameter: TracedParameter, others: list[TracedParameter]) -> int:
    """Adapters come after all others, but in a flat parameter they follow what they adapt: behind the last
    one whose module has most in common with theirs.
    """
    path = parameter.key[0].split(".")

    def in_common(other: TracedParameter) -> int:
        pairs = zip(path, other.key[0].split("."), strict=False)
        return len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])

    most = max(map(in_common, others), default=0)
    return max((index + 1 for index, each in enumerate(others) if in_common(each) == most), default=0)


def _unit_of(parameter: TracedParameter) -> tuple[str, bool]:
    """The unit of a parameter, and whether it is an adapter's own, inside of that of its layer.

    Layers that were not traced have the unit of the layer that stands for them.
    """
    if parameter.layer == OUTSIDE:
        return parameter.unit, parameter.unit == parameter.key[0]
    layer = re.match(rf"^(.*?\.{parameter.layer})(?:\.|$)", parameter.key[0])
    inside = re.match(r"^.*?\.\d+(.*)$", parameter.unit)
    if layer is None or inside is None:
        return parameter.unit, False
    return layer[1] + inside[1], bool(inside[1])
