"""FSDP2: what ``fully_shard`` allocates on one rank, moment by moment.

Source: torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_collectives.py;
each method names its counterpart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import compress

from measure.trace.record import ASIDES, HostName, Record, TracedBlock
from measure.trace.sharding.fsdp_units import ROOT
from measure.trace.sharding.runtime_settings import FsdpSettings
from measure.trace.sharding.shard_records import (
    GATHER_STREAM,
    REDUCE_STREAM,
    RankRecords,
    Steps,
    TracedPurpose,
)
from measure.trace.sharding.sharded_parameters import TracedParameter

_FORWARD = ("forward", *ASIDES)
_WHOLE = TracedPurpose("parameter before it is sharded", "workspace")
_AGAIN = TracedPurpose("shard by another name", "weights")
_CAST = TracedPurpose("all_gather_input", "gathered_parameters", GATHER_STREAM)
_UPLOADED = TracedPurpose("shard from the host", "gathered_parameters", GATHER_STREAM)
_RECEIVED = TracedPurpose("all_gather_output", "gathered_parameters", GATHER_STREAM)
_PARAMETER = TracedPurpose("unsharded parameter", "gathered_parameters")
_OWN_CAST = TracedPurpose("cast of the shard", "gathered_parameters")
_SENT = TracedPurpose("reduce_scatter_input", "gradient_buckets")
_REDUCED = TracedPurpose("reduce_scatter_output", "gradient_buckets", REDUCE_STREAM)
_GRADIENT = TracedPurpose("sharded gradient", "gradients", REDUCE_STREAM)


@dataclass(slots=True)
class _Unit:
    """One group of parameters: what is gathered, gradients that wait to be reduced,
    and reduced ones here or on the host.
    """

    parameters: list[TracedParameter] = field(default_factory=list)
    reshards: bool = True
    received: TracedBlock | None = None
    whole: list[TracedBlock] = field(default_factory=list)
    gradients: dict[tuple[str, str], TracedBlock] = field(default_factory=dict)
    reduced: TracedBlock | None = None
    on_host: list[TracedBlock] = field(default_factory=list)


class FsdpRank:
    """One rank under FSDP2."""

    def __init__(self, stream: RankRecords, settings: FsdpSettings) -> None:
        self._stream, self._settings = stream, settings
        self._units: dict[str, _Unit] = {}
        self._unit_of: dict[tuple[str, str], str] = {}
        self._order: list[str] = []
        self._kept: TracedBlock | None = None
        self._sending: list[TracedBlock] = []
        self._replicating: TracedBlock | None = None
        self._steps: Steps = []
        self._undivided: list[tuple[TracedParameter, TracedBlock, TracedBlock]] = []
        self._tied: list[TracedParameter] = []

    def load(self, parameter: TracedParameter, record: Record) -> None:
        """Rank by rank the parameter is on the device whole, then only its shard
        (fsdp2_load_full_state_dict).

        Over a k-bit base the whole model is there before it is divided,
        and what is stored as plain bytes is not divided at all.
        Source: accelerate 1.15 utils/fsdp_utils.py fsdp2_prepare_model (``model_has_params4bit``,
        ``incompatible_params4bit``).
        """
        if not parameter.is_float:
            self._stream.pass_on(record)
            return
        name = _unit_name(parameter)
        unit = self._units.setdefault(name, _Unit(reshards=not parameter.stays_whole))
        unit.parameters.append(parameter)
        self._unit_of[parameter.key] = name
        block, n_bytes = record.block, parameter.elements * self._settings.stored_bytes(parameter)
        if self._settings.quantized:
            whole = self._stream.take(n_bytes, TracedPurpose(_WHOLE.name, block.role, module=block.module))
            self._undivided.append((parameter, block, whole))
            return
        passing = None if self._settings.offloads else self._stream.take(n_bytes, _WHOLE)
        self._keep_shard(parameter, block)
        self._stream.free(passing)
        if parameter.n_names > 1 and self._settings.loads_each_name and not self._settings.offloads:
            self._tied += [parameter] * (parameter.n_names - 1)

    def _keep_shard(self, parameter: TracedParameter, block: TracedBlock) -> None:
        n_bytes = self._settings.shard_elements(parameter) * self._settings.stored_bytes(parameter)
        if self._settings.offloads:
            if self._settings.quantized:
                # Made where the whole parameter is (torch 2.13 _fsdp_param.py ``padded_sharded_param``).
                self._stream.brief(n_bytes, TracedPurpose("shard", block.role, module=block.module))
            host_name: HostName = "offloaded_optimizer" if parameter.trained else "offloaded_parameters"
            self._stream.keep_on_host(n_bytes, "shard", host_name, pinned=True)
            return
        self._stream.take(n_bytes, TracedPurpose("shard", block.role, module=block.module))

    @property
    def updated_bytes(self) -> int:
        """Those of shards."""
        trained = (each for unit in self._units.values() for each in unit.parameters if each.trained)
        return max(map(self._settings.stored_bytes, trained), default=0)

    def shard_groups(self) -> list[list[tuple[int, ...]]]:
        """Shapes of the local shards of trained parameters, by group of the optimizer."""
        trained = [each for unit in self._units.values() for each in unit.parameters if each.trained]
        numbers = sorted({each.group for each in trained})
        return [
            [self._settings.shard_shape(each) for each in trained if each.group == number]
            for number in numbers
        ]

    def set_up(self, steps: Steps) -> None:
        """Nothing is allocated before the first forward, but a k-bit model is divided.  What was whole goes
        when all of it is, as a state dict refers to it (``original_sd`` of fsdp2_prepare_model).  Shards of
        tied parameters by their other names go when all are in their places (fsdp2_load_full_state_dict).
        """
        self._steps = steps
        again = []
        for parameter in self._tied:
            width = self._settings.stored_bytes(parameter)
            whole = self._stream.take(parameter.elements * width, _WHOLE)
            again.append(self._stream.take(self._settings.shard_elements(parameter) * width, _AGAIN))
            self._stream.free(whole)
        self._stream.free(*again)
        for parameter, block, _ in self._undivided:
            self._keep_shard(parameter, block)
        self._stream.free(*(whole for _, _, whole in self._undivided))
        self._undivided = []

    def at(self, moment: str, module: str, aliases: str) -> None:
        """A hook of the unit whose marks name ``module``."""
        del aliases
        name = module or ROOT
        if name == ROOT and moment == "after_forward":
            self._stream.free(self._kept)  # the last buffer that was received
            self._kept = None
        if name not in self._units:
            return
        if moment == "before_forward":
            self._unshard(name)
            self._wait(name, forward=self._stream.place.stage in _FORWARD)
        elif moment == "after_forward":
            self._after_forward(name)
        elif moment == "before_backward":
            self._before_backward(name)
        elif moment == "after_backward":
            self._after_backward(name)

    def gradient(self, parameter: TracedParameter, block: TracedBlock, *, boundary: bool) -> None:
        """Gradients of the whole parameter wait for their unit;
        a micro-step that is not the last leaves them whole.
        """
        del boundary
        unit = self._units[self._unit_of[parameter.key]]
        if parameter.key in unit.gradients:
            self._stream.free(block)  # added in place by autograd
        else:
            unit.gradients[parameter.key] = block

    def end_of_backward(self, *, boundary: bool) -> None:
        """``_root_post_backward_final_callback`` and ``finalize_backward``: what was sent for goes, too,
        where a unit has no backward and nobody waits for it.
        """
        del boundary
        self._order.clear()
        for unit in self._units.values():
            self._stream.free(unit.received)
            unit.received = None
        self._stream.free(*self._sending, self._replicating)
        self._sending, self._replicating = [], None

    def step(self, number: int) -> None:
        """The optimizer updates shards one by one; then their gradients go."""
        if self._steps:
            for records in self._steps[number]:
                self._stream.splice(records)
        for unit in self._units.values():
            self._stream.free(unit.reduced, *unit.on_host)
            unit.reduced, unit.on_host = None, []

    def _unshard(self, name: str) -> None:
        """``unshard``: shards are cast where they are wider (_fsdp_collectives.py ``use_foreach_copy``), and
        copied into the buffer that the others' parts arrive in.  One process alone has nothing to receive.
        """
        unit, settings = self._units[name], self._settings
        if unit.received is not None or unit.whole or self._copies_own:
            return
        inputs = []
        for each in unit.parameters if settings.offloads else ():
            shard, stored = settings.shard_elements(each), settings.stored_bytes(each)
            uploaded = self._stream.take(shard * stored, _UPLOADED)
            cast = self._stream.take(shard * each.element_bytes, _CAST) if settings.casts(each) else None
            self._stream.free(uploaded if cast else None)
            inputs.append(cast or uploaded)
        sizes = [settings.shard_elements(each) * each.element_bytes for each in unit.parameters]
        cast_ones = [settings.casts(each) for each in unit.parameters]
        if any(cast_ones) and not settings.offloads:
            inputs.append(self._stream.take(sum(compress(sizes, cast_ones)), _CAST))
        unit.received = self._stream.take(sum(sizes) * settings.shards, _RECEIVED)
        self._stream.free(*inputs)

    def _wait(self, name: str, *, forward: bool) -> None:
        """``wait_for_unshard``: copied out into parameters; in forward the buffer stays until the end of the
        next unit's copy, because a variable (``prev_all_gather_state``) refers to it.
        """
        unit = self._units[name]
        if unit.received is None:
            if self._copies_own and not unit.whole:
                self._copy_own(unit)
            return
        for each in unit.parameters:
            n_bytes = self._settings.shard_elements(each) * self._settings.shards * each.element_bytes
            unit.whole.append(self._stream.take(n_bytes, _PARAMETER))
        if forward:
            self._stream.free(self._kept)
            self._kept = unit.received
        else:
            self._stream.free(unit.received)
        unit.received = None

    @property
    def _copies_own(self) -> bool:
        """Whether parameters are copied from the shards of the one process that there is.

        Ignored: the same of shards on the host.
        """
        return self._settings.shards == 1 and not self._settings.offloads

    def _copy_own(self, unit: _Unit) -> None:
        """``wait_for_unshard``: a variable refers to each cast (``all_gather_inputs``) until the next is
        there.
        """
        before: TracedBlock | None = None
        for each in unit.parameters:
            n_bytes = self._settings.shard_elements(each) * each.element_bytes
            cast = self._stream.take(n_bytes, _OWN_CAST) if self._settings.casts(each) else None
            self._stream.free(before)
            unit.whole.append(self._stream.take(n_bytes, _PARAMETER))
            before = cast
        self._stream.free(before)

    def _after_forward(self, name: str) -> None:
        """``post_forward``."""
        if self._stream.place.stage in _FORWARD:
            if self._units[name].reshards and self._settings.reshards_after_forward:
                self._reshard(name)
            self._order.append(name)

    def _before_backward(self, name: str) -> None:
        """``pre_backward``: gathered if the unit after it has not done so;
        then the one before it is sent for.
        """
        self._unshard(name)
        self._wait(name, forward=False)
        if name in self._order:
            index = len(self._order) - 1 - self._order[::-1].index(name)
            if index > 0:
                self._unshard(self._order[index - 1])

    def _after_backward(self, name: str) -> None:
        """``post_backward``: parameters go,
        and whole gradients are reduced to this rank's part in a stream of its own.
        """
        unit, settings = self._units[name], self._settings
        self._reshard(name)
        if settings.reduces_last_only and self._stream.place.micro_step % 2 == 0:
            return
        self._stream.free(*self._sending)
        self._sending = []
        if not unit.gradients:
            return
        trained = [each for each in unit.parameters if each.key in unit.gradients]
        part = sum(settings.shard_elements(each) for each in trained)
        self._stream.free(self._replicating)
        self._replicating = None
        n_bytes = part * settings.shards * settings.reduced_bytes(trained[0])
        self._sending.append(self._stream.take(n_bytes, _SENT))
        self._stream.free(*unit.gradients.values())
        unit.gradients = {}
        self._keep_gradient(unit, trained)

    def _keep_gradient(self, unit: _Unit, trained: list[TracedParameter]) -> None:
        """The received part in the dtype of the shards, added to what is there;
        with offload each goes to pinned memory.
        """
        parts = [self._settings.shard_elements(each) for each in trained]
        part, width = sum(parts), self._settings.reduced_bytes(trained[0])
        stored = self._settings.stored_bytes(trained[0])
        same = stored == width
        received = self._stream.take(part * width, _GRADIENT if same else _REDUCED)
        kept = received if same else self._stream.take(part * stored, _GRADIENT)
        if self._settings.replicates and not same:
            self._replicating = received
        elif not same:
            self._stream.free(received)
        if self._settings.offloads:
            unit.on_host += [self._stream.pin(elements * stored, _GRADIENT.name) for elements in parts]
        if self._settings.offloads or unit.reduced is not None:
            self._stream.free(kept)
        else:
            unit.reduced = kept

    def _reshard(self, name: str) -> None:
        unit = self._units[name]
        self._stream.free(*unit.whole)
        unit.whole = []


def _unit_name(parameter: TracedParameter) -> str:
    """Name of the unit of ``parameter``: its layer's,
    or what the model's side noted for those outside of layers.
    """
    module = parameter.key[0]
    found = re.match(rf"^(.*?\.{parameter.layer})(?:\.|$)", module)
    return found.group(1) if found else parameter.unit
