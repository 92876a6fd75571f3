"""What blocks of a recorded history were for, told by when they were made and let go."""

from __future__ import annotations

import pytest

from planner.allocator.events import AllocEvent
from planner.allocator.lifetimes import with_terms


def terms_of(*steps: tuple[str, str, int]) -> dict[int, str]:
    """Terms by block, from (phase, action, block)."""
    events = [AllocEvent(action, block, 512, phase=phase) for phase, action, block in steps]  # type: ignore[arg-type]
    return {event.block: event.term for event in with_terms(events) if event.action == "alloc"}


# Block 0 begins each history and block 9 ends it, so that the last phase is known.
@pytest.mark.parametrize(
    ("born", "freed", "term"),
    [
        ("load", None, "weights"),
        ("load", "load", "other_temporaries"),
        ("adapters", None, "adapters"),
        ("adapters", "adapters", "other_temporaries"),
        ("forward", "forward", "block_recompute"),
        ("forward", "backward", "saved_activations"),
        ("forward", "optimizer_step", "other_temporaries"),
        ("loss", "loss", "logits_and_loss"),
        ("loss", "backward", "logits_and_loss"),
        ("loss", "optimizer_step", "other_temporaries"),
        ("backward", "backward", "block_recompute"),
        ("backward", "optimizer_step", "gradients"),
        ("optimizer_step", "optimizer_step", "optimizer_temporaries"),
        ("optimizer_step", None, "optimizer_states"),
    ],
)
def test_a_block_is_told_by_the_phases_of_its_life(born: str, freed: str | None, term: str) -> None:
    """In one step; the history ends in a phase of its own, where nothing waits for a backward."""
    steps: list[tuple[str, str, int]] = []
    for phase in ("load", "adapters", "forward", "loss", "backward", "optimizer_step"):
        steps.append((phase, "alloc", 90))
        steps += [(phase, "alloc", 1)] * (phase == born)
        steps += [(phase, "free", 1)] * (phase == freed)
        steps.append((phase, "free", 90))
    assert terms_of(*steps, ("eval", "alloc", 9))[1] == term


def test_a_recording_that_ends_within_a_pass_has_activations() -> None:
    """What the forward made and nobody let go would have been let go in backward."""
    assert terms_of(("forward", "alloc", 1), ("backward", "alloc", 2)) == {
        1: "saved_activations",
        2: "gradients",
    }
    assert terms_of(("loss", "alloc", 1), ("loss", "alloc", 2)) == {
        1: "logits_and_loss",
        2: "logits_and_loss",
    }


def test_what_outlives_its_micro_step_is_a_workspace() -> None:
    """The next forward has begun before it is let go."""
    steps = [
        ("forward", "alloc", 1),
        ("backward", "alloc", 2),
        ("forward_2", "free", 1),
        ("forward_2", "alloc", 3),
    ]
    assert terms_of(*steps, ("backward_2", "free", 3)) == {
        1: "other_temporaries",
        2: "gradients",
        3: "saved_activations",
    }


def test_a_block_is_let_go_when_the_program_lets_it_go() -> None:
    """Not later, when the other stream has done with it."""
    steps = [("forward", "alloc", 1), ("forward", "free_requested", 1), ("backward", "free", 1)]
    assert terms_of(*steps) == {1: "block_recompute"}


def test_a_block_number_that_is_used_again_has_its_own_life() -> None:
    """First a temporary, then a weight; frees keep no term."""
    events = with_terms(
        [
            AllocEvent("alloc", 1, 512, phase="load"),
            AllocEvent("free", 1, 512, phase="load"),
            AllocEvent("alloc", 1, 512, phase="load"),
            AllocEvent("alloc", 2, 512, phase="forward"),
        ]
    )
    assert [event.term for event in events] == ["other_temporaries", "", "weights", "saved_activations"]
    assert with_terms([]) == []
