"""Mixtures of Megatron-Core beside its own code and beside readings of H100 in its own tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from planner.anatomy.pipeline_stages import stages_of
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.replayed_peak import predict_replayed
from planner.program.job import Job, job_of
from planner.program.layers.megatron.mixture import mixture
from planner.program.ops.sizes import unit_values
from planner.program.ops.tensors import Unit
from planner.program.recorded_part import Template
from planner.program.step import parts_of, step_of
from planner.program.view import layer_view
from tests.jobs import resolved
from tests.planner.program.layers.part_bytes import PartBytes, part_bytes

ONE_GROUP = "--stack megatron --method full --gpu h100-sxm:2 --seq 512"
MIXTRAL = (
    "--stack megatron --method full --model mixtral-8x7b --gpu h100-sxm:8 --nodes 8 --seq 4096 "
    "--tensor-parallel 2 --expert-parallel 8 --pipeline-parallel 4 --grad-accum 4 "
    "--pipeline-schedule interleaved --pipeline-runs 8"
)


def job_by(flags: str) -> Job:
    """The job of one pipeline group, the last one where there are several."""
    return job_of(stages_of(resolved(flags))[-1], Coefficients())


@pytest.mark.parametrize(
    ("model", "kept", "forward", "backward"),
    [("qwen3-30b-a3b", 76_104, 170_344, 141_640), ("qwen1.5-moe-a2.7b", 55_394, 100_466, 88_162)],
)
def test_a_layer_allocates_what_megatron_cores_own_does(
    model: str, kept: float, forward: float, backward: float
) -> None:
    """Bytes for each token: left by the forward pass, and at the most, of ``MoELayer`` of megatron-core
    0.16.1 on the CPU with the shapes of these models (no shared expert), 512 tokens, one GPU, a router in
    fp32 with its loss.  What Transformer Engine and the compiler fuse was replaced by functions that
    allocate their outputs.
    """
    found = layer_bytes(job_by(f"{ONE_GROUP} --model {model}"))
    assert found == pytest.approx((kept, forward, backward), rel=0.002)


@pytest.mark.parametrize(
    ("model", "experts", "kept", "forward", "backward"),
    [
        ("qwen3-30b-a3b", 1, 108_976, 465_364, 305_584),
        ("qwen1.5-moe-a2.7b", 1, 71_830, 247_976, 170_134),
        ("qwen3-30b-a3b", 2, 108_976, 498_130, 305_584),
        ("qwen1.5-moe-a2.7b", 2, 71_830, 264_359, 170_134),
    ],
)
def test_divided_experts_gather_rows_and_sum_them_in_fp32(
    model: str, experts: int, kept: float, forward: float, backward: float
) -> None:
    """The same beside two GPUs that divide features, on a group of fake processes whose tokens are spread
    evenly: 256 of this GPU's tokens, 240 of Qwen1.5.
    """
    divided = f"--tensor-parallel 2 --expert-tensor-parallel 2 --expert-parallel {experts}"
    gpus = f"--gpu h100-sxm:{2 * experts}"
    found = layer_bytes(job_by(f"{ONE_GROUP} --model {model} {divided} {gpus}"))
    assert found == pytest.approx((kept, forward, backward), rel=0.002)


@pytest.mark.parametrize(("experts", "features"), [(1, 1), (2, 1), (1, 2), (2, 2), (4, 2)])
def test_all_gpus_together_update_every_parameter_once(experts: int, features: int) -> None:
    """Whatever divides the experts, of which every GPU that does so has features or whole ones."""
    flags = f"--tensor-parallel 2 --expert-parallel {experts} --expert-tensor-parallel {features}"
    job = job_by(f"{ONE_GROUP} --model qwen3-30b-a3b --gpu h100-sxm:8 {flags}")
    whole = resolved("--stack megatron --method full --model qwen3-30b-a3b --gpu h100-sxm --seq 512")
    # GPUs that divide matrices each have routers and norms.
    twice = 48 * (128 * 2048 + 2 * 2048 + 2 * 128) + 2048
    assert job.updated * 8 == pytest.approx(whole.model.param_count + twice)
    stream = step_of(job)
    states = (slot for slot in range(len(stream.units)) if stream.term(slot) == "optimizer_states")
    assert sum(stream.unit_bytes[slot] for slot in states) == pytest.approx(8 * job.updated)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_router_chooses_for_the_tokens_of_its_gpu(parts: int) -> None:
    """Kept for each token of the batch, whatever is kept whole: so many times fewer bytes."""
    flags = f"{ONE_GROUP} --model qwen3-30b-a3b --gpu h100-sxm:4 --tensor-parallel {parts}"
    job = job_by(f"{flags} --gradient-checkpointing")
    layer = next(part.template for part in parts_of(job) if part.name == "layer")
    maps = 128 * (4 + 1) + (2 * 128 + 1) * 4
    assert kept_bytes(job, layer) == pytest.approx(512 * (2 * 2048 + maps) / parts)


def layer_bytes(job: Job) -> PartBytes:
    """Of a mixture without a shared expert, of each token that this GPU has."""
    block = job.model.groups[0].block
    alone = replace(block, mlp=replace(block.mlp, shared_width=0))
    view = layer_view(job, alone, trained=True)
    return part_bytes(job.model.hidden_size, lambda torch, x: mixture(torch, view, x))


def living(events: Iterable[int]) -> set[int]:
    """Slots that are alive behind these events."""
    found = set[int]()
    for event in events:
        (found.add if event >= 0 else found.discard)(event if event >= 0 else ~event)
    return found


def kept_bytes(job: Job, template: Template) -> float:
    """What a forward pass leaves."""
    values = unit_values(job)
    own = (slot for slot in living(template.stages["forward"]) if 0 <= slot < len(template.units))
    return sum(template.unit_bytes[slot] * float(values[template.units[slot]]) for slot in own)


def test_mixtral_on_64_cards_holds_what_nvidia_read() -> None:
    """Megatron-LM core_v0.16.1 tests/functional_tests/test_cases/mixtral/
    mixtral_8x7b_tp1pp4ep8vpp8_release/golden_values_dev_dgx_h100.json, of the last rank: allocated after a
    step 19,259,990,016 bytes, at the most 35,043,815,424 (step 200; 34,950,066,176 at step 5).
    """
    job = job_by(MIXTRAL)
    stream, values = step_of(job), unit_values(job)
    second = next(begin for begin, phase in stream.phases if phase == "forward_2")
    standing = sum(
        stream.unit_bytes[slot] * float(values[Unit(stream.units[slot])])
        for slot in living(stream.events[:second])
    )
    assert standing == pytest.approx(19_259_990_016, rel=0.005)
    phases = predict_replayed(job, minimum_too=False).phases
    assert max(each.allocated_bytes for each in phases) == pytest.approx(35_043_815_424, rel=0.005)


def test_a_dispatcher_refers_to_its_maps_until_the_pass_is_over() -> None:
    """Probabilities in fp32, a map of chosen experts, and a map of rows, beside the input of a layer that is
    computed again.
    """
    job = job_by(f"{ONE_GROUP} --model qwen3-30b-a3b --gradient-checkpointing")
    layer = next(part.template for part in parts_of(job) if part.name == "layer")
    maps = 128 * (4 + 1) + (2 * 128 + 1) * 4
    assert kept_bytes(job, layer) == pytest.approx(512 * (2 * 2048 + maps))


def test_one_expert_of_a_gpu_needs_no_order() -> None:
    """Rows that arrive are its own as they come."""
    ops = {
        count: [op for part in parts_of(job_by(flags)) for _, op in part.template.ops]
        for count, flags in (
            (1, f"{ONE_GROUP} --model mixtral-8x7b --gpu h100-sxm:8 --expert-parallel 8"),
            (2, f"{ONE_GROUP} --model mixtral-8x7b --gpu h100-sxm:8 --expert-parallel 4"),
        )
    }
    assert "sort_chunks" not in ops[1]
    assert "sort_chunks" in ops[2]
