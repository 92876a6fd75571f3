"""FSDP1: flat parameters, their gradients, and what other streams still use."""

from __future__ import annotations

from planner.program.step import step_of
from tests.planner.program.engines.fsdp.test_fsdp import (
    ADAPTERS,
    LAYER,
    LAYERS,
    TABLE,
    TAIL,
    N,
    job,
    left,
    rows,
)


def test_fsdp1_keeps_its_root_and_sees_layers_inside_what_it_received() -> None:
    """The root is table, last norm and head; casts have a stream of their own, and nothing is copied out."""
    found = rows(job(sharding="fsdp1"), "forward_2")
    of_layer = [("_mp_shard", 2 * LAYER // N, 3), ("_full_param_padded", 2 * LAYER, 1)]
    root = 2 * (TABLE + TAIL)
    assert found == [("_mp_shard", root // N, 3), ("_full_param_padded", root, 1), *LAYERS * of_layer]


def test_fsdp1_joins_gradients_and_reduces_them_in_a_pool_of_its_own() -> None:
    """The root's come last."""
    found = rows(job(sharding="fsdp1"), "backward_2")
    reduced = [each for each in found if each[0] != "_mp_shard" and each[0] != "_full_param_padded"]

    def of(elements: int) -> list[tuple[str, int, int]]:
        parts = [
            ("new_sharded_grad", 2 * elements // N, 2),
            ("_cast_grad_to_param_dtype", 4 * elements // N, 2),
        ]
        return [("cat", 2 * elements, 1), *parts]

    assert reduced == [*LAYERS * of(LAYER), *of(TABLE + TAIL)]


def test_fsdp1_frees_late_what_another_stream_uses_and_fsdp2_nothing() -> None:
    """A flat parameter that compute uses, the cast shard that is sent, gradients that are joined, and
    what is reduced of them.
    """
    stream = step_of(job(sharding="fsdp1"))
    late = {(stream.place(slot)[2], lag) for slot, lag in stream.lags.items()}
    of_engine = {("_full_param_padded", 1), ("cat", 2), ("_mp_shard", 2)}
    assert of_engine < late
    # The gradients of seven matrices and of two norms, while the next layer's backward runs.
    assert {lag for _, lag in late - of_engine} == {7, 2}
    assert not step_of(job()).lags


def test_flat_parameters_that_mix_adapters_and_frozen_weights_have_whole_gradients() -> None:
    """PEFT's policy makes units of adapters; a policy of layers leaves zeros for every frozen weight."""
    flags = {"method": "lora", "sharding": "fsdp1", "lora_rank": 16, "lora_targets": "all-linear"}
    apart = {n_bytes for op, n_bytes, _ in rows(job(**flags), "backward_2") if op == "cat"}
    assert apart == {2 * ADAPTERS}
    mixed = job(**flags, switches="fsdp1_wraps_adapters=false")
    assert {n_bytes for op, n_bytes, _ in rows(mixed, "backward_2") if op == "cat"} == {
        2 * (LAYER + ADAPTERS)
    }


def test_fsdp1_keeps_gradients_on_the_card_until_backward_ends_though_they_are_offloaded() -> None:
    """``_saved_grad_shard``: Llama 3.2 1B on two GPUs reserved 9.53 GiB in TRL's own run, 7.66 without."""
    subject = job(sharding="fsdp1", offload="optimizer+params")
    stream = step_of(subject)
    events = list(stream.events)
    begin = next(begin for begin, phase in stream.phases if phase == "backward_2")
    kept = [e for e in events[begin:] if e >= 0 and stream.place(e)[2] == "_cast_grad_to_param_dtype"]
    assert min(events.index(~e) for e in kept[: LAYERS + 1]) > events.index(kept[LAYERS])
    assert left(subject) == {}
