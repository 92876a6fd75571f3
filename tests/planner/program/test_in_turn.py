"""A model spread over the GPUs of one process: what the fullest holds, beside dry runs of the Trainer."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from planner.anatomy.pipeline_stages import stages_of
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import NotModelledError
from planner.memory.fullest_stage import fullest_job, on_whole_nodes
from planner.memory.host import predict_host
from planner.memory.quick import predict_quick
from planner.memory.replayed_peak import predict_replayed
from planner.program.job import job_of
from planner.program.step import parts_of, step_of
from planner.throughput.pipeline_time import predict_pipeline
from planner.throughput.step_time import predict_time
from tests.jobs import resolved, typed

# ``spread.py`` beside it, by measure trace with Transformers 5.23, accelerate 1.15 and PEFT 0.21.2;
# ``cards``: those that reserve most.
DRY_RUNS = Path(__file__).parents[2] / "against_libraries/programs/spread.csv"
SAID: dict[str, object] = {"stack": "hf-trainer@5", "optimizer": "adamw_torch", "device_map": "auto"}
SMALL: dict[str, object] = typed("--model tinyllama-1.1b --method lora --gpu 4090:2 --seq 512 --batch 2")


def scenario_of(**given: object) -> Scenario:
    """A job of ``spread.py``."""
    known = dict(SAID) if given["method"] == "full" else {**SAID, "lora_rank": 16}
    known |= {"load_dtype": "fp32"} if given["method"] == "full" else {}
    known |= {"gradient_checkpointing": "true"}
    return resolved({**known, **given})


@pytest.mark.parametrize(
    "row", list(csv.DictReader(DRY_RUNS.open(encoding="utf-8"))), ids=lambda row: row["job"]
)
def test_the_fullest_gpu_holds_what_the_dry_run_says(row: dict[str, str]) -> None:
    """Allocated within 0.5 %, reserved within 2 %."""
    words = [word.partition("=") for word in row["job"].split()]
    job = fullest_job(scenario_of(**{name: value for name, _, value in words}), Coefficients())
    memory = predict_replayed(job)
    assert job.model.stage is not None
    assert float(memory.allocated_peak_bytes) == pytest.approx(int(row["allocated_bytes"]), rel=0.005)
    assert float(memory.reserved_peak_bytes) == pytest.approx(int(row["reserved_bytes"]), rel=0.02)
    assert str(job.model.stage.rank) in row["cards"].split(";")


def test_a_gpu_between_has_neither_table_nor_loss() -> None:
    """What arrives and what leaves stand for them."""
    stages = stages_of(scenario_of(**{**SMALL, "gpu": "4090:4"}))
    parts = [[part.name for part in parts_of(job_of(stage, Coefficients()))] for stage in stages]
    assert all(names[0] == "embeddings" and names[-1] == "head" for names in parts)
    stream = step_of(job_of(stages[1], Coefficients()))
    ops = {stream.place(slot)[2] for slot in range(len(stream.units))}
    assert not {"embedding", "log_softmax", "nll_loss"} & ops


def test_logits_come_back_to_the_first_gpu() -> None:
    """In 16 bits, and then widened by the wrapper: 6 bytes for each word of each token."""
    scenario = scenario_of(**SMALL)
    stream = step_of(job_of(stages_of(scenario)[0], Coefficients()))
    sizes = [
        stream.unit_bytes[slot]
        for slot in range(len(stream.units))
        if stream.place(slot)[0] == "head" and stream.term(slot) == "logits_and_loss"
    ]
    assert set(sizes) >= {2 * scenario.model.vocab_size, 4 * scenario.model.vocab_size}


def test_gpus_work_one_after_the_other() -> None:
    """A step takes as long as on one GPU, and the copies between them on top."""
    spread = predict_pipeline(scenario_of(**SMALL), Coefficients())
    single = predict_time(scenario_of(**{**SMALL, "gpu": "4090"}), Coefficients())
    assert spread is not None
    assert single is not None
    assert 1.0 < float(spread.step_s) / float(single.step_s) < 1.15
    assert "pipeline_transfers" in {term.name for term in spread.terms}


def test_one_process_holds_the_host_memory_of_one() -> None:
    """It loads the whole model."""
    scenario = scenario_of(**SMALL)
    host = predict_host(on_whole_nodes(fullest_job(scenario, Coefficients()), scenario))
    alone = predict_host(job_of(scenario_of(**{**SMALL, "gpu": "4090"}), Coefficients()))
    assert host.required_per_node_bytes == alone.required_per_node_bytes


def test_the_quick_reading_is_near_the_replay() -> None:
    """Searches compare by it."""
    job = fullest_job(scenario_of(**SMALL), Coefficients())
    quick, replayed = predict_quick(job), predict_replayed(job)
    assert float(quick.allocated_peak_bytes) == pytest.approx(float(replayed.allocated_peak_bytes), rel=0.02)


def test_a_gpu_with_the_head_alone_trains_nothing_and_runs_all_the_same() -> None:
    """Its loss goes back to the GPUs before; there are no states.  Its peak is that of the job of four GPUs
    in ``spread.csv``, whose dry run says 1.95 and 2.38 GiB of the last one.
    """
    given: dict[str, object] = {"model": "qwen2.5-7b", "method": "lora", "gpu": "h100-sxm:4", "seq": 512}
    scenario = scenario_of(**given, batch=1, gradient_checkpointing="false")
    jobs = [job_of(stage, Coefficients()) for stage in stages_of(scenario)]
    assert [bool(job.trained) for job in jobs] == [True, True, True, False]
    memory = predict_replayed(jobs[-1])
    assert "optimizer_states" not in {term.name for term in memory.terms if term.n_bytes}
    assert float(memory.allocated_peak_bytes) == pytest.approx(1.95 * 2**30, rel=0.005)
    assert float(memory.reserved_peak_bytes) == pytest.approx(2.38 * 2**30, rel=0.005)


def test_no_gradient_goes_back_to_a_first_gpu_without_anything_trained() -> None:
    """Unless checkpointing makes the output of the table require one."""
    given: dict[str, object] = {"model": "qwen2.5-7b", "method": "lora", "gpu": "h100-sxm:4", "seq": 512}
    scenario = scenario_of(**given, lora_targets="lm_head", gradient_checkpointing="false")
    with pytest.raises(NotModelledError, match="nothing on the first GPU is trained"):
        fullest_job(scenario, Coefficients())
    fullest_job(scenario_of(**given, lora_targets="lm_head"), Coefficients())
