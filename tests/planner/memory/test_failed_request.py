"""The request that fails, by hand and of a real job."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from planner.allocator.settings import AllocatorSettings
from planner.allocator.slots import SlotEvents, replay_slots
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.replayed_peak import ends_expandable, failed_request, predict_replayed
from planner.program.job import job_of
from planner.units import GIB, MIB
from tests.jobs import resolved

FLAGS = {"model": "qwen2.5-0.5b", "method": "lora", "gpu": "4090", "seq": 512, "batch": 1}


scenario = partial(resolved, FLAGS)
"""A small LoRA job."""


def test_expandable_segments_join_what_plain_ones_keep_apart() -> None:
    """Two blocks of 30 MiB are freed; 60 MiB are one piece only where segments expand."""
    events = [0, 1, ~0, ~1, 2, 3]
    program = SlotEvents(events, [30 * MIB, 30 * MIB, 8 * MIB, 52 * MIB], (), [0])
    # The 8 MiB lie in the first of the two, which is therefore not given back.
    assert replay_slots(program, 64 * MIB).failure is not None
    assert ends_expandable(program, 64 * MIB)
    assert not ends_expandable(program, 52 * MIB)


def test_the_first_request_that_a_card_cannot_serve_is_found() -> None:
    """With room for the weights alone it is in the first forward pass or its loss;
    with plenty there is none.
    """
    job = job_of(scenario(), Coefficients())
    assert failed_request(job, 80 * GIB) is None
    states = int(predict_replayed(job).state_bytes)
    failed = failed_request(job, states + 100 * MIB)
    assert failed is not None
    assert failed.phase in ("forward", "loss")
    assert failed.n_bytes > failed.largest_free_bytes
    assert re.fullmatch(r"layer \d+|head|embeddings|products", failed.part)


def test_a_job_whose_segments_grow_is_not_told_to_let_them_grow() -> None:
    """The same small card: what could help a job in plain segments is not asked where they grow already."""
    job = job_of(scenario(switches="expandable_segments=on"), Coefficients())
    states = int(predict_replayed(job).state_bytes)
    failed = failed_request(job, states + 100 * MIB)
    assert failed is not None
    assert failed.fits_expandable is None


def test_memory_that_another_stream_uses_is_waited_for_in_growing_segments_too() -> None:
    """Two blocks of 40 MiB that the program let go of lie unused until another stream is done with them."""
    events = [0, ~0, 1, ~1, 2]
    program = SlotEvents(events, [40 * MIB] * 3, [0] * 3, [0], lags=[2] * 3)
    growing = replace(program, settings=AllocatorSettings(expandable_segments=True))
    assert replay_slots(growing).reserved_bytes == 120 * MIB
    assert ends_expandable(program, 80 * MIB)
    assert not ends_expandable(program, 39 * MIB)
