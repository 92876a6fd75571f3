"""Which parameters are whole on a rank under ZeRO-3, moment by moment: fetched, prefetched,
kept for reuse, released.

Source: DeepSpeed 0.19.8 runtime/zero/partitioned_param_coordinator.py ``PartitionedParameterCoordinator``;
each method names its counterpart.  The first forward and backward record the order of modules, all later ones
look ahead in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from measure.trace.record import TracedBlock
from measure.trace.sharding.runtime_settings import ZeroSettings
from measure.trace.sharding.shard_records import GATHER_STREAM, RankRecords, TracedPurpose
from measure.trace.sharding.sharded_parameters import TracedParameter
from planner.allocator.compiled import MOST_LAG

_FLAT = TracedPurpose("all_gather flat_tensor", "gathered_parameters", GATHER_STREAM)
_WHOLE = TracedPurpose("gathered parameter", "gathered_parameters", GATHER_STREAM)
_UPLOADED = TracedPurpose("partition from the host", "gathered_parameters", GATHER_STREAM)
# The host runs ahead of the card.  Where it asked for more than ``__max_ongoing_fetch_events`` parameters,
# it waits for the oldest before it asks for another: what was given back before that one comes back.
# Source: ``_fetch_sub_module_impl``; partition_parameters.py free_param (``record_stream``).
# Ignored: a card that computes for longer than it gathers falls further behind.
_MOST_FETCHES = 2
_LONG_AGO = -(10**10)


@dataclass(slots=True, eq=False)
class TracedGather:
    """One gather under way: the flat buffer that it receives,
    and the parameters that have not been asked for yet.
    """

    parameters: list[TracedUse]
    flat: TracedBlock | None
    asked: int = 0
    complete: bool = False


@dataclass(slots=True, eq=False)
class TracedUse:
    """A parameter and where it is.  ``in_graph``: the graph has a view of its memory."""

    parameter: TracedParameter
    persists: bool
    status: Literal["away", "in flight", "here"] = "away"
    block: TracedBlock | None = None
    active: set[str] = field(default_factory=set)
    fetched_for: int = _LONG_AGO
    in_graph: bool = False

    @property
    def elements(self) -> int:
        """Number of elements."""
        return self.parameter.elements


class TracedCoordinator:
    """Fetches and releases.  ``of_module`` gives the parameters that a module holds itself."""

    def __init__(
        self, stream: RankRecords, settings: ZeroSettings, of_module: Callable[[str], list[TracedUse]]
    ) -> None:
        self._stream, self._settings, self._of = stream, settings, of_module
        self._recorded: list[str] = []
        self._complete = False
        self._queue: deque[tuple[TracedUse, int]] = deque()
        self._in_flight: dict[TracedUse, TracedGather] = {}
        self._step = 0
        self._available = 0
        self._active: dict[str, set[TracedUse]] = {}
        # Given back so far, and when the host asked for each parameter.
        self._n_late = 0
        self._asked: deque[int] = deque()
        # What the graph keeps of what was taken away.
        self._in_graph: list[TracedBlock | None] = []

    def new_pass(self, everything: Iterable[TracedUse], *, trains: bool = False) -> None:
        """``reset_step``, when the model's forward begins:
        from the second time on the order of modules is known.  ``trains``: a backward comes.
        """
        # Its handles keep their flat buffers until all are done (``_clean_inflight_param_registry``).
        flats = []
        for live in list(self._in_flight):
            flats.append(self._ask(live))
            self._release_one(live)
        self._stream.free(*flats)
        self._complete = bool(self._recorded)
        order = [(live, step) for step, module in enumerate(self._recorded) for live in self._of(module)]
        self._queue = deque(order)
        self._step = 0
        if not (trains and self._settings.counts_early):
            self._available = 0
        for live in everything:
            live.fetched_for = _LONG_AGO

    def fetch(self, module: str, *, forward: bool) -> None:
        """``fetch_sub_module``: gather what the module needs, wait for it,
        then prefetch for the modules after it.
        """
        recomputes = forward and self._stream.place.stage == "backward"
        keeps = recomputes and self._settings.keeps_recomputed and self._active
        if not forward:
            self._active.setdefault(module, set())
        if not self._complete:
            self._recorded.append(module)
        needed = self._of(module)
        self._gather(live for live in needed if live.status == "away")
        in_graph = self._settings.makes_graph and self._stream.place.stage == "forward"
        for live in needed:
            live.active.add(module)
            live.in_graph = live.in_graph or (in_graph and live.parameter.in_graph)
            if keeps and not live.parameter.trained:
                owner = next(iter(self._active) if self._settings.for_model else reversed(self._active))
                self._active[owner].add(live)
                live.active.add(owner)
            if live in self._in_flight:
                self._wait_for_oldest()
                self._stream.free(self._ask(live))
                self._asked.append(self._n_late)
        if self._complete:
            self._prefetch({live for live in needed if live.fetched_for < self._step})
        self._step += 1

    def _wait_for_oldest(self) -> None:
        if len(self._asked) > _MOST_FETCHES:
            self._stream.wait(self._n_late - self._asked.popleft())

    def _prefetch(self, needed: set[TracedUse]) -> None:
        discarded: set[TracedUse] = set()
        while self._queue and len(discarded) < len(needed):
            live, step = self._queue.popleft()
            live.fetched_for = step
            discarded.add(live)
        limit = min(self._settings.max_live_elements - self._available, self._settings.prefetch_elements)
        wanted: dict[TracedUse, None] = {}
        elements = 0
        while self._queue and elements < limit:
            live, step = self._queue.popleft()
            live.fetched_for = max(live.fetched_for, step)
            if live.status == "away" and live not in wanted:
                wanted[live] = None
                elements += live.elements
        self._gather(wanted)

    def release(self, module: str, *, forward: bool) -> None:
        """``release_sub_module``: what is not needed again soon goes."""
        own = self._of(module)
        wanted = self._to_release(own) if self._complete else set(own)
        concerned = set(own)
        if not forward:
            recomputed = self._active.pop(module, set())
            wanted |= {live for live in recomputed if not live.persists}
            concerned |= recomputed
        for live in sorted(concerned, key=lambda each: each.parameter.key):
            live.active.discard(module)
            if live in wanted:
                self._release_one(live)

    def _to_release(self, own: list[TracedUse]) -> set[TracedUse]:
        """``__params_to_release``: not what prefetch has passed over,
        nor what comes again within the reuse distance.
        """
        wanted = {live for live in own if not live.persists and live.fetched_for <= self._step}
        passed = 0
        for module in self._recorded[self._step :] if wanted else ():
            if passed >= self._settings.max_reuse_elements:
                break
            for live in self._of(module):
                wanted.discard(live)
                passed += live.elements
        return wanted

    def end_of_backward(self) -> None:
        """``release_backward_leftovers``: modules whose input needed no gradient, such as the token table.

        Versions before it keep them until the next forward has run them, or the optimizer steps.
        """
        if self._settings.counts_early:
            self._available = 0
        if not self._settings.keeps_recomputed:
            self._active.clear()
        while self._active:
            module, recomputed = self._active.popitem()
            for live in sorted({*self._of(module), *recomputed}, key=lambda each: each.parameter.key):
                live.active.discard(module)
                if not live.persists:
                    self._release_one(live)
        self._asked.clear()

    def end_of_graph(self) -> None:
        """What the graph kept goes with it: ``free_param`` only lets go of ``param.data``
        (partition_parameters.py), of which bitsandbytes' context has a view.
        """
        self._stream.free(*self._in_graph)
        self._in_graph.clear()

    def release_all(self, everything: Iterable[TracedUse]) -> None:
        """``release_and_reset_all``, when the optimizer steps."""
        for live in everything:
            self._stream.free(self._ask(live))
            live.active.clear()
            self._release_one(live)
        self._asked.clear()

    def gather_now(self, wanted: Iterable[TracedUse]) -> None:
        """``_post_step``: persistent parameters are whole again, each in memory of its own;
        on one process they always are.
        """
        for live in wanted:
            if live.status == "away":
                n_bytes = self._part(live) * self._settings.world * live.parameter.element_bytes
                live.block = self._stream.take(n_bytes, _WHOLE.on(0)) if self._settings.world > 1 else None
                live.status = "here"

    def _part(self, live: TracedUse) -> int:
        return -(-live.elements // self._settings.world)

    def _gather(self, wanted: Iterable[TracedUse]) -> None:
        """``all_gather_coalesced``: one parameter arrives in its own memory,
        several in a flat buffer for each dtype.
        """
        several = sorted(wanted, key=lambda each: each.parameter.key)
        self._available += sum(live.elements for live in several)
        if len(several) == 1:
            self._start(several, coalesced=False)
            return
        for width in sorted({live.parameter.element_bytes for live in several}):
            self._start([live for live in several if live.parameter.element_bytes == width], coalesced=True)

    def _start(self, several: list[TracedUse], *, coalesced: bool) -> None:
        if self._settings.world == 1:
            self._start_alone(several)
            return
        width = several[0].parameter.element_bytes
        n_bytes = sum(self._part(live) for live in several) * width
        flat = self._stream.take(n_bytes * self._settings.world, _FLAT if coalesced else _WHOLE)
        if self._settings.offloads_params:
            sizes = [self._part(live) * width for live in several if not live.persists]
            uploaded = [self._stream.take(size, _UPLOADED) for size in sizes]
            if uploaded:
                # The host waits for each copy of ``ds_tensor.to(device)``.
                self._stream.wait()
            self._stream.free(*uploaded)
        handle = TracedGather(several, flat if coalesced else None)
        for live in several:
            live.status = "in flight"
            live.block = None if coalesced else flat
            self._in_flight[live] = handle

    def _start_alone(self, several: list[TracedUse]) -> None:
        """``_no_gather_coalesced``: one process has all of each parameter,
        and copies what lies on the host.
        """
        handle = TracedGather(several, None)
        for live in several:
            uploads = self._settings.offloads_params and not live.persists
            live.block = self._stream.take(live.parameter.n_bytes, _UPLOADED) if uploads else None
            live.status = "in flight"
            self._in_flight[live] = handle

    def _ask(self, live: TracedUse) -> TracedBlock | None:
        """``AllGatherCoalescedHandle.wait``: the parts of every parameter are copied together.

        Gives the buffer with the last, to be freed.
        """
        handle = self._in_flight.pop(live, None)
        if handle is None:
            return None
        if not handle.complete:
            handle.complete = True
            for each in handle.parameters:
                if handle.flat is not None:
                    each.block = self._stream.take(each.parameter.n_bytes, _WHOLE)
                each.status = "here"
        handle.asked += 1
        return handle.flat if handle.asked == len(handle.parameters) else None

    def _release_one(self, live: TracedUse) -> None:
        if live.status == "here" and not live.active:
            if live.in_graph:
                self._in_graph.append(live.block)
            elif live.block is not None:
                self._n_late += 1
                self._stream.free_late(live.block, MOST_LAG)
            live.block, live.status, live.in_graph = None, "away", False
            self._available -= live.elements
