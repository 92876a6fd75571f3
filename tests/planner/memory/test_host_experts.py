"""What experts on the CPU take of host RAM, counted by hand."""

from __future__ import annotations

import pytest

from planner.domain.prediction import HostPrediction
from planner.memory.host import predict_host
from planner.predicting import estimate
from planner.report.prediction.subject import rests_on_unknown_host
from tests.jobs import job_by, resolved

# Qwen3-30B-A3B: 48 layers of 128 experts, 8 of which compute each token, between 2,048 and 768 features.
LAYERS, EXPERTS, CHOSEN, HIDDEN, WIDTH = 48, 128, 8, 2048, 768
MATRICES = 3 * HIDDEN * WIDTH
TOKENS = 2 * 512


def host(*switches: str, rank: int = 8) -> HostPrediction:
    """LoRA over two cards, one sample of 512 tokens each."""
    flags: dict[str, object] = {
        "model": "qwen3-30b-a3b", "method": "lora", "lora_rank": rank, "lora_targets": "all-linear",
        "gpu": "a100-80gb", "gpus": 2, "sharding": "fsdp", "seq": 512, "batch": 1, "stack": "llama-factory",
        "switches": switches or ("host_experts=none",),
    }  # fmt: skip
    return predict_host(job_by(flags))


def held(*switches: str, rank: int = 8) -> dict[str, float]:
    """Host memory by name."""
    return {each.name: float(each.n_bytes) for each in host(*switches, rank=rank).terms}


def test_weights_lie_there_once_and_one_layer_transposed() -> None:
    """In bf16, or in int8 with a scale for each row of a matrix of each part."""
    wide = held("host_experts=bf16")["expert_weights"]
    assert wide == (LAYERS + 1) * EXPERTS * MATRICES * 2
    narrow = held("host_experts=int8", "host_parts=2")["expert_weights"]
    assert narrow == (LAYERS + 1) * EXPERTS * (MATRICES + 4 * (2 * WIDTH + 2 * HIDDEN))
    assert "expert_weights" not in held()


def test_adapters_have_gradients_and_states_in_16_bits() -> None:
    """8 bytes for each number; copies with 32 ranks, and with 8."""
    numbers = LAYERS * EXPERTS * 8 * 3 * (HIDDEN + WIDTH)
    filled = LAYERS * EXPERTS * 2 * 32 * (HIDDEN + WIDTH)
    copies = LAYERS * EXPERTS * 2 * 8 * (5 * WIDTH + HIDDEN)
    assert held("host_experts=bf16")["expert_adapters"] == 8 * numbers + filled + copies


def test_activations_are_those_of_all_ranks_of_one_layer_or_of_every_one() -> None:
    """The input once, the output and three tensors of the width for each of eight experts, in two parts."""
    parts = ("host_experts=bf16", "host_parts=2")
    again = held(*parts)["expert_activations"]
    row = 2 * HIDDEN * 2
    assert again == TOKENS * (row + CHOSEN * (3 * 2 * WIDTH + row + 4 * 8 * 2))
    kept = held(*parts, "keeps_host_activations=true")["expert_activations"]
    assert kept == LAYERS * (again + TOKENS * 2 * HIDDEN)


def test_one_process_of_the_job_has_them() -> None:
    """A node has them once, whatever its number of processes."""
    without, beside = host(), host("host_experts=bf16")
    names = {each.name: float(each.n_bytes) for each in beside.terms}
    experts = sum(size for name, size in names.items() if name.startswith("expert_"))
    assert experts > 0
    assert beside.required_per_node_bytes == pytest.approx(without.required_per_node_bytes + experts)
    assert beside.steps_per_process_bytes == pytest.approx(without.steps_per_process_bytes + experts)


def test_the_answer_says_what_a_node_needs_and_no_time() -> None:
    """Where nobody said what the node has; else the verdict does."""
    answer = {"switches": ("host_experts=bf16",), "gpus": 2, "sharding": "fsdp", "stack": "llama-factory"}
    job = {"model": "qwen3-30b-a3b", "method": "lora", "gpu": "a100-80gb", "seq": 512, "batch": 1}
    scenario = resolved({**job, **answer})
    made = estimate(scenario)
    assert rests_on_unknown_host(scenario, made)
    assert (made.time, made.untimed) == (None, "how long the CPU computes the experts is not known")
    said = resolved({**job, **answer, "host_memory": "32GiB"})
    assert estimate(said).verdict == "host_memory_short"
    assert not rests_on_unknown_host(said, estimate(said))
