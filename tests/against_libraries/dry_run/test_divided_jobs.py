"""A job that an engine divides, asked for by flags: its peaks are as they are stored."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
from sharded_table import key_of, read, words_of

from measure.cli.main import main
from planner.allocator.events import read_jsonl
from planner.cli.main import main as plan
from planner.domain.term import PHASES
from planner.report.trace.requests import Request, differences, ignored_sizes, of_program, of_trace
from tests.extras import needs
from tests.in_process import called
from tests.jobs import job_by

pytestmark = [
    pytest.mark.real,
    needs("deepspeed"),
    pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler"),
]
JOBS = (
    "qwen2.5-0.5b full fsdp 2 none 1 false 2 1024",
    "qwen2.5-1.5b full zero3 2 none 1 false 2 1024",
    "qwen2.5-1.5b qlora fsdp 2 optimizer+params 1 true 2 1024 bf16",
)
SMALL_LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
SMALL_MIXTURE = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 512,
    "intermediate_size": 1024,
    "moe_intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
_ROWS = {" ".join(key_of(row)).rstrip(): row for row in read()}


@pytest.mark.parametrize("name", JOBS)
def test_its_peaks_are_as_they_are_stored(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To a thousandth of what is allocated, and a hundredth of what is reserved; libraries say nothing."""
    monkeypatch.chdir(tmp_path)
    row = _ROWS[name]
    code, out, err = called(main, words_of(row))
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document["allocated_peak_bytes"] == pytest.approx(int(row["trace_bytes"]), rel=0.001)
    assert document["reserved_peak_bytes"] == pytest.approx(int(row["trace_reserved_bytes"]), rel=0.01)


@pytest.mark.parametrize("sharding", ["fsdp", "fsdp --eval-batch 1", "zero3"])
def test_sequences_that_the_trainer_divides(
    sharding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By torch's ring beside FSDP2, by DeepSpeed's exchange of heads beside ZeRO-3: as the plan has it.

    The ring divides what is evaluated, too.
    """
    monkeypatch.chdir(tmp_path)
    _peaks_agree(
        f"--context-parallel 2 --seq 2048 --sharding {sharding} --precision bf16-mixed --load-dtype bf16"
    )


@pytest.mark.parametrize(
    "more",
    [
        "--sharding ddp --loss liger",
        # Behind the last step alone: before it the cache has no room of a second loss yet.
        "--sharding fsdp --eval-batch 4",
        # Its class is none of those for text alone; nothing is seen.
        "--model gemma-3-4b --images-per-sample 0 --sharding ddp --method lora",
    ],
)
def test_what_a_trainer_is_told_beside_its_engine(
    more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fused loss without its package, an evaluation, a model that sees."""
    monkeypatch.chdir(tmp_path)
    _peaks_agree(f"--seq 512 --batch 2 {more}")


@pytest.mark.parametrize("more", ["--no-gradient-checkpointing", "--gradient-checkpointing --grad-accum 2"])
def test_matrices_that_transformers_divides(
    more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside FSDP2 of its own: each request of the plan is one of the Trainer's."""
    monkeypatch.chdir(tmp_path)
    words = f"--tensor-parallel 2 {more}"
    program, trace = _requests(SMALL_LLAMA, words)
    assert len(program) > 500
    assert differences(program, trace) == []


@pytest.mark.parametrize("more", ["2 --no-gradient-checkpointing", "4 --gradient-checkpointing"])
def test_experts_that_transformers_divides(
    more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over some of the GPUs of FSDP2 and over all of them: each request of the plan is one of the Trainer's.

    Numbers and masks of rows are not counted: four rows for each of 1024 tokens.
    """
    monkeypatch.chdir(tmp_path)
    rows = {n_bytes * 4 * 1024 for n_bytes in (1, 2, 4, 8)}
    program, trace = _requests(SMALL_MIXTURE, f"--expert-parallel {more}", rows)
    assert sum("all_to_all" in each.op for each in program) >= 4 * 4
    assert differences(program, trace) == []


@pytest.mark.parametrize("more", ["zero2 --no-gradient-checkpointing", "zero1 --gradient-checkpointing"])
def test_matrices_that_deepspeed_divides(more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AutoTP beside ZeRO: each request of the plan is one of the engine's, in the first process."""
    monkeypatch.chdir(tmp_path)
    program, trace = _requests(SMALL_LLAMA, f"--tensor-parallel 2 --sharding {more}", process=0)
    assert len(program) > 500
    assert differences(program, trace) == []


def _peaks_agree(more: str) -> None:
    """Plan and dry run of one job over two GPUs, within a hundredth."""
    job = "--model qwen2.5-0.5b --method full --gpu h100-sxm:2 --stack hf-trainer@5 --json"
    words = f"{job} {more}".split()
    code, out, _ = called(main, ["trace", *words])
    planned, said, _ = called(plan, words)
    assert (code, planned) == (0, 0)
    trace, prediction = json.loads(out), json.loads(said)
    for peak in ("allocated", "reserved"):
        assert prediction["memory"][f"{peak}_peak_bytes"] == pytest.approx(
            trace[f"{peak}_peak_bytes"], rel=0.01
        )


def _requests(
    config: dict[str, object], more: str, small: Collection[int] = (), process: int = -1
) -> tuple[list[Request], list[Request]]:
    """What the plan and the Trainer ask for on one of four GPUs; behind its last request the trace ends, or
    has one step more.
    """
    more = more if "--sharding" in more else f"{more} --sharding fsdp"
    Path("config.json").write_text(json.dumps(config), encoding="utf-8")
    words = (
        "--model config.json --method full --gpu h100-sxm:4 --stack hf-trainer@5 "
        f"--seq 1024 --padding longest --load-dtype bf16 {more}"
    )
    code, _, _ = called(main, ["trace", *words.split(), "--json", "--events", "events.jsonl"])
    assert code == 0
    job = replace(job_by(words), process=process)
    ignored, phases = ignored_sizes(job.scenario) | set(small), set(PHASES) - {"load", "adapters"}
    program = of_program(job, ignored, phases)
    trace = of_trace(read_jsonl(Path("events.jsonl")), ignored, phases)
    return program[:-1], trace[: len(program) - 1]
