"""Predictions under a calibration made up for this table, one line a job.

Neither a fit nor another literature value moves them: only a change of formulas or intervals does.
"""

from __future__ import annotations

from pathlib import Path

from fixed_coefficients import offsets_to_fixed
from golden_tables import SCENARIOS

from planner.domain.prediction import Prediction
from planner.domain.uncertainty.calibration import Calibration, Knob, Offset, Support, formulas_version
from planner.domain.uncertainty.interval import Interval, Quantity, Spread, SpreadKey
from planner.predicting import estimate_calibrated
from planner.report.render.numbers import duration, gib, whole_percent
from tests.jobs import resolved

PATH = Path(__file__).resolve().parent / "calibrated" / "predictions.txt"


def _spread(of: Quantity, low: float, high: float) -> Spread:
    """Scores from ``low`` to ``high``, half of them on either side of the prediction."""
    return Spread(SpreadKey(of), (0.05, 0.5, 0.95), (low, 0.0, high), 100, 10)


# Memory and time have numbers, and most jobs have something unseen.
FIXED = Calibration(
    "golden",
    "2026-01-01",
    formulas_version(),
    (
        *offsets_to_fixed(),
        Offset(Knob("thread_memory_bytes"), 0.6, 0.3),
        Offset(Knob("launch_s"), 0.4, 0.2),
        Offset(Knob("matmul_efficiency"), -0.1, 0.05),
        Offset(Knob("dequantize_relative_speed"), -0.4, 0.2),
    ),
    (_spread("memory", -0.1, 0.2), _spread("need", -0.1, 0.1), _spread("time", -0.1, 0.3)),
    Support(
        ("ada", "ampere", "hopper"),
        ("rtx4090", "a100-80-sxm"),
        ("hf-trainer",),
        ("lora", "qlora"),
        ("none",),
        ("nvidia",),
    ),
)

# Beside the jobs of the golden tables: other cards, lengths, stacks and ways to spread a job,
# on both sides of the limit.
_MORE: dict[str, str] = {
    "lora-llama31-8b-no-checkpointing": "model=llama-3.1-8b method=lora gpu=a100-80-sxm seq=2048 batch=2"
    " lora_rank=16 gradient_checkpointing=false",
    "int8-7b-rtx3090": "model=llama-2-7b method=int8 gpu=3090 seq=512 batch=4",
    "gptq-qwen7b-zero2": "model=qwen-7b method=lora quantization=gptq-int4 gpu=a100-80-sxm seq=1024"
    " grad_accum=8 sharding=zero2 stack=qwen-finetune",
    "lora-qwen25-14b-zero3": "model=Qwen/Qwen2.5-14B-Instruct method=lora lora_rank=8 gpu=4090:2 "
    "sharding=zero3"
    " offload=optimizer+params batch=16 seq=51",
    "full-gpt2-fp32": "model=gpt2 method=full gpu=rtx3060-12g seq=512 batch=4 load_dtype=fp32 precision=fp32",
    "qlora-70b-long-liger": (
        "model=llama-3.1-70b method=qlora gpu=h100-sxm seq=32768 loss=liger attention=flash2"
    ),
    "full-8b-hsdp-4-nodes": "model=llama-3.1-8b method=full gpu=h100-sxm:8 nodes=4 seq=8192 sharding=hsdp"
    " gradient_checkpointing=true",
    "full-3b-paged-8bit": "model=llama-3.2-3b method=full gpu=4090 seq=2048 optimizer=paged_adamw_8bit"
    " gradient_checkpointing=true padding=longest tokens_per_sample=900 batch=2 samples=10000 "
    "epochs=2 price=0.5",
    "qlora-7b-t4": "model=7b method=qlora gpu=t4 seq=1024",
    "qlora-7b-8gb": "model=7b method=qlora gpu=rtx4060ti-16g gpu_memory=8GB seq=1024",
    "qlora-13b-3090": "model=13b method=qlora gpu=3090 seq=2048",
    "qlora-33b-4090": "model=llama-30b method=qlora gpu=4090 seq=1024",
    "qlora-70b-a100": "model=llama-3.1-70b method=qlora gpu=a100-80-sxm seq=2048",
    "qlora-70b-2x4090-fsdp": (
        "model=llama-3.1-70b method=qlora gpu=4090:2 seq=1024 sharding=fsdp quant_storage=bf16"
    ),
    "qlora-8b-v100": "model=llama-3.1-8b method=qlora gpu=v100-32-sxm2 seq=1024 precision=fp16-mixed",
    "qlora-7b-5090": "model=qwen2.5-7b method=qlora gpu=5090 seq=4096 batch=4",
    "qlora-deepseek-v2-lite": "model=deepseek-v2-lite method=qlora gpu=a100-80-sxm seq=1024",
    "lora-7b-4090": "model=7b method=lora gpu=4090 seq=1024 gradient_checkpointing=true",
    "lora-8b-h100-long": (
        "model=llama-3.1-8b method=lora gpu=h100-sxm seq=32768 gradient_checkpointing=true attention=flash2"
    ),
    "lora-14b-h200": "model=qwen3-14b method=lora gpu=h200-sxm seq=8192 batch=2 gradient_checkpointing=true",
    "lora-32b-a100x4-zero3": "model=qwen2.5-32b method=lora gpu=a100-80-sxm:4 seq=4096 sharding=zero3"
    " gradient_checkpointing=true",
    "lora-72b-h100x8-zero3": (
        "model=qwen2.5-72b method=lora gpu=h100-sxm:8 seq=4096 sharding=zero3 gradient_checkpointing=true"
    ),
    "lora-7b-swift": "model=qwen2.5-7b method=lora gpu=a100-80-sxm seq=2048 stack=swift",
    "int8-13b-a100-40": "model=13b method=int8 gpu=a100-40-sxm seq=1024",
    "int8-7b-old-stack": "model=7b method=int8 gpu=3090 seq=512 stack=hf-trainer@4",
    "full-1b-4090": "model=llama-3.2-1b method=full gpu=4090 seq=2048 gradient_checkpointing=true",
    "full-7b-a100x8-zero2": (
        "model=7b method=full gpu=a100-80-sxm:8 seq=2048 sharding=zero2 gradient_checkpointing=true"
    ),
    "full-8b-h100x8-zero3": (
        "model=llama-3.1-8b method=full gpu=h100-sxm:8 seq=8192 sharding=zero3 gradient_checkpointing=true"
    ),
    "full-7b-a100-offload": "model=7b method=full gpu=a100-80-sxm seq=2048 sharding=zero2 offload=optimizer"
    " gradient_checkpointing=true host_memory=256GiB",
    "full-70b-h100x64-fsdp": "model=llama-3.1-70b method=full gpu=h100-sxm:8 nodes=8 seq=4096 sharding=fsdp"
    " gradient_checkpointing=true",
    "full-mixtral-h100x16": "model=mixtral-8x7b method=full gpu=h100-sxm:8 nodes=2 seq=4096 sharding=zero3"
    " gradient_checkpointing=true",
    "full-8b-4090-short": "model=llama-3.1-8b method=full gpu=4090 seq=1024",
}
JOBS: dict[str, dict[str, object]] = SCENARIOS | {
    name: dict(part.split("=", 1) for part in text.split()) for name, text in _MORE.items()
}


def calibrated_text() -> str:
    """What the file has to hold."""
    lines = [
        "# Predictions under a made-up calibration; python tests/golden/regenerate.py writes this file.",
        f"{'# job':34}{'verdict':16}{'P(fits)':>8}  {'driver GiB, 90 %':28}{'step, 90 %':34}host GiB",
    ]
    lines += [_line(name, estimate_calibrated(resolved(flags), FIXED)) for name, flags in JOBS.items()]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _line(name: str, prediction: Prediction) -> str:
    sure, memory, time = prediction.uncertainty, prediction.memory, prediction.time
    assert sure is not None
    driver = f"{gib(memory.driver_peak_bytes)}{_range(dict(sure.memory).get('driver'), gib)}"
    step = "unknown" if time is None else f"{duration(time.step_s)}{_range(sure.step, duration)}"
    fits = "" if prediction.fits_probability is None else whole_percent(prediction.fits_probability)
    return (
        f"{name:34}{prediction.verdict:16}{fits:>8}  "
        f"{driver:28}{step:34}{gib(prediction.host.per_node_bytes)}"
    )


def _range(interval: Interval | None, show: object) -> str:
    assert callable(show)
    return "" if interval is None else f" ({show(interval.low)} to {show(interval.high)})"
