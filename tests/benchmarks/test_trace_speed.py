"""How fast a trace is, and how much memory it takes;
``python tests/benchmarks/test_trace_speed.py`` prints it as a table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from planner.units import GIB
from tests.extras import needs

ROOT = Path(__file__).resolve().parents[2]
# Model, method -> seconds that a trace may take after imports.
JOBS = {("llama-2-7b", "lora"): 5.0, ("qwen2.5-72b", "qlora"): 10.0}
MOST_BYTES = 4 * GIB
# What grows with depth is the repetition of events, not the running of modules.
DEEP_RATIO = 3.0
# Prints wall and processor seconds of a trace after all imports, and the most memory of the process.
TRACE = """
import json, logging, resource, sys, time, warnings
warnings.simplefilter("ignore"); logging.disable(logging.CRITICAL)
import accelerate, bitsandbytes, peft
from measure.trace.traced_job import trace_events
from planner.allocator.documents.summary import summarize
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
model, method = sys.argv[1:]
job = resolve(from_flags({"model": model, "method": method, "gpu": "a100-80gb", "seq": 1024, "batch": 2}))
wall, cpu = time.perf_counter(), time.process_time()
summary = summarize(trace_events(job))
print(json.dumps({
    "wall_s": time.perf_counter() - wall,
    "cpu_s": time.process_time() - cpu,
    "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    "allocated_bytes": summary.allocated_peak_bytes,
}))
"""


def trace(model: str, method: str) -> dict[str, float]:
    """One trace in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", TRACE, model, method],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def skip_unless_enabled(benchmark: BenchmarkFixture) -> None:
    """Leave out what loads torch in another process."""
    if not benchmark.enabled:
        pytest.skip("loads torch in another process: only when benchmarks are enabled")


@needs("torch", "transformers", "peft", "bitsandbytes")
@pytest.mark.parametrize(("model", "method"), JOBS, ids=["-".join(job) for job in JOBS])
def test_a_trace_is_fast_and_small(benchmark: BenchmarkFixture, model: str, method: str) -> None:
    """7B LoRA in five seconds after imports and 72B QLoRA in ten, within 4 GiB."""
    skip_unless_enabled(benchmark)
    measured = benchmark.pedantic(trace, args=(model, method), rounds=3)
    benchmark.extra_info.update(measured)
    assert measured["cpu_s"] <= JOBS[model, method]
    assert measured["rss_bytes"] < MOST_BYTES


@needs("torch", "transformers", "peft", "bitsandbytes")
def test_depth_costs_little(benchmark: BenchmarkFixture) -> None:
    """80 layers take at most three times as long as 24 layers of a sister model,
    because blocks that repeat are run once.
    """
    skip_unless_enabled(benchmark)
    deep = benchmark.pedantic(trace, args=("qwen2.5-72b", "lora"), rounds=3)
    shallow = trace("qwen2.5-0.5b", "lora")
    ratio = deep["cpu_s"] / shallow["cpu_s"]
    benchmark.extra_info["ratio_80_to_24_layers"] = round(ratio, 2)
    assert ratio <= DEEP_RATIO


def main() -> None:
    """Print the table."""
    sys.stdout.write(
        "| job, 2 x 1,024 tokens | seconds after imports | most memory of the process |\n|---|--:|--:|\n"
    )
    for model, method in JOBS:
        measured = trace(model, method)
        sys.stdout.write(
            f"| {model}, {method} | {measured['cpu_s']:.1f} | {measured['rss_bytes'] / GIB:.2f} GiB |\n"
        )


if __name__ == "__main__":
    main()
