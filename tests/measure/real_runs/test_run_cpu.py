"""Real training steps on the CPU with the real libraries: what runs, what is recorded,
how failures are told.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from measure.cli.main import main
from measure.run.assemble import MeasuredRecord
from measure.run.launcher import Launcher
from measure.run.store import Store
from planner.records import read_records
from planner.records.measured import RawReadings
from tests.extras import import_or_skip

psutil = import_or_skip("psutil")
ROOT = Path(__file__).resolve().parents[3]
FIRST = ["forward", "loss", "backward", "optimizer_step"]
LATER = ["forward_2", "loss_2", "backward_2"]


def raw(measured: MeasuredRecord) -> RawReadings:
    """The readings, through the border."""
    return RawReadings.model_validate(measured.attachments["raw"])


def phases(measured: MeasuredRecord) -> list[str]:
    """Phases in the order in which they were entered first."""
    return [reading.phase for reading in raw(measured).ranks[0].phases]


@pytest.mark.parametrize("workload", ["loop", "trainer"])
def test_a_lora_step_is_measured_phase_by_phase(measure: Any, workload: str) -> None:
    """Both workloads go through the phases in their order; device figures are absent on a CPU, never zero."""
    done = measure(options={"workload": workload, "steps": 3, "max_steps": 3})
    assert done.record.outcome == "ok", raw(done).error
    assert phases(done) == ["load", "adapters", *FIRST, *LATER, "eval"]
    assert done.record.gpu == "cpu"
    assert done.record.peak_memory_mib is None
    assert {reading.allocated_peak_bytes for reading in raw(done).ranks[0].phases} == {None}
    assert all(reading.host_rss_bytes for reading in raw(done).ranks[0].phases)
    assert [step.warmup for step in raw(done).steps] == [True, False, False, False]
    assert {step.padded_tokens for step in raw(done).steps} == {64}
    assert done.record.step_time_s == raw(done).step_summary.median_s
    assert done.record.tokens_per_s == pytest.approx(64 / done.record.step_time_s)
    assert raw(done).engine_class == "peft.peft_model.PeftModelForCausalLM"
    assert raw(done).how == "fork"


def test_the_number_of_parameters_is_that_of_the_model(measure: Any) -> None:
    """Random weights are made for every parameter of the configuration,
    and full fine-tuning trains all of them.
    """
    done = measure(method="full", optimizer="adamw_torch")
    hidden, ffn, vocabulary, key = 64, 192, 256, 32
    layer = 2 * hidden * hidden + 2 * hidden * key + 3 * hidden * ffn + 2 * hidden
    expected = 2 * vocabulary * hidden + 2 * layer + hidden
    assert (raw(done).params, raw(done).trained_params) == (expected, expected)


@pytest.mark.parametrize(
    ("values", "options"),
    [
        ({"method": "qlora", "gradient_checkpointing": True, "grad_accum": 2}, {"workload": "trainer"}),
        ({"method": "int8"}, {"workload": "loop"}),
    ],
    ids=["nf4-trainer", "int8-loop"],
)
def test_quantised_bases_run(measure: Any, values: dict[str, Any], options: dict[str, Any]) -> None:
    """bitsandbytes' layers train on the CPU too, and their parameters count as what they stand for."""
    done = measure(**values, options=options)
    assert done.record.outcome == "ok", raw(done).error
    assert raw(done).params > raw(done).trained_params > 0
    assert (
        raw(done).params - raw(done).trained_params
        == 2 * 256 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 192 + 128) + 64
    )
    assert raw(done).steps[0].real_tokens == 64 * values.get("grad_accum", 1)


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["loop", "trainer"])
@pytest.mark.parametrize(
    "values",
    [
        {"method": "full", "optimizer": "adamw_torch"},
        {"method": "full", "optimizer": "adafactor"},
        {"method": "full", "optimizer": "sgd", "attention": "eager"},
        {"method": "lora", "adapter_dtype": "bf16", "lora_targets": ("attention",), "lora_dropout": 0.1},
        {"method": "lora", "precision": "fp32", "load_dtype": "fp32", "modules_to_save": ("lm_head",)},
        {"method": "int8", "gradient_checkpointing": True, "checkpoint_reentrant": True},
        {"method": "qlora", "quantization": "fp4"},
        {"method": "qlora", "attention": "eager", "double_quant": False},
        {"method": "lora", "gradient_checkpointing": True, "padding": "packed"},
    ],
    ids=lambda values: "-".join(str(value) for value in values.values()),
)
def test_every_method_and_option_runs_in_both_workloads(
    measure: Any, workload: str, values: dict[str, Any]
) -> None:
    """What the scenario can say about one device is what the libraries are told, and they run it."""
    done = measure(**values, options={"workload": workload})
    assert done.record.outcome == "ok", raw(done).error


@pytest.mark.slow
def test_four_bit_rows_that_are_no_whole_blocks_are_evaluated(
    measure: Any, config: str, tmp_path: Path
) -> None:
    """A width of 80 is one block of 64 and a quarter:
    bitsandbytes' packed layout for CPUs cannot hold it, the plain one can.
    """
    path = tmp_path / "config.json"
    fields = json.loads(Path(config).read_text(encoding="utf-8"))
    path.write_text(json.dumps({**fields, "intermediate_size": 80}), encoding="utf-8")
    done = measure(model=str(path), method="qlora")
    assert done.record.outcome == "ok", raw(done).error
    assert phases(done)[-1] == "eval"


def test_samples_of_different_length_start_with_the_worst_batch(measure: Any) -> None:
    """The longest sample comes in the first step, so that the peak of an epoch is seen;
    padding counts apart from tokens.
    """
    done = measure(
        padding="longest", options={"workload": "trainer", "lengths": (4, 10, 31), "steps": 4, "max_steps": 4}
    )
    steps = raw(done).steps
    assert steps[0].padded_tokens == 62
    assert max(step.padded_tokens for step in steps) == 62
    assert len({step.real_tokens for step in steps}) > 1
    assert done.record.tokens_per_s < done.record.padded_tokens_per_s


def test_a_timeout_is_an_outcome_with_the_phase_reached(measure: Any) -> None:
    """A case that takes too long is killed, the launcher lives on, and the record says how far it came."""
    for timeout_s in (4.0, 16.0, 64.0):
        done = measure(
            options={"timeout_s": timeout_s, "steps": 10_000, "max_steps": 10_000, "budget_s": 1000.0}
        )
        assert done.record.outcome == "timeout"
        # A busy machine may not even have imported the libraries by then.
        if done.record.phase_reached is not None:
            break
    assert done.record.phase_reached in (*FIRST, *LATER, "load", "adapters")
    assert done.record.step_time_s is None
    assert measure().record.outcome == "ok"


def test_a_warm_parent_that_is_killed_is_replaced(measure: Any, launcher: Launcher) -> None:
    """Its case dies with it and is run once more, forked from a new one."""
    assert launcher.facts["torch"]
    parent = launcher._zygote._process

    def kill_when_a_case_runs() -> None:
        until_s = time.monotonic() + 120
        while not psutil.Process(parent.pid).children() and time.monotonic() < until_s:
            time.sleep(0.05)
        time.sleep(0.5)
        parent.kill()

    killer = threading.Thread(target=kill_when_a_case_runs)
    killer.start()
    done = measure(options={"steps": 20, "max_steps": 20, "budget_s": 1000.0})
    killer.join()
    assert (done.record.outcome, raw(done).how) == ("ok", "fork")
    assert launcher._zygote._process.pid != parent.pid


def test_a_crash_is_told_by_the_worker(measure: Any) -> None:
    """What a library raises is the message of the record; here a checkpoint that is nowhere."""
    crashed = measure(options={"checkpoint": "/nowhere/at/all"})
    assert (crashed.record.outcome, crashed.record.phase_reached) == ("crash", "load")
    assert "nowhere" in raw(crashed).error


def test_the_command_records_what_validate_reads(config: str, tmp_path: Path) -> None:
    """One call: CPU said plainly on standard error, a record on the disk,
    and the planner reads it without a comparison.
    """
    out = tmp_path / "records"
    command = [
        sys.executable,
        "-m",
        "measure",
        "run",
        "--model",
        config,
        "--method",
        "lora",
        "--seq",
        "32",
        "--batch",
        "2",
    ]
    more = [
        "--gpu",
        "cpu",
        "--workload",
        "loop",
        "--steps",
        "2",
        "--max-steps",
        "2",
        "--out",
        str(out),
        "--json",
    ]
    done = subprocess.run([*command, *more], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "CPU" in done.stderr
    printed = json.loads(done.stdout)
    (file,) = out.iterdir()
    records = read_records([file])
    assert records.records[0].id == printed["id"]
    assert printed["raw"]["environment_key"]
    assert Store(out).read().records[0].host_memory_kind == "rss_peak"
    validate = [sys.executable, "-m", "planner", "validate", str(file)]
    checked = subprocess.run(validate, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "Runs on a CPU, apart" in checked.stdout
    assert "MAPE" not in checked.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "no GPU is here"),
        (["--gpu", "4090"], 2, "no GPU is here"),
        (["--gpus", "2", "--gpu", "a100-80gb"], 2, "no GPU is here"),
        (["--out", "/proc/nowhere"], 2, "cannot be written"),
        (["--loss", "liger"], 6, "Liger"),
        (["--stack", "swift"], 6, "cannot be run"),
        (["--task", "prm"], 6, "cannot be run"),
        (["--workload", "treadmill"], 2, "unknown workload"),
        (["--lengths", "9,3"], 2, "rising whole numbers"),
        (["--lengths", "9,300"], 2, "more real tokens than the sequence length"),
        (["--memory-limit", "huge"], 2, "size"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(
    config: str,
    arguments: list[str],
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One sentence, the right exit code, nothing started and nothing written."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    place = ["--gpu", "cpu"] if arguments and "--gpu" not in arguments else []
    code_said = main(["run", "--model", config, "--method", "lora", "--seq", "32", *place, *arguments])
    said = capsys.readouterr()
    assert (code_said, said.out) == (code, ""), said.err
    assert message in said.err
    assert len(said.err.splitlines()) == 1


@pytest.mark.slow
def test_a_chunked_loss_runs_and_has_its_phase(measure: Any) -> None:
    """The loss in chunks runs in the plain loop, with the same phases as the full one."""
    done = measure(loss="chunked")
    assert done.record.outcome == "ok", raw(done).error
    assert phases(done) == ["load", "adapters", *FIRST, *LATER, "eval"]


def test_memory_that_runs_out_on_the_host_is_told_by_the_worker(measure: Any) -> None:
    """A cap on the private memory of the worker ends a large batch as ``host_oom`` with its phase,
    never as GPU memory.
    """
    # So large that torch's own allocator is refused first: native code that is refused may just die.
    done = measure(batch=131_072, options={"memory_limit_bytes": 1_000_000_000})
    assert done.record.outcome == "host_oom", raw(done).error
    assert done.record.phase_reached in ("forward", "loss", "backward")
    assert "can't allocate memory" in raw(done).error
    assert raw(done).ranks[0].cap == {"kind": "rlimit_data", "limit_bytes": 1_000_000_000}
    assert done.record.memory_limit_mib is None


@pytest.mark.slow
def test_solve_finds_the_largest_batch_within_a_limit(config: str, tmp_path: Path) -> None:
    """The largest batch runs, the next does not, and every probe is a record of one series."""
    # Logits are most of the memory, so that torch's own allocator is refused and few samples are enough.
    wide = tmp_path / "wide.json"
    wide.write_text(
        json.dumps({**json.loads(Path(config).read_text(encoding="utf-8")), "vocab_size": 65_536}),
        encoding="utf-8",
    )
    out = tmp_path / "records"
    command = [
        sys.executable,
        "-m",
        "measure",
        "run",
        "--model",
        str(wide),
        "--method",
        "lora",
        "--seq",
        "32",
        "--gpu",
        "cpu",
    ]
    more = [
        "--workload",
        "loop",
        "--solve",
        "batch",
        "--batch",
        "16",
        "--memory-limit",
        "1.5GB",
        "--out",
        str(out),
    ]
    done = subprocess.run([*command, *more], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (file,) = out.iterdir()
    records = read_records([file])
    ran = max(record.micro_batch for record in records.records if record.outcome == "ok")
    short = min(record.micro_batch for record in records.records if record.outcome == "host_oom")
    assert short == ran + 1
    assert f"largest micro-batch that runs: {ran}; {short} does not run" in done.stdout
    assert len({extra["raw"]["probe_of"] for extra in records.attachments.values()}) == 1


def test_solve_on_a_cpu_needs_a_limit(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a limit the search would fill the host."""
    job = ["run", "--model", config, "--method", "lora", "--seq", "32", "--gpu", "cpu"]
    assert main([*job, "--solve", "batch", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "needs --memory-limit" in said.err
