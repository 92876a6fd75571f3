"""One gather of ZeRO-3: what is sent and received, and what it becomes: in 16 bits, or in 8 (ZeRO++).

Source: DeepSpeed 0.19.8 runtime/zero/partition_parameters.py ``all_gather_coalesced`` and its handles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from planner.errors import RefusedCombinationError
from planner.program.engines.params import Param
from planner.program.engines.zero.deepspeed import DeepSpeed, Purpose
from planner.program.engines.zero.deepspeed_settings import FP32, Settings

_FLAT = Purpose("all_gather flat_tensor", "gathered_parameters")
WHOLE = Purpose("gathered parameter", "gathered_parameters")
UPLOADED = Purpose("partition from the host", "gathered_parameters")
_JOINED = Purpose("cat(parts)", "gathered_parameters")
_HALF = Purpose("part in fp16", "gathered_parameters")
_SENT = Purpose("quantize(part)", "gathered_parameters")
_SCALES = Purpose("all_gather scales", "gathered_parameters")
_WIDENED = Purpose("dequantize(flat_tensor)", "gathered_parameters")
_PURPOSES = (_FLAT, WHOLE, UPLOADED, _JOINED, _HALF, _SENT, _SCALES, _WIDENED)
LONG_AGO = -1_000_000_000_000
HALF = 2
# Elements that share a scale, at most.
_GROUP = 8_000


@dataclass(slots=True, eq=False)
class Handle:
    """One gather under way: the buffers that it receives, and how many of its parameters have been asked for.

    ``copies``: each parameter is copied out of a buffer; else the one that was gathered is there already.
    """

    parameters: list[Live]
    buffers: list[int] = field(default_factory=list)
    copies: bool = False
    asked: int = 0
    complete: bool = False


@dataclass(slots=True, eq=False)
class Live:
    """A parameter and where it is.

    ``part_bytes``: of one process's part; ``active``: modules that use it now; ``fetched_for``: the last
    place in the order of modules that prefetch has seen it at; ``uses``: all these places.  ``has_second``:
    there is a second copy; ``second``: this process's part of it, unless that is on the host.  ``views``:
    what the graph keeps of it until its backward.  ``at_once``: it was gathered on the stream that computes.
    """

    param: Param
    persists: bool
    part_bytes: int
    status: Literal["away", "in flight", "here"] = "away"
    slot: int | None = None
    active: set[Module] = field(default_factory=set)
    fetched_for: int = LONG_AGO
    uses: list[int] = field(default_factory=list)
    has_second: bool = False
    second: int | None = None
    views: list[int | None] = field(default_factory=list)
    at_once: bool = False


@dataclass(slots=True, eq=False)
class Module:
    """A module and the parameters that it holds itself."""

    own: list[Live] = field(default_factory=list)


class Gathers:
    """Gathers on behalf of ``engine``, on ``stream``; ``wait_for_upload``: the host waits for copies of parts
    that lie there.
    """

    def __init__(
        self, engine: DeepSpeed, settings: Settings, stream: int, wait_for_upload: Callable[[], None]
    ) -> None:
        self._engine, self._settings = engine, settings
        self._purposes = {each: replace(each, stream=stream) for each in _PURPOSES}
        self._wait_for_upload = wait_for_upload

    def begin(self, several: list[Live], *, copies: bool) -> Handle:
        """Send parts of what has or has not a second copy; ``copies``: of several, into one flat buffer."""
        settings, first = self._settings, several[0]
        handle = Handle(several, copies=copies and settings.world > 1)
        if settings.world == 1:
            # ``_no_gather_coalesced``: one process has all of each parameter,
            # and copies what lies on the host.
            for live, slot in self._upload(several).items():
                live.slot = slot
        elif settings.quantizes_weights:
            self._send_quantized(handle)
        else:
            n_bytes = sum([live.part_bytes for live in several]) * settings.world
            slot = self._take(n_bytes, _FLAT if copies else WHOLE, first)
            if copies:
                handle.buffers.append(slot)
            else:
                first.slot = slot
            uploaded = self._upload(several)
            if uploaded:
                self._wait_for_upload()
            self._engine.free(*uploaded.values())
        return handle

    def arrive(self, handle: Handle) -> None:
        """``wait``: every parameter is copied out of the buffer that has all."""
        if self._settings.quantizes_weights and self._settings.world > 1:
            self._widen(handle)
        elif handle.copies:
            for each in handle.parameters:
                each.slot = self._take(each.param.n_bytes, WHOLE, each)

    def sent_bytes(self, live: Live) -> int:
        """What this process has of a parameter that is gathered: its part, or that of the second copy."""
        settings = self._settings
        return live.part_bytes * settings.world // settings.hpz if live.has_second else live.part_bytes

    def _take(self, n_bytes: int, what: Purpose, live: Live) -> int:
        return self._engine.take(n_bytes, self._purposes[what], live.param)

    def _upload(self, several: Sequence[Live]) -> dict[Live, int]:
        """Parts that lie on the host, brought to the card."""
        away = [live for live in several if self._is_on_host(live)]
        return {live: self._take(self.sent_bytes(live), UPLOADED, live) for live in away}

    def _is_on_host(self, live: Live) -> bool:
        return self._settings.offloads_params and (live.has_second or not live.persists)

    def _is_half(self, live: Live) -> bool:
        return self._settings.computes_half and live.param.element_bytes == HALF

    def _whole(self, handle: Handle) -> int:
        """Elements of all parts."""
        world = self._settings.world
        return sum(-(-live.param.elements // world) for live in handle.parameters) * world

    def _send_quantized(self, handle: Handle) -> None:
        """Parts are joined and made fp16, of which a kernel makes values of a byte and scales of four.

        Source: DeepSpeed 0.19.8 runtime/zero/partition_parameters.py _all_gather_coalesced,
        _all_gather_sequential, CUDAQuantizer.quantize; ops/csrc/quantization/pt_binding.cpp quantize_kernel.
        Ignored: that NCCL keeps what is sent until it is asked for.
        """
        several, free = handle.parameters, self._engine.free
        first, whole = several[0], self._whole(handle)
        divides = self._settings.hpz if first.has_second else self._settings.world
        elements = whole // divides
        handle.buffers.append(self._take(whole, _FLAT, first))
        joined = self._join(several, elements) if handle.copies else None
        narrowed = None
        uploads = not handle.copies and self._is_on_host(first)
        if uploads or not all(self._is_half(live) for live in several):
            narrowed = self._take(elements * HALF, _HALF, first)
            if uploads:
                self._wait_for_upload()
            free(joined)
            joined = None
        scales = FP32 * quantized_groups(elements)
        sent = [self._take(n_bytes, _SENT, first) for n_bytes in (scales, elements)]
        free(narrowed, joined)
        handle.buffers.append(self._take(scales * divides, _SCALES, first))
        free(*sent)

    def _join(self, several: Sequence[Live], elements: int) -> int:
        """``cat``, in the widest dtype of its parts."""
        uploaded = self._upload(several)
        joined = self._take(elements * max(live.param.element_bytes for live in several), _JOINED, several[0])
        if uploaded:
            self._wait_for_upload()
        self._engine.free(*uploaded.values())
        return joined

    def _widen(self, handle: Handle) -> None:
        """What has arrived becomes fp16, then each parameter its own dtype.

        Source: DeepSpeed 0.19.8 runtime/zero/partition_parameters.py AllGatherCoalescedHandle.wait and
        AllGatherHandle.wait; ops/csrc/quantization/pt_binding.cpp dequantize.
        """
        if handle.copies:
            whole = self._take(self._whole(handle) * HALF, _WIDENED, handle.parameters[0])
            handle.buffers.append(whole)
        for live in handle.parameters:
            live.slot = self._take(live.param.elements * HALF, _WIDENED, live)
            if not self._is_half(live):
                half, live.slot = live.slot, self._take(live.param.n_bytes, WHOLE, live)
                self._engine.free(half)


def quantized_groups(elements: int) -> int:
    """Groups that share a scale: of at most 8,000 elements, and all of as many, a multiple of 8.

    Source: DeepSpeed 0.19.8 runtime/zero/partition_parameters.py CUDAQuantizer.quantize, which stops where
    there are no such groups.
    """
    eights = elements // 8
    if elements % 8 or not elements:
        raise RefusedCombinationError(
            f"DeepSpeed quantises parts of whole multiples of 8 elements, and one of {elements:,} is sent: "
            "leave zero_quantized_weights out, or take another number of GPUs"
        )
    fewest = -(-elements // _GROUP)
    return next(
        eights // size for size in range(min(eights // fewest, _GROUP // 8), 0, -1) if not eights % size
    )
