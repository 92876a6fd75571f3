"""The job in one line, by one set of words wherever it stands."""

from functools import partial

from measure.run.cases.case import RunOptions, describe
from planner.domain.recipes.job_line import job_cell, job_line, recomputation_words, short_job_line
from planner.units import GIB
from tests.jobs import resolved

scenario = partial(resolved, model="7b", method="qlora", gpu="4090", seq="1024", force=True)
"""A resolved job, also of settings that exclude each other."""


def test_the_parts_read_alike_in_every_line() -> None:
    """Whole, short and as a cell: one job of everything that a line may name."""
    job = scenario(
        gpu="a100-80gb:8",
        nodes="2",
        sharding="zero3",
        offload="optimizer+params",
        batch="2",
        grad_accum="4",
        modules_to_save="lm_head",
    )
    assert job_line(job) == (
        "llama-2-7b (6.74 B parameters), qlora nf4+dq r=8, 2 nodes x 8 x A100-SXM4-80GB, zero3, offload "
        "optimizer+params, seq 1024 x micro-batch 2 x accumulation 4, hf-trainer@5"
    )
    assert short_job_line(job, also=["eager"]) == (
        "llama-2-7b, qlora nf4 r=8, seq 1024, batch 2, accumulation 4, 2 nodes x 8 x a100-80-sxm, "
        "hf-trainer@5, zero3, offload optimizer+params, eager"
    )
    assert job_cell(job) == "qlora nf4+dq r=8 +lm_head zero3 offload:opt+par 16x a100-80-sxm 2x1024"


def test_a_plain_job_names_nothing_that_it_does_not_have() -> None:
    """No accumulation, nodes, sharding or offload; no GPU where it is this machine's."""
    job = scenario(method="full")
    assert short_job_line(job, with_gpus=False) == "llama-2-7b, full, seq 1024, batch 1, hf-trainer@5"
    assert job_cell(job) == "full rtx4090 1x1024"


def test_the_short_line_tells_qlora_from_a_base_without_double_quantisation() -> None:
    """``qlora`` means it, as on the command line; what is measured against it has other words."""
    assert "7b, qlora nf4 r=8," in short_job_line(scenario())
    assert "7b, lora on nf4 r=8," in short_job_line(scenario(method="lora", quantization="nf4"))


def test_pipelines_of_more_runs_do_not_read_alike() -> None:
    """Two runs of layers for each group need no word, as that is what an interleaved pipeline has."""
    flags = {
        "model": "qwen3-32b",
        "method": "full",
        "stack": "megatron",
        "gpu": "h100-sxm:8",
        "grad_accum": "8",
    }
    piped = partial(scenario, **flags, pipeline_parallel="4", pipeline_schedule="interleaved")
    assert "pipeline parallel 4 (interleaved)" in short_job_line(piped())
    assert "pipeline parallel 4 (interleaved, 4 runs each)" in short_job_line(piped(pipeline_runs="4"))


def test_what_is_recomputed_has_words() -> None:
    """None, plain, the reentrant variant, every few layers."""
    said = [
        {"gradient_checkpointing": False},
        {"gradient_checkpointing": True, "checkpoint_reentrant": False},
        {"gradient_checkpointing": True, "checkpoint_reentrant": True, "checkpoint_every": "3"},
    ]
    words = [recomputation_words(scenario(**flags).recipe) for flags in said]
    assert words == [(), ("checkpointing",), ("reentrant checkpointing every 3 layers",)]


def test_cases_of_a_campaign_do_not_read_alike() -> None:
    """What differs from most jobs is named after the job itself."""
    flags = {"gradient_checkpointing": False}
    plain = scenario(**flags)
    eager = scenario(**flags, attention="eager", loss="liger", precision="bf16-mixed")
    assert (
        describe(plain, RunOptions())
        == "llama-2-7b, qlora nf4 r=8, seq 1024, batch 1, hf-trainer@5, adamw_torch_fused"
    )
    assert describe(eager, RunOptions(memory_limit_bytes=8 * GIB)) == (
        "llama-2-7b, qlora nf4 r=8, seq 1024, batch 1, hf-trainer@5, adamw_torch_fused, eager, liger loss, "
        "within 8.00 GiB"
    )
