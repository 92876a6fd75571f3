"""Which parameters are whole on a rank under ZeRO-3, moment by moment: fetched, prefetched,
kept for reuse, released.

Source: DeepSpeed 0.19.8 runtime/zero/partitioned_param_coordinator.py ``PartitionedParameterCoordinator``;
each method names its counterpart.  The first forward and backward record the order of modules, all later ones
look ahead in it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from itertools import accumulate
from operator import attrgetter

from planner.allocator.compiled import MOST_LAG
from planner.program.engines.params import Param
from planner.program.engines.zero.deepspeed import GATHER_STREAM, DeepSpeed, Purpose
from planner.program.engines.zero.deepspeed_settings import Settings
from planner.program.engines.zero.gathers import LONG_AGO, UPLOADED, WHOLE, Gathers, Handle, Live, Module

# The host runs ahead of the card.  Where it asked for more than ``__max_ongoing_fetch_events`` parameters,
# it waits for the oldest before it asks for another: what was given back before that one comes back.
# Source: ``_fetch_sub_module_impl``; partition_parameters.py free_param (``record_stream``).
# Ignored: a card that computes for longer than it gathers falls further behind.
_MOST_FETCHES = 2


class Coordinator:
    """Fetches and releases on behalf of ``engine``; ``settings``: where they are not the engine's own.

    ``stream``: each model that is divided gathers on one of its own (parameter_offload.py
    ``__allgather_stream``).
    """

    def __init__(
        self, engine: DeepSpeed, settings: Settings | None = None, stream: int = GATHER_STREAM
    ) -> None:
        self._engine, self.settings = engine, settings or engine.settings
        self._gathers = Gathers(engine, self.settings, stream, self._wait_for_upload)
        self._records = False
        self._recorded: list[Module] = []
        self._passed: list[int] = []
        self._order: list[tuple[Live, int]] = []
        self._next = 0
        self._in_flight: dict[Live, Handle] = {}
        self._step = 0
        self._available = 0
        self._active: dict[Module, set[Live]] = {}
        self._model = Module()
        self._decided: dict[tuple[Module, int], list[Live]] = {}
        # Given back so far, as far as the host has waited, and when it asked for each parameter.
        self._n_late = self._n_back = 0
        self._asked: deque[int] = deque()
        # Whether modules that run are in a graph, and what that keeps of what was taken away since.
        self.makes_graph = False
        self._in_graph: list[int | None] = []

    def new_pass(self, everything: Iterable[Live], *, trains: bool = False) -> None:
        """``reset_step``, when the model's forward begins:
        from the second time on the order of modules is known; ``trains``: a backward comes.

        Until then ranks compare their orders, for which the host waits (``assert_ints_same_as_other_ranks``).
        """
        self._clean()
        if not self._passed:
            self._engine.wait(0)
        if self._records:
            self._order = [(live, step) for step, module in enumerate(self._recorded) for live in module.own]
            elements = (sum(live.param.elements for live in module.own) for module in self._recorded)
            self._passed = [*accumulate(elements, initial=0)]
            for live, step in self._order:
                live.uses.append(step)
        self._records = not self._passed
        self._next = self._step = 0
        if not (trains and self.settings.counts_early):
            self._available = 0
        for live in everything:
            live.fetched_for = LONG_AGO

    def forget(self) -> None:
        """``_invalidate_trace``, where another module came than the order says."""
        for live, _ in self._order:
            live.uses.clear()
        self._recorded, self._passed, self._order = [], [], []
        self._clean()

    def _clean(self) -> None:
        """``_clean_inflight_param_registry``, whose handles keep their flat buffers until its end."""
        buffers: list[int] = []
        for live in list(self._in_flight):
            buffers += self._ask(live)
            self._release_one(live)
        self._engine.free(*buffers)

    def fetch(self, module: Module, *, forward: bool, recomputes: bool) -> None:
        """``fetch_sub_module``: gather what the module needs, wait for it,
        then prefetch for the modules after it.
        """
        if self._passed and (self._step >= len(self._recorded) or self._recorded[self._step] is not module):
            # ``trace_prologue``
            self.forget()
        if not forward:
            self._active.setdefault(module, set())
        if self._records:
            self._recorded.append(module)
        needed, n_new = module.own, 0
        keeps = recomputes and self.settings.keeps_recomputed and (self._active or self.settings.for_model)
        if away := [live for live in needed if live.status == "away"]:
            self._gather(away)
        for live in needed:
            live.active.add(module)
            if keeps and not live.param.trained:
                owner = self._model if self.settings.for_model else next(reversed(self._active))
                self._active.setdefault(owner, set()).add(live)
                live.active.add(owner)
            if live in self._in_flight:
                self._wait_for_oldest()
                self._engine.free(*self._ask(live))
                self._asked.append(self._n_late)
            n_new += live.fetched_for < self._step
        if self._next < len(self._order):
            self._prefetch(n_new)
        self._step += 1

    def _wait_for_oldest(self) -> None:
        if len(self._asked) > _MOST_FETCHES:
            before = self._asked.popleft()
            if self._n_back < before and self._n_late - before <= MOST_LAG:
                self._engine.wait(self._n_late - before)
                self._n_back = before

    def _prefetch(self, n_needed: int) -> None:
        """Skip what the module itself needs, then gather until the bucket is full or too much is whole."""
        order, number = self._order, self._next
        if n_needed:
            discarded: set[Live] = set()
            while number < len(order) and len(discarded) < n_needed:
                live, step = order[number]
                live.fetched_for = step
                discarded.add(live)
                number += 1
        limit = min(self.settings.max_live - self._available, self.settings.prefetch)
        self._next = number
        if limit <= 0:
            return
        wanted: dict[Live, None] = {}
        elements = 0
        while number < len(order) and elements < limit:
            live, step = order[number]
            live.fetched_for = max(live.fetched_for, step)
            if live.status == "away" and live not in wanted:
                wanted[live] = None
                elements += live.param.elements
            number += 1
        self._next = number
        if wanted:
            self._gather([*wanted])

    def release(self, module: Module, *, forward: bool) -> None:
        """``release_sub_module``: what is not needed again soon goes."""
        own = module.own
        recomputed = None if forward else self._active.pop(module, None)
        if not own and not recomputed:
            return
        several = own if len(own) == 1 and not recomputed else _in_order({*own, *(recomputed or ())})
        released = self._to_release(module)
        for live in several:
            if not forward:
                self._engine.free(*live.views)
                live.views.clear()
            live.active.discard(module)
            again = recomputed is not None and live in recomputed
            if (again and not live.persists) or live in released:
                self._release_one(live)

    def _to_release(self, module: Module) -> list[Live]:
        """``__params_to_release``: in a pass of unknown order everything goes.

        Else what was once decided for a module and its place holds for good, even where the order is another
        one by now (``lru_cache``).
        """
        if not self._passed:
            return module.own
        place = module, self._step
        if place not in self._decided:
            self._decided[place] = [live for live in module.own if self._goes(live)]
        return self._decided[place]

    def _goes(self, live: Live) -> bool:
        """Not what prefetch has passed over, nor what comes again within the reuse distance."""
        if live.persists or live.fetched_for > self._step:
            return False
        use = bisect_left(live.uses, self._step)
        if use == len(live.uses):
            return True
        return self._passed[live.uses[use]] - self._passed[self._step] >= self.settings.max_reuse

    def end_of_backward(self) -> None:
        """``release_backward_leftovers``: modules whose input needed no gradient, such as the token table.

        Versions before it keep them until the next forward has run them, or the optimizer steps.
        """
        if self.settings.counts_early:
            self._available = 0
        if not self.settings.keeps_recomputed:
            self._active.clear()
        while self._active:
            module, recomputed = self._active.popitem()
            for live in _in_order({*module.own, *recomputed}):
                live.active.discard(module)
                if not live.persists:
                    self._release_one(live)
        self._asked.clear()

    def end_of_graph(self) -> None:
        """What the graph kept goes with it.

        ``free_param`` only lets go of ``param.data`` (partition_parameters.py).
        """
        self._engine.free(*self._in_graph)
        self._in_graph.clear()

    def release_all(self, everything: Iterable[Live]) -> None:
        """``release_and_reset_all``, when the optimizer steps."""
        for live in everything:
            self._engine.free(*self._ask(live))
            live.active.clear()
            self._release_one(live)
        self._asked.clear()

    def gather_now(self, wanted: Iterable[Live]) -> None:
        """``_post_step``: each is whole again in memory of its own, on the stream that computes, and the host
        waits; on one process they always are.

        Source: DeepSpeed 0.19.8 runtime/zero/partition_parameters.py _allgather_params_sequential.
        """
        away = [live for live in wanted if live.status == "away"]
        for live in away:
            n_bytes, world = live.part_bytes * self.settings.world, self.settings.world
            live.slot = self._engine.take(n_bytes, WHOLE, live.param) if world > 1 else None
            live.status, live.at_once = "here", True
        if away:
            self._engine.wait(0)
            self._n_back = self._n_late

    def gather_all(self, wanted: Iterable[Live]) -> None:
        """``GatheredParameters``: each is whole in memory of its own, on the stream that computes.

        Source: DeepSpeed 0.19.8 runtime/zero/partition_parameters.py _allgather_params_coalesced, which
        uploads all parts that are on the host before it gathers.
        """
        away = _in_order(live for live in wanted if live.status == "away")
        uploads = self.settings.offloads_params
        parts = [
            self._engine.take(live.part_bytes, UPLOADED, live.param)
            for live in away
            if uploads and not live.persists
        ]
        self.gather_now(away)
        self._engine.free(*parts)

    def divide_all(self, several: Iterable[Live]) -> None:
        """The end of it: each goes, those that stay whole otherwise, too."""
        for live in several:
            self.divide_inside(live)
            self._engine.free(live.slot)
            live.slot, live.status = None, "away"

    def live(self, param: Param) -> Live:
        """A parameter before the first step."""
        n_bytes = self.part(param) * param.element_bytes
        return Live(param, param.elements <= self.settings.persistence, n_bytes)

    def part(self, param: Param) -> int:
        """Elements of one process's part, padded."""
        return -(-param.elements // self.settings.world)

    def _gather(self, wanted: list[Live]) -> None:
        """``all_gather_coalesced``, of those with a second copy and of others: one parameter arrives in its
        own memory, several in a flat buffer for each dtype, or in one of 8 bits.
        """
        for live in wanted:
            self._available += live.param.elements
        for has_second in (True, False):
            several = _in_order(live for live in wanted if live.has_second == has_second)
            copies = len(several) > 1
            if self.settings.quantizes_weights:
                self._start(several, copies=copies)
                continue
            for width in sorted({live.param.element_bytes for live in several}):
                alike = [live for live in several if live.param.element_bytes == width]
                self._start(alike, copies=copies)

    def _start(self, several: list[Live], *, copies: bool) -> None:
        if several:
            handle = self._gathers.begin(several, copies=copies)
            for live in several:
                live.status = "in flight"
                self._in_flight[live] = handle

    def _wait_for_upload(self) -> None:
        """``ds_tensor.to(device)`` blocks the host where there are several processes: what was given back
        before comes back.

        Source: DeepSpeed 0.19.8 runtime/zero/partition_parameters.py _all_gather_dtype and
        all_gather_coalesced, which copy without ``non_blocking``; 0.18.9 alike.
        Ignored: that the stream that computes may be further behind than the one that copies.
        """
        self._engine.wait(0)
        self._n_back = self._n_late

    def _ask(self, live: Live) -> list[int]:
        """``AllGatherCoalescedHandle.wait``: every parameter is copied together.

        Gives the buffers with the last one asked for, to be freed.
        """
        handle = self._in_flight.pop(live, None)
        if handle is None:
            return []
        if not handle.complete:
            handle.complete = True
            self._gathers.arrive(handle)
            for each in handle.parameters:
                each.status = "here"
        handle.asked += 1
        return handle.buffers if handle.asked == len(handle.parameters) else []

    def divide_inside(self, live: Live) -> None:
        """``_partition_param_sec``: whenever a whole parameter is given back,
        its second copy is there or is made, on the host where parameters are offloaded.
        """
        if self.settings.hpz > 1 and not live.has_second:
            live.has_second = True
            if not self.settings.offloads_params:
                what = Purpose("ds_secondary_tensor", live.param.term)
                live.second = self._engine.take(self._gathers.sent_bytes(live), what, live.param)

    def forget_second(self, live: Live) -> None:
        """``invalidate_secondary_tensor``: it has the weights of before."""
        self._engine.free(live.second)
        live.has_second, live.second = False, None

    def _release_one(self, live: Live) -> None:
        if live.status == "here" and not live.active:
            self.divide_inside(live)
            kept = live.param.in_graph if self.makes_graph else ""
            if kept == "bound":
                self._in_graph.append(live.slot)
            elif kept == "saved" and not self._engine.job.recipe.gradient_checkpointing:
                live.views.append(live.slot)
            elif live.at_once:
                self._engine.free(live.slot)
            else:
                self._n_late += 1
                self._engine.free_late(live.slot, MOST_LAG)
            live.slot, live.status, live.at_once = None, "away", False
            self._available -= live.param.elements


NUMBER = attrgetter("param.number")


def _in_order(several: Iterable[Live]) -> list[Live]:
    return sorted(several, key=NUMBER)
