"""ZeRO++: weights that are sent in 8 bits, gradients in 4, and second copies on the host."""

from __future__ import annotations

import pytest

from planner.errors import RefusedCombinationError
from planner.program.engines.zero.gathers import quantized_groups
from tests.planner.program.engines.zero.test_zero12 import TRAINED, allocated, stream_of

WIDTH, TABLE = 896, 151_936 * 896
JOB = {"sharding": "zero3", "gpus": "4"}


def test_a_scale_is_for_8000_elements_at_most() -> None:
    """All groups are as large, and multiples of 8: 8,008 are 7 of 1,144."""
    assert [quantized_groups(n) for n in (8, 8000, 8008, 16_000)] == [1, 1, 7, 2]
    with pytest.raises(RefusedCombinationError, match="multiples of 8 elements, and one of 12 is sent"):
        quantized_groups(12)


def test_weights_come_in_a_byte_each_with_scales_and_become_16_bits() -> None:
    """The token table is gathered by itself: 8 bits, then fp16, then bf16 while both are there."""
    stream, sizes = stream_of(**JOB, switches=["zero3_quantized=weights"])
    of_table = [slot for slot in stream.events if slot >= 0 and stream.place(slot)[0] == "embeddings"]
    names = [stream.place(slot)[2] for slot in of_table]
    first = names.index("quantize(part)")
    asked = [(names[at], sizes[of_table[at]]) for at in range(first - 2, first + 5)]
    scales = 4 * quantized_groups(TABLE // 4)
    assert asked == [
        ("all_gather flat_tensor", TABLE),
        ("part in fp16", TABLE // 4 * 2),
        ("quantize(part)", scales),
        ("quantize(part)", TABLE // 4),
        ("all_gather scales", scales * 4),
        ("dequantize(flat_tensor)", TABLE * 2),
        ("gathered parameter", TABLE * 2),
    ]


def test_fp16_needs_no_copy_on_the_way() -> None:
    """The kernels read and write it."""
    switches = ["zero3_quantized=weights"]
    names = {}
    for precision in ("bf16-mixed", "fp16-mixed"):
        stream, _ = stream_of(**JOB, switches=switches, precision=precision)
        names[precision] = {stream.place(slot)[2] for slot in stream.events if slot >= 0}
    assert names["bf16-mixed"] - names["fp16-mixed"] == {"part in fp16"}


def test_gradients_go_in_4_bits_between_nodes_alone() -> None:
    """Of the table's: half a byte sent and received in a node of 2, a quarter across, the sum in fp16; then
    a part from each of 2 nodes.
    """
    name = "all_to_all_quant_reduce"
    job = {**JOB, "switches": ["zero3_quantized=gradients"]}
    assert not allocated(*stream_of(**job), name)
    stream, sizes = stream_of(**job | {"gpus": "2", "nodes": "2"})
    half = TABLE // 2
    of_table = [half, half, half // 2, half // 2, TABLE // 2 * 2, *[TABLE // 4 * 2] * 3]
    taken = allocated(stream, sizes, name)
    places = [at for at in range(len(taken)) if taken[at : at + 8] == of_table]
    assert len(places) == 2
    assert len(taken) % 8 == 0


def test_second_copies_of_offloaded_parameters_are_on_the_host() -> None:
    """From there the part of the second copy comes, twice as large with half as many GPUs."""
    for hpz, n_bytes in (("1", 2 * TABLE // 4), ("2", 2 * TABLE // 2)):
        stream, sizes = stream_of(**JOB, offload="optimizer+params", hpz=hpz)
        assert not allocated(stream, sizes, "ds_secondary_tensor")
        assert max(allocated(stream, sizes, "partition from the host")) == n_bytes
    assert TRAINED > TABLE
