"""The scenarios whose terms are kept as text, and how a prediction becomes that text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from planner.domain.prediction import Prediction
from planner.domain.scenario import Scenario
from planner.domain.term import PHASES
from planner.intake.request import from_flags
from planner.intake.resolve import resolve
from planner.prediction import estimate

FOLDER = Path(__file__).resolve().parent

# One scenario per mechanism worth watching.  Flags as on the command line; everything else is the stack's default.
SCENARIOS: dict[str, dict[str, object]] = {
    "qlora-7b-rtx4090": {"model": "7b", "method": "qlora", "gpu": "4090", "seq": 1024},
    "full-7b-zero3-offload": {
        "model": "7b",
        "method": "full",
        "gpu": "4090:2",
        "seq": 1024,
        "sharding": "zero3",
        "offload": "optimizer+params",
        "gradient_checkpointing": True,
        "host_memory": "256GiB",
    },
    "full-7b-fsdp-8gpus": {
        "model": "7b",
        "method": "full",
        "gpu": "h100-sxm:8",
        "seq": 4096,
        "sharding": "fsdp",
        "gradient_checkpointing": True,
    },
    "lora-llama31-8b-no-checkpointing": {
        "model": "llama-3.1-8b",
        "method": "lora",
        "gpu": "a100-80-sxm",
        "seq": 2048,
        "batch": 2,
        "lora_rank": 16,
        "gradient_checkpointing": False,
    },
    "lora-qwen25-7b-natural-lengths": {
        "model": "qwen2.5-7b",
        "method": "lora",
        "gpu": "a100-80-sxm",
        "seq": 2048,
        "tokens_per_sample": 800,
        "padding": "longest",
        "gradient_checkpointing": True,
    },
    "int8-7b-rtx3090": {"model": "llama-2-7b", "method": "int8", "gpu": "3090", "seq": 512, "batch": 4},
    "gptq-qwen7b-zero2": {
        "model": "qwen-7b",
        "method": "lora",
        "quantization": "gptq-int4",
        "gpu": "a100-80-sxm",
        "seq": 1024,
        "grad_accum": 8,
        "sharding": "zero2",
        "stack": "qwen-finetune",
    },
    "lora-qwen25-14b-zero3": {
        "model": "Qwen/Qwen2.5-14B-Instruct",
        "method": "lora",
        "lora_rank": 8,
        "gpu": "4090:2",
        "sharding": "zero3",
        "offload": "optimizer+params",
        "batch": 16,
        "seq": 51,
    },
    "qlora-mixtral-8x7b": {"model": "mixtral-8x7b", "method": "qlora", "gpu": "h100-sxm", "seq": 2048},
    "full-gpt2-fp32": {
        "model": "gpt2",
        "method": "full",
        "gpu": "rtx3060-12g",
        "seq": 512,
        "batch": 4,
        "load_dtype": "fp32",
        "precision": "fp32",
    },
    "lora-gemma2-9b-eager": {
        "model": "gemma-2-9b",
        "method": "lora",
        "gpu": "a100-80-sxm",
        "seq": 2048,
        "attention": "eager",
        "gradient_checkpointing": True,
    },
    "qlora-70b-long-liger": {
        "model": "llama-3.1-70b",
        "method": "qlora",
        "gpu": "h100-sxm",
        "seq": 32768,
        "loss": "liger",
        "attention": "flash2",
    },
    "full-8b-hsdp-4-nodes": {
        "model": "llama-3.1-8b",
        "method": "full",
        "gpu": "h100-sxm:8",
        "nodes": 4,
        "seq": 8192,
        "sharding": "hsdp",
        "gradient_checkpointing": True,
    },
    "full-3b-paged-8bit": {
        "model": "llama-3.2-3b",
        "method": "full",
        "gpu": "4090",
        "seq": 2048,
        "optimizer": "paged_adamw_8bit",
        "gradient_checkpointing": True,
        "padding": "longest",
        "tokens_per_sample": 900,
        "batch": 2,
        "samples": 10_000,
        "epochs": 2,
        "price": 0.5,
    },
}


def golden_text(name: str) -> str:
    """The tables of one scenario as text: what ``<name>.txt`` has to hold."""
    flags = SCENARIOS[name]
    scenario = resolve(from_flags(flags))
    prediction = estimate(scenario)
    lines = [f"flags: {', '.join(f'{key}={value}' for key, value in flags.items())}"]
    for title, part in (
        ("verdict", _verdict(prediction)),
        ("GPU terms in bytes", _gpu_terms(prediction)),
        ("phase peaks in bytes: allocated, reserved, driver", _phases(prediction)),
        ("host terms in bytes", _host_terms(prediction)),
        ("time of a step in seconds", _time(prediction)),
        ("warnings", iter(scenario.warnings)),
        ("assumptions", _assumptions(scenario)),
    ):
        lines += ["", title, *(f"  {line}" for line in part)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def golden_path(name: str) -> Path:
    """Where the tables of one scenario are kept."""
    return FOLDER / f"{name}.txt"


def _verdict(prediction: Prediction) -> Iterator[str]:
    memory = prediction.memory
    yield f"{prediction.verdict} ({prediction.calibration}): {prediction.reason}"
    for label, amount in (
        ("allocated", memory.allocated_peak_bytes),
        ("reserved", memory.reserved_peak_bytes),
        ("driver", memory.driver_peak_bytes),
        ("driver on an unlimited card", memory.uncapped_driver_bytes),
        ("held at once", memory.must_have_bytes),
        ("limit", memory.limit_bytes),
    ):
        yield f"{label:<28}{_bytes(amount)}"


def _bytes(amount: object) -> str:
    return f"{'unknown':>18}" if amount is None else f"{round(float(str(amount))):>18,}"


def _gpu_terms(prediction: Prediction) -> Iterator[str]:
    """Terms of at least a byte, in the order of the prediction, each with the phases that it lives in."""
    for term in prediction.memory.terms:
        if float(term.n_bytes) >= 1:
            phases = "all" if len(term.phases) == len(PHASES) else " ".join(sorted(term.phases, key=PHASES.index))
            yield f"{term.name:<23}{term.label:<30}{_bytes(term.n_bytes)}  {term.kind:<11}{phases}"


def _phases(prediction: Prediction) -> Iterator[str]:
    for peak in prediction.memory.phases:
        mark = "  <- limits" if peak.phase == prediction.memory.limiting_phase else ""
        yield f"{peak.phase:<15}{''.join(map(_bytes, (peak.allocated_bytes, peak.reserved_bytes, peak.driver_bytes)))}{mark}"


def _host_terms(prediction: Prediction) -> Iterator[str]:
    host = prediction.host
    for term in host.terms:
        if float(term.n_bytes) >= 1:
            yield f"{term.name:<28}{_bytes(term.n_bytes)}{'  pinned' if term.pinned else ''}"
    yield f"{'= per process':<28}{_bytes(host.per_process_bytes)}"
    yield f"{'= per node':<28}{_bytes(host.per_node_bytes)}"


def _time(prediction: Prediction) -> Iterator[str]:
    time = prediction.time
    if time is None:
        yield "unknown"
        return
    for term in time.terms:
        hidden = f"  of which {float(term.overlapped_s):.4g} hidden" if float(term.overlapped_s) else ""
        yield f"{term.name:<20}{float(term.seconds):.4g}{hidden}"
    for label, value in (
        ("= step", time.step_s),
        ("samples/s", time.samples_per_s),
        ("real tokens/s", time.tokens_per_s),
        ("padded tokens/s", time.padded_tokens_per_s),
        ("model FLOP per step", time.model_flop_per_step),
        ("MFU", time.mfu),
        ("run time", time.run_time_s),
        ("cost in USD", time.cost_usd),
    ):
        if value is not None:
            yield f"{label:<20}{float(value):.4g}"


def _assumptions(scenario: Scenario) -> Iterator[str]:
    for each in scenario.assumptions:
        yield f"{each.name:<24}{each.value:<28}{each.origin}{f'  ({each.note})' if each.note else ''}"
