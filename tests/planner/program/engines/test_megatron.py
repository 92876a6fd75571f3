"""Megatron's buffers and optimizer, against the dry run of megatron-core 0.16.1's own GPTModel, DDP and
distributed optimizer, and by hand.

The dry run: a Llama of 4 layers on a group of fake processes, with local layers in the place of Transformer
Engine's (which cannot be installed without CUDA), bf16 with gradients in fp32.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.anatomy.pipeline_stages import stages_of
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import UnreadCombinationError, UsageError
from planner.memory.replayed_peak import predict_replayed
from planner.program.job import job_of
from planner.program.request_stream import RequestStream
from planner.program.step import step_of
from tests.jobs import resolved

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 5504,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 32768,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}
TOKENS = 1024


def scenario_of(folder: Path, words: int = 32768, **flags: Any) -> Scenario:
    """A job of that model, with a vocabulary of ``words``, under Megatron on two cards."""
    table = {**LLAMA, "vocab_size": words}
    (folder / "config.json").write_text(json.dumps(table), encoding="utf-8")
    said = {"model": str(folder), "stack": "megatron", "method": "full", "gpu": "h100-sxm:2", "seq": TOKENS}
    return resolved({**said, "grad_accum": 2, **flags})


def program(folder: Path, rank: int = 0, **flags: Any) -> RequestStream:
    """The requests of one group of its pipeline, or of all."""
    return step_of(job_of(stages_of(scenario_of(folder, **flags))[rank], Coefficients()))


def alive(stream: RequestStream, until: str) -> tuple[float, float]:
    """Bytes that are allocated when a phase begins, and the most before; units are counted as of the job."""
    begin = next(begin for begin, phase in stream.phases if phase == until)
    now = most = 0.0
    for event in stream.events[:begin]:
        size = stream.unit_bytes[event if event >= 0 else ~event]
        now += size if event >= 0 else -size
        most = max(most, now)
    return now, most


@pytest.mark.parametrize(
    ("rank", "flags", "loaded", "most"),
    [
        (0, {"tensor_parallel": 2}, 1_562_526_720, 1_629_561_856),
        (1, {"pipeline_parallel": 2}, 1_560_364_032, 1_568_711_680),
    ],
)
def test_what_is_there_before_the_first_step(
    tmp_path: Path, rank: int, flags: dict[str, int], loaded: int, most: int
) -> None:
    """Weights, fp32 gradients and masters: ten bytes for each parameter, as megatron-core itself has them;
    and the copy beside the last master, which is that of the first weight.
    """
    found = alive(program(tmp_path, rank, **flags), "forward")
    # A mask of all pairs of tokens and positions, which local layers have, is 3 of these megabytes.
    assert found[0] == pytest.approx(loaded, rel=0.004)
    assert found[1] == pytest.approx(most, rel=0.004)


@pytest.mark.parametrize(
    ("cards", "parts", "most"), [("h100-sxm", 1, 8_092_623_360), ("h100-sxm:2", 2, 4_087_037_440)]
)
def test_the_first_step_of_mcore_adapter(tmp_path: Path, cards: str, parts: int, most: int) -> None:
    """Most in the loss of the first micro-batch, beside the dry run of ``McaTrainer`` (alibaba/ROLL 8eb27cc2,
    megatron-core 0.16.1) with layers computed again, an unfused loss and gradients that are tensors.
    """
    flags = {"stack": "llama-factory-mca", "gpu": cards, "tensor_parallel": parts, "words": 131_072}
    scenario = scenario_of(tmp_path, gradient_checkpointing=True, **flags)
    found = predict_replayed(job_of(scenario, Coefficients()), minimum_too=False).phases
    first = next(each.allocated_bytes for each in found if each.phase == "loss")
    assert first == pytest.approx(most, rel=0.01)


def test_gradients_that_products_do_not_add_are_tensors(tmp_path: Path) -> None:
    """mcore_adapter leaves the fusion off: each is as large as its weight in bf16, and no dummy is there from
    the start.
    """
    stream = program(tmp_path, stack="llama-factory-mca")
    places = [(stream.place(slot)[2], stream.term(slot)) for slot in range(len(stream.units))]
    assert ("mm", "gradients") in places
    assert "dummy_wgrad" not in {op for op, _ in places}


def sizes(stream: RequestStream, term: str) -> float:
    """Bytes of all allocations of a term."""
    return sum(size for slot, size in enumerate(stream.unit_bytes) if stream.term(slot) == term)


def test_states_are_divided_over_the_gpus_that_hold_the_same_weights(tmp_path: Path) -> None:
    """Two moments and a master in fp32; a precise optimizer has the lower half of a master, as a state."""
    params = job_of(scenario_of(tmp_path), Coefficients()).base_params
    plain = program(tmp_path)
    assert sizes(plain, "optimizer_states") == pytest.approx(params * 8 / 2)
    precise = program(tmp_path, switches=("adam_states=precise_bf16", "main_gradients=bf16"))
    assert sizes(precise, "optimizer_states") == pytest.approx(params * 6 / 2)
    assert sizes(precise, "master_weights") == 0
    buffer = [size for slot, size in enumerate(precise.unit_bytes) if precise.place(slot)[2] == "grad_data"]
    assert buffer == [pytest.approx(params * 2)]


def test_states_that_host_ram_has_come_back_one_by_one(tmp_path: Path) -> None:
    """In fp32, each beside nothing else of the optimizer."""
    stream = program(tmp_path, offload="optimizer", switches="adam_states=precise")
    assert sizes(stream, "optimizer_states") == sizes(stream, "master_weights") == 0
    assert "copy_" in {stream.place(slot)[2] for slot in range(len(stream.units))}


def test_no_gradient_of_a_matrix_is_a_tensor(tmp_path: Path) -> None:
    """Products of layers add to the buffer: norms, the table and a dummy for the head come as tensors, and
    all are gone when the step ends.
    """
    stream = program(tmp_path)
    buffer, *rest = (slot for slot in range(len(stream.units)) if stream.term(slot) == "gradients")
    assert stream.place(buffer)[2] == "grad_data"
    ops = {stream.place(slot)[2] for slot in rest}
    assert "mm" not in ops
    assert {"rmsnorm_bwd", "rms_norm_backward", "embedding_dense_backward", "empty"} <= ops
    living = set[int]()
    for event in stream.events:
        (living.add if event >= 0 else living.remove)(event if event >= 0 else ~event)
    assert not living & set(rest)


@pytest.mark.parametrize(("rank", "held"), [(0, 2), (1, 1)])
def test_a_group_takes_what_arrives_as_it_comes(tmp_path: Path, rank: int, held: int) -> None:
    """Inputs and gradients of a micro-batch go when it has gone back; activations are held as in 1F1B."""
    stream, living, most = program(tmp_path, rank, pipeline_parallel=2, grad_accum=4), 0, 0
    buffers = 0
    for event in stream.events:
        _, _, op = stream.place(event if event >= 0 else ~event)
        step = 1 if event >= 0 else -1
        buffers += step * (op == "receive buffer")
        living += step * (op == "swiglu")
        most = max(most, living)
    assert buffers == living == 0
    assert most >= held * 2


def test_layers_of_a_pipeline_are_even_or_as_said(tmp_path: Path) -> None:
    """Table and head count as none."""
    even = stages_of(scenario_of(tmp_path, pipeline_parallel=2))
    assert [each.model.n_layers for each in even] == [2, 2]
    said = stages_of(scenario_of(tmp_path, pipeline_parallel=2, pipeline_last_layers=1))
    assert [each.model.n_layers for each in said] == [3, 1]
    with pytest.raises(UnreadCombinationError, match="do not divide into"):
        scenario_of(tmp_path, pipeline_parallel=2, pipeline_first_layers=1, pipeline_last_layers=1)
    with pytest.raises(UsageError, match="pipelines of Megatron"):
        scenario_of(tmp_path, pipeline_first_layers=1)
    with pytest.raises(UsageError, match="interleaved pipelines of Megatron"):
        scenario_of(tmp_path, pipeline_parallel=2, pipeline_runs=2)
    with pytest.raises(UsageError, match="is for pipelines"):
        scenario_of(tmp_path, pipeline_runs=2)


def test_a_group_may_have_several_runs_of_layers(tmp_path: Path) -> None:
    """Two where nothing is said."""
    flags: dict[str, Any] = {"pipeline_parallel": 2, "pipeline_schedule": "interleaved", "grad_accum": 4}
    twice = stages_of(scenario_of(tmp_path, **flags))[1].model.stage
    assert twice is not None
    assert twice.chunks == (1, 1)
    with pytest.raises(UnreadCombinationError, match="into 6 runs"):
        scenario_of(tmp_path, **flags, pipeline_runs=3)
    with pytest.raises(UsageError, match="from 2 on"):
        scenario_of(tmp_path, **flags, pipeline_runs=1)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"context_parallel": 2, "seq": 1022}, "do not divide by 4"),
        (
            {"context_parallel": 8, "gpu": "h100-sxm:8", "switches": "exchanges_heads=true"},
            "heads of keys do not divide by 8",
        ),
        ({"sharding": "ddp"}, "sharding ddp"),
        ({"task": "dpo"}, "task dpo"),
        ({"optimizer": "sgd"}, "with sgd"),
        ({"expert_parallel": 2}, "whose experts do not divide"),
        ({"expert_tensor_parallel": 2}, "whose experts do not divide"),
        ({"method": "lora", "lora_targets": "attention"}, "some matrices"),
    ],
)
def test_what_was_not_read_is_refused(tmp_path: Path, flags: dict[str, Any], reason: str) -> None:
    """In one sentence with the reason."""
    with pytest.raises(UnreadCombinationError, match=reason):
        scenario_of(tmp_path, **flags)


MIXTURE = {"model": "qwen3-30b-a3b", "stack": "megatron", "seq": TOKENS, "gpu": "h100-sxm:4"}


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"expert_tensor_parallel": 4}, "1 is, and 2 as --tensor-parallel"),
        ({"method": "lora", "expert_tensor_parallel": 2}, "adapters of experts whose features"),
        (
            {"expert_tensor_parallel": 2, "expert_parallel": 4},
            "4 GPUs share layers, which do not divide by the 8",
        ),
    ],
)
def test_some_ways_to_divide_experts_are_refused(flags: dict[str, Any], reason: str) -> None:
    """And the flag is Megatron's alone."""
    given = {**MIXTURE, "method": "full", "tensor_parallel": 2}
    with pytest.raises(UnreadCombinationError, match=reason):
        resolved({**given, **flags})
    with pytest.raises(UsageError, match="mixtures of Megatron"):
        resolved({**given, "stack": "torchtitan", "expert_tensor_parallel": 2})


def test_mcore_adapter_divides_experts_as_other_matrices() -> None:
    """Where nothing is said."""
    given = {**MIXTURE, "method": "full", "tensor_parallel": 2}
    assert resolved(given).recipe.parallel.expert_tensor == 1
    assert resolved({**given, "stack": "llama-factory-mca"}).recipe.parallel.expert_tensor == 2


def started(folder: Path, **flags: Any) -> dict[str, float]:
    """Bytes by operator of what the engine keeps from the start, and of states."""
    found: dict[str, float] = {}
    stream = program(folder, **flags)
    freed = {~event for event in stream.events if event < 0}
    for slot in {event for event in stream.events if event >= 0} - freed:
        module, _, op = stream.place(slot)
        if module == "optimizer":
            found[op] = found.get(op, 0) + stream.unit_bytes[slot]
    return found


def test_weights_have_copies_in_8_bits_or_are_kept_so(tmp_path: Path) -> None:
    """Both ways beside 16 bits; or one in the buffer of weights and one turned, with masters in fp32.

    Ends stay in 16 bits: table, head, norms.
    """
    hidden, ends = 2048, 2 * 2048 * 32768
    matrices = 4 * hidden * (hidden + 2 * 512 + hidden + 3 * 5504)
    norms = 9 * hidden
    alone = started(tmp_path)
    assert alone["param_data"] == 2 * (matrices + ends + norms)
    assert "quantize" not in alone
    copies = started(tmp_path, fp8="te-delayed")
    assert (copies["param_data"], copies["quantize"]) == (alone["param_data"], 2 * matrices)
    assert started(tmp_path, fp8="te-delayed", gpu="b200:2")["quantize"] == matrices
    kept = started(tmp_path, fp8="te-blockwise-gathered")
    assert (kept["param_data"], kept["quantize"]) == (matrices + 2 * (ends + norms), matrices)
    assert kept["float"] == alone["float"] == 4 * (matrices + ends + norms) / 2


def test_masters_of_a_checkpoint_in_fp8_are_whole(tmp_path: Path) -> None:
    """Views of whole matrices; a precise optimizer leaves masters to Megatron unless scaling is delayed.

    ms-swift tells of both: examples/megatron/fp8/benchmark.sh, 58 GiB for 52 GiB in bf16.
    """
    matrices = 4 * 2048 * (2048 + 2 * 512 + 2048 + 3 * 5504)
    others = 2 * 2048 * 32768 + 9 * 2048
    whole = started(tmp_path, fp8="te-blockwise-gathered", switches="whole_masters=true")
    assert whole["float"] == 4 * (matrices + others / 2)
    precise = {"switches": "adam_states=precise_bf16"}
    assert "float" not in started(tmp_path, fp8="te-delayed", **precise)
    divided = started(tmp_path, fp8="te-blockwise", **precise)
    assert divided["float"] == 4 * (matrices + others) / 2


def test_peaks_of_a_published_run_in_fp8() -> None:
    """ms-swift 3602360a examples/megatron/fp8/benchmark.sh on eight H20: whole GiB, its meter not named."""
    job = {
        "model": "qwen3-14b", "stack": "megatron", "method": "full", "gpu": "h20:8", "tensor_parallel": 4,
        "seq": 8192, "batch": 1, "grad_accum": 8,
    }  # fmt: skip
    common = "expandable_segments=on;adam_states=precise_bf16"
    for fp8, more, published in (("none", "", 52), ("te-blockwise-gathered", ";whole_masters=true", 58)):
        scenario = resolved({**job, "fp8": fp8, "switches": common + more})
        found = predict_replayed(job_of(scenario, Coefficients())).driver_peak_bytes / 2**30
        assert found == pytest.approx(published, rel=0.03), fp8
