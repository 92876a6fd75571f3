"""What GPUs that share a batch send one another, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from planner.domain.uncertainty.coefficients import Coefficients
from planner.throughput.parallel_time import parallel_bytes, parallel_seconds
from planner.throughput.rates import intra_node_bytes_per_s
from planner.throughput.step_time import predict_time
from planner.throughput.time_inputs import TimedJob, job_of
from tests.jobs import resolved, typed

TOKENS, HIDDEN, LAYERS, WORDS = 4096, 4096, 32, 128256
KEYS = 8 * 128


def job(**flags: Any) -> TimedJob:
    """Llama 3.1 8B in bf16 on H100 cards."""
    base = typed(
        f"--model llama-3.1-8b --method full --seq {TOKENS} --padding packed --no-gradient-checkpointing"
    )
    made = job_of(resolved(base | flags), Coefficients())
    assert made is not None
    return made


def test_sums_of_whole_streams() -> None:
    """Transformers: in each layer two sums and five of gradients, one at each end; logits are gathered."""
    found = job(gpu="h100-sxm:2", tensor_parallel=2)
    stream = TOKENS * HIDDEN * 2
    sums = LAYERS * (2 + 5) + 2
    assert parallel_bytes(found) == pytest.approx(sums * 2 * stream / 2 + TOKENS * WORDS * 2 / 2)


def test_parts_of_tokens_and_keys() -> None:
    """Torchtitan: two gathers and two sums in each pass of a layer, one of each at the ends;
    keys and values twice.
    """
    found = job(gpu="h100-sxm:4", tensor_parallel=2, context_parallel=2)
    stream = TOKENS // 2 * HIDDEN * 2
    keys = TOKENS * 2 * (KEYS // 2) * 2
    one_way = LAYERS * 4 + 2
    assert parallel_bytes(found) == pytest.approx(2 * one_way * stream / 2 + LAYERS * 2 * keys / 2)


def test_rows_of_divided_experts() -> None:
    """Megatron: each layer gathers rows and their weights and sums outputs in fp32; backward sums gradients
    of rows, and gathers those of outputs in fp32.
    """
    flags = {"model": "qwen3-30b-a3b", "stack": "megatron", "gpu": "h100-sxm:2", "tensor_parallel": 2}
    more = job(expert_tensor_parallel=2, **flags)
    rows = TOKENS // 2 * 8
    of_row = 2048 * 2 + 4 + 2048 * 4
    sent = parallel_bytes(more) - parallel_bytes(job(expert_tensor_parallel=1, **flags))
    assert sent == pytest.approx(48 * 2 * rows * of_row)


def test_one_head_of_keys_at_a_time() -> None:
    """Axolotl: the first head of each pass, and of backward the sums of all; kernels hide the rest."""
    found = job(gpu="h100-sxm:4", context_parallel=4, stack="axolotl", attention="flash2", batch=1)
    from_others = 3 * TOKENS // 4 * 128 * 2
    assert parallel_bytes(found) == pytest.approx(LAYERS * 2 * (1 + 8) * from_others)


@pytest.mark.parametrize("padding", ["max_length", "longest"])
def test_full_samples_take_as_long_as_packed_ones(padding: str) -> None:
    """Every token of a part attends to the keys of the whole sample, however rows are filled."""
    flags = {"gpu": "h100-sxm:4", "context_parallel": 4, "stack": "axolotl", "attention": "flash2"}
    times = [
        predict_time(job(**flags, seq=65_536, padding=each).scenario, Coefficients())
        for each in ("packed", padding)
    ]
    packed, padded = (float(time.step_s) for time in times if time is not None)
    assert padded == pytest.approx(packed)


def test_exchanged_heads() -> None:
    """DeepSpeed: queries, keys, values and outputs, forward and back."""
    flags = {"gpu": "h100-sxm:8", "context_parallel": 8, "stack": "trl", "attention": "flash2", "batch": 1}
    found = job(**flags, sharding="zero2")
    part = TOKENS // 8 * 2
    each_way = (2 * HIDDEN + 2 * KEYS) * part * 7 / 8
    assert parallel_bytes(found) == pytest.approx(LAYERS * 2 * each_way)


def test_tokens_exchanged_for_heads() -> None:
    """LLaMA-Factory v1: query, key, value and output, each way; half comes from the other."""
    said = {"stack": "llama-factory-v1", "attention": "flash2", "sharding": "fsdp", "precision": "bf16-mixed"}
    found = job(gpu="h100-sxm:2", context_parallel=2, **said)
    exchanged = TOKENS // 2 * (2 * HIDDEN + 2 * KEYS) * 2
    assert parallel_bytes(found) == pytest.approx(LAYERS * 2 * exchanged / 2)


def test_their_time_is_that_of_the_links() -> None:
    """Nothing hides it; jobs whose GPUs have batches of their own have none of it."""
    found = job(gpu="h100-sxm:2", tensor_parallel=2)
    rate = intra_node_bytes_per_s(found.scenario.hardware, found.coefficients)
    assert parallel_seconds(found) == pytest.approx(parallel_bytes(found) / rate)
    assert parallel_bytes(job(gpu="h100-sxm:2")) == 0


def test_tokens_of_the_whole_job_are_counted_once() -> None:
    """Eight GPUs in groups of four have two batches."""
    scenario = resolved(
        {"model": "llama-3.1-8b", "method": "full", "gpu": "h100-sxm:8", "seq": 32768}
        | {"tensor_parallel": 2, "context_parallel": 2}
    )
    time = predict_time(scenario, Coefficients())
    assert time is not None
    assert time.samples_per_s * time.step_s == pytest.approx(2)
    assert time.tokens_per_s * time.step_s == pytest.approx(2 * 32768)
