"""What is gathered for a module, ahead of it and together, and when it goes: parameters made by hand."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from planner.program.engines.params import Param
from planner.program.engines.zero.coordinator import Coordinator
from planner.program.engines.zero.deepspeed import Purpose
from planner.program.engines.zero.deepspeed_settings import Settings
from planner.program.engines.zero.gathers import Live, Module

SETTINGS = Settings(
    world=2,
    element_bytes=2,
    bucket=100,
    overlaps=True,
    accumulates=False,
    offloads_optimizer=False,
    offloads_params=False,
    prefetch=15,
    persistence=0,
    max_live=1000,
    sub_group=1000,
    max_reuse=0,
)


@dataclass
class Engine:
    """Notes what a coordinator takes (bytes) and frees (the same, negative)."""

    settings: Settings = SETTINGS
    said: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)

    def take(self, n_bytes: int, what: Purpose, param: Param | None = None) -> int:
        """Allocate."""
        del what, param
        self.said.append(n_bytes)
        self.sizes.append(n_bytes)
        return len(self.sizes) - 1

    def free(self, *slots: int | None) -> None:
        """Free."""
        self.said += [-self.sizes[slot] for slot in slots if slot is not None]

    def free_late(self, slot: int | None, lag: int) -> None:
        """Free what is still used."""
        assert lag
        self.free(slot)

    def wait(self, left: int) -> None:
        """The host waits."""
        self.waits.append(left)

    def new(self) -> list[int]:
        """What was said since the last time."""
        said, self.said = self.said, []
        return said


def modules(*elements: int, persists: bool = False) -> list[Module]:
    """Modules of one 16-bit parameter each."""
    made = []
    for number, n in enumerate(elements):
        weight = Param(
            number, n, 2, trained=True, decays=True, place=("layer 0", str(number)), term="weights"
        )
        # A padded half of its elements on each of two processes.
        made.append(Module([Live(weight, persists, 2 * -(-n // 2))]))
    return made


def one_pass(coordinator: Coordinator, several: list[Module], engine: Engine) -> list[list[int]]:
    """A forward pass: what is taken and freed before and after each module."""
    coordinator.new_pass(live for module in several for live in module.own)
    said = []
    for module in several:
        coordinator.fetch(module, forward=True, recomputes=False)
        said.append(engine.new())
        coordinator.release(module, forward=True)
        said.append(engine.new())
    return said


def test_first_pass_gathers_one_module_at_a_time() -> None:
    """The order of modules is not known yet."""
    engine, several = Engine(), modules(10, 7)
    # 7 elements over 2 processes are padded to 8.
    assert one_pass(Coordinator(engine), several, engine) == [[20], [-20], [16], [-16]]  # type: ignore[arg-type]


def test_what_the_graph_has_a_view_of_stays_until_it_goes() -> None:
    """A 4-bit matrix is gathered anew for backward, and bitsandbytes' context has that of the forward."""
    engine, (module,) = Engine(), modules(10)
    live = module.own[0]
    live.param = replace(live.param, trained=False, in_graph="bound")
    coordinator = Coordinator(engine)  # type: ignore[arg-type]
    coordinator.makes_graph = True
    assert one_pass(coordinator, [module], engine) == [[20], []]
    coordinator.makes_graph = False
    coordinator.fetch(module, forward=False, recomputes=False)
    coordinator.release(module, forward=False)
    assert engine.new() == [20, -20]
    coordinator.end_of_graph()
    assert engine.new() == [-20]


def test_later_passes_gather_ahead_until_the_bucket_is_full() -> None:
    """Fifteen elements at a time."""
    engine, several = Engine(), modules(10, 10, 10, 10)
    coordinator = Coordinator(engine)  # type: ignore[arg-type]
    one_pass(coordinator, several, engine)
    said = one_pass(coordinator, several, engine)
    # The first alone, then two together (15 elements need two of ten)
    # in a buffer that is copied when the first is asked for.
    assert said[0] == [20, 40]
    assert said[2] == [20, 20, 20]
    # The buffer goes when both have been asked for; the fourth was gathered by itself.
    assert said[4] == [-40]
    assert said[6] == []
    assert said[1] == said[3] == said[5] == said[7] == [-20]


def test_nothing_is_gathered_ahead_beyond_what_may_be_live() -> None:
    """The module that runs has all that may be whole."""
    engine = Engine(replace(SETTINGS, max_live=10))
    several = modules(10, 10, 10)
    coordinator = Coordinator(engine)  # type: ignore[arg-type]
    one_pass(coordinator, several, engine)
    assert one_pass(coordinator, several, engine) == [[20], [-20]] * 3


def test_what_is_used_again_soon_stays() -> None:
    """Within the reuse distance nothing is released."""
    engine = Engine(replace(SETTINGS, max_reuse=11, prefetch=0))
    first, second = modules(10, 10)
    coordinator = Coordinator(engine)  # type: ignore[arg-type]
    one_pass(coordinator, [first, second, first], engine)
    # Ten elements pass before the first module comes again, fewer than eleven.
    assert one_pass(coordinator, [first, second, first], engine) == [[20], [], [20], [-20], [], [-20]]


@pytest.mark.parametrize(
    ("keeps", "for_model", "said"),
    [(False, False, [[-20], [], []]), (True, False, [[], [-20], []]), (True, True, [[], [], [-20]])],
)
def test_what_is_gathered_to_recompute_stays_as_long_as_the_module_around(
    keeps: bool, for_model: bool, said: list[list[int]]
) -> None:
    """Whole after the second run, after the backward of the layer around it, or after that of the model."""
    engine, (around, frozen) = (
        Engine(replace(SETTINGS, keeps_recomputed=keeps, for_model=for_model)),
        modules(0, 10),
    )
    around.own, frozen.own[0].param = [], replace(frozen.own[0].param, trained=False)
    coordinator = Coordinator(engine)  # type: ignore[arg-type]
    coordinator.fetch(around, forward=False, recomputes=False)
    coordinator.fetch(frozen, forward=True, recomputes=True)
    assert engine.new() == [20]
    coordinator.release(frozen, forward=True)
    found = [engine.new()]
    coordinator.release(around, forward=False)
    found.append(engine.new())
    coordinator.end_of_backward()
    assert [*found, engine.new()] == said


def test_the_host_waits_for_the_third_parameter_before() -> None:
    """When it asks for the fourth, what was given back before it asked for the second comes back."""
    engine, several = Engine(), modules(10, 10, 10, 10, 10)
    coordinator = Coordinator(engine)  # type: ignore[arg-type]
    one_pass(coordinator, several, engine)
    assert engine.waits == [0, 3]
    coordinator.end_of_backward()
    coordinator.fetch(several[0], forward=True, recomputes=False)
    assert engine.waits == [0, 3]


@pytest.mark.parametrize(("early", "gathered"), [(False, []), (True, [20])])
def test_what_is_released_after_a_backward_allows_more_prefetch_before_0_15_4(
    early: bool, gathered: list[int]
) -> None:
    """Ten elements may be whole, as the first module has.  The last one's are taken off a new count."""
    engine = Engine(replace(SETTINGS, max_live=10, prefetch=10, counts_early=early))
    first, second, last = modules(10, 10, 10)
    coordinator = Coordinator(engine)  # type: ignore[arg-type]
    everything = [each for module in (first, second, last) for each in module.own]
    for _ in range(2):
        coordinator.new_pass([], trains=True)
        for module in (first, second):
            coordinator.fetch(module, forward=True, recomputes=False)
            coordinator.release(module, forward=True)
        coordinator.fetch(last, forward=False, recomputes=False)
        coordinator.end_of_backward()
        coordinator.release_all(everything)
    coordinator.new_pass(everything, trains=True)
    engine.new()
    coordinator.fetch(first, forward=True, recomputes=False)
    assert engine.new() == [20, *gathered]


@pytest.mark.parametrize(("keeps", "given_back"), [(False, []), (True, [-20])])
def test_before_0_19_3_the_end_of_a_backward_gives_nothing_back(keeps: bool, given_back: list[int]) -> None:
    """A token table, whose input needs no gradient, stays until the next forward has run it."""
    engine, (table,) = Engine(replace(SETTINGS, keeps_recomputed=keeps)), modules(10)
    coordinator = Coordinator(engine)  # type: ignore[arg-type]
    coordinator.new_pass(table.own, trains=True)
    coordinator.fetch(table, forward=False, recomputes=False)
    engine.new()
    coordinator.end_of_backward()
    assert engine.new() == given_back
    coordinator.fetch(table, forward=True, recomputes=False)
    coordinator.release(table, forward=True)
    assert engine.new()[-1] == -20


def test_buffers_that_nobody_asked_for_go_when_all_of_them_are_copied() -> None:
    """``_clean_inflight_param_registry`` keeps its handles until its end (DeepSpeed 0.18.4 and 0.19.8)."""
    engine = Engine()
    coordinator = Coordinator(engine)  # type: ignore[arg-type]
    several = modules(10, 10, 10, 10)
    everything = [live for module in several for live in module.own]
    one_pass(coordinator, several, engine)
    coordinator.new_pass(everything)
    coordinator.fetch(several[0], forward=True, recomputes=False)
    coordinator.release(several[0], forward=True)
    engine.new()
    coordinator.new_pass(everything)
    # A flat buffer for two of ten elements each: each is copied and goes, then the buffer.
    assert engine.new() == [20, 20, -20, -20, -40]
