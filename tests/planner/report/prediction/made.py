"""A job and its prediction, made by hand, with numbers that are easy to check."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace

from rich.console import Console

from planner.catalog.hf_config import model_from_config
from planner.catalog.stacks import load_stack
from planner.domain.hardware import GpuSpec, Hardware, HostSpec
from planner.domain.origin import stack_default
from planner.domain.prediction import HostPrediction, MemoryPrediction, PhasePeak, Prediction, TimePrediction
from planner.domain.recipes.recipe import Adapter, Batch, Numerics, Recipe
from planner.domain.recipes.sharding import NONE
from planner.domain.scenario import Assumption, RunPlan, Scenario
from planner.domain.term import HostTerm, Phase, Term, TimeTerm
from planner.report.prediction.sections import build_sections
from planner.report.prediction.short import short_text
from planner.report.prediction.subject import Subject
from planner.report.render import human
from planner.searching.levers import Lever
from planner.units import GIB, GIGA, MIB, TERA

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}


BACKWARD: frozenset[Phase] = frozenset({"backward"})


ALWAYS: frozenset[Phase] = frozenset({"forward", "loss", "backward", "optimizer_step"})


def lever(
    description: str = "shorter", flags: Mapping[str, str | bool | None] | None = None, **changed: object
) -> Lever:
    """A lever as the search hands it over, after which the job fits."""
    said = {"seq": "512"} if flags is None else flags
    made = Lever("training", description, said, 3 * GIB // 2, 0, 0.55, 0, None, "fits", 0.97)
    return replace(made, **changed)  # type: ignore[arg-type]


def gpu() -> GpuSpec:
    """A card of 24 GiB, 23.53 of them visible."""
    return GpuSpec(
        id="rtx4090",
        name="NVIDIA GeForce RTX 4090",
        vendor="nvidia",
        generation="ada",
        compute_capability="8.9",
        marketing_memory_bytes=24 * GIB,
        visible_memory_bytes=24 * GIB - 480 * MIB,
        memory_bandwidth_bytes_per_s=1008.0 * GIGA,
        bf16_flop_per_s=165.0 * TERA,
        fp16_flop_per_s=165.0 * TERA,
        fp32_flop_per_s=82.6 * TERA,
        int8_op_per_s=None,
        interconnect="pcie",
        interconnect_bytes_per_s=None,
        pcie_generation=4,
        pcie_lanes=16,
        tdp_w=450.0,
        origins=(("visible_memory_bytes", "measured"),),
        source="made by hand",
    )


def scenario() -> Scenario:
    """A QLoRA job on that card."""
    recipe = Recipe(
        method="lora",
        numerics=Numerics("bf16", "bf16", "nf4", double_quant=True),
        adapter=Adapter(16, ("all-linear",), 0.0, (), "fp32", dora=False),
        train_layers=(),
        optimizer="adamw_torch",
        sharding=NONE,
        offload="none",
        gradient_checkpointing=True,
        checkpoint_reentrant=False,
        checkpoint_every=1,
        checkpoint_policy="full",
        attention="sdpa",
        loss="hf",
        batch=Batch(2, 8, 1024, "longest", 800.0),
        task="sft",
    )
    names = ("method", "quantization", "double_quant", "lora_rank", "optimizer", "precision", "loss")
    assumptions = tuple(Assumption(name, "value", stack_default("hf-trainer@5")) for name in names)
    model = replace(
        model_from_config(LLAMA, "config"),
        id="llama-2-7b",
        params_origin="published-exact",
        published_params=6738415616,
    )
    return Scenario(
        model=model,
        hardware=Hardware(gpu(), 1, 1, HostSpec("unknown"), gpu_reserved_bytes=512 * MIB),
        recipe=recipe,
        stack=load_stack("hf-trainer@5"),
        run=RunPlan(10_000, 3.0, 0.44),
        assumptions=(
            *assumptions,
            Assumption("model", "llama-2-7b", "catalog", "a size alone means this reference model"),
        ),
        warnings=("the desktop holds memory",),
    )


def prediction() -> Prediction:
    """An answer with numbers that are easy to check by hand."""
    terms = (
        Term(
            "weights",
            "base weights in nf4",
            3_500_000_000,
            "replicated",
            ALWAYS,
            "planner.units:format_gib",
            "6738415616 x 0.52 B",
        ),
        Term("adapters", "LoRA matrices", 160_000_000, "replicated", ALWAYS, "planner.units:format_gib"),
        Term(
            "saved_activations",
            "block inputs",
            1_073_741_824.5,
            "transient",
            BACKWARD,
            "planner.units:format_bytes",
        ),
        Term(
            "logits_and_loss",
            "logits",
            900_000_000,
            "transient",
            frozenset({"loss"}),
            "planner.units:format_bytes",
        ),
        Term(
            "gathered_parameters", "nothing gathered", 0, "transient", BACKWARD, "planner.units:format_bytes"
        ),
        Term(
            "allocator_slack",
            "caching allocator",
            200_000_000,
            "transient",
            ALWAYS,
            "planner.units:format_bytes",
        ),
        Term("context", "CUDA context", 450 * MIB, "replicated", ALWAYS, "planner.units:format_bytes"),
    )
    allocated = 3_500_000_000 + 160_000_000 + 1_073_741_824.5
    reserved, driver = allocated + 200_000_000, allocated + 200_000_000 + 450 * MIB
    phases = (
        PhasePeak("loss", 4_560_000_000, 4_760_000_000, 5_231_859_200),
        PhasePeak("backward", allocated, reserved, driver),
    )
    memory = MemoryPrediction(
        terms=terms,
        phases=phases,
        limiting_phase="backward",
        allocated_peak_bytes=allocated,
        reserved_peak_bytes=reserved,
        driver_peak_bytes=driver,
        uncapped_driver_bytes=driver,
        must_have_bytes=driver,
        state_bytes=3_660_000_000,
        limit_bytes=24 * GIB - 992 * MIB,
    )
    host = HostPrediction(
        (HostTerm("process_baseline", 4 * GIB, "planner.units:format_bytes", pinned=True),),
        *(4 * GIB,) * 7,
        None,
    )
    parts = (
        TimeTerm("matmuls", 2.5, "planner.units:format_seconds", 0.5, "3 x forward"),
        TimeTerm("optimizer", 0.01, "planner.units:format_seconds"),
    )
    time = TimePrediction(parts, 2.01, 7.96, 6368.0, 8151.0, 1.1e14, 0.331, 3768.0, 0.46)
    return Prediction(
        memory,
        host,
        time,
        "fits",
        "the peak is 17.9 GiB below the limit",
        None,
        "uncalibrated",
        ("uncalibrated",),
    )


def draw(subject: Subject, *, width: int = 100, color: bool = False) -> str:
    """The human report as text of one width."""
    console = Console(
        file=io.StringIO(),
        width=width,
        color_system="standard" if color else None,
        force_terminal=color,
        highlight=False,
        no_color=False,
    )
    return human.to_text(build_sections(subject), console)


def subject(**changed: object) -> Subject:
    """The hand-made job; ``changed`` replaces fields of the prediction."""
    return Subject(scenario(), replace(prediction(), **changed))  # type: ignore[arg-type]


def short_of_memory(limit_bytes: int = 4 * GIB) -> Prediction:
    """The hand-made prediction on a card that is too small."""
    made = prediction()
    return replace(made, verdict="does_not_fit", memory=replace(made.memory, limit_bytes=limit_bytes))


def draw_short(made: Subject, *, width: int = 80) -> str:
    """The first answer as text of one width."""
    return short_text(made, Console(file=io.StringIO(), width=width, color_system=None, highlight=False))
