"""Other estimators on the published rows: DeepSpeed's and accelerate's own code,
and LLaMA-Factory's published rule.

``python -m tests.accuracy.estimators`` writes the part ``other_tools`` of ``data/accuracy.json``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from planner.calibration.score.points import Point
from planner.calibration.score.rows import RowScore
from planner.domain.recipes.sharding import ZERO2, ZERO3
from planner.domain.scenario import Scenario
from planner.units import GIGA
from tests.accuracy.drawn import stored_points
from tests.accuracy.published import core_validation
from tests.accuracy.stored import write_accuracy


@dataclass(frozen=True)
class Tool:
    """One estimator: its answer in bytes per GPU, or ``None`` for a row of which it says nothing."""

    name: str
    short: str
    applies_to: str
    answer: Callable[[Scenario], float | None]


def deepspeed_bytes(scenario: Scenario) -> float | None:
    """DeepSpeed's estimators of ZeRO-2 and ZeRO-3 model states,
    called with the model's counts and the job's GPUs.

    They take every parameter as trained, so only full fine-tuning is asked.
    """
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs  # type: ignore[import-untyped]
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs  # type: ignore[import-untyped]

    recipe, hardware = scenario.recipe, scenario.hardware
    if recipe.method != "full":
        return None
    model = scenario.model
    largest = max(model.token_embedding.param_count, *(linear.weight_count for linear, _ in model.linears()))
    gpus = {"num_gpus_per_node": int(hardware.gpus_per_node), "num_nodes": int(hardware.nodes)}
    if recipe.sharding == ZERO2:
        return float(
            estimate_zero2_model_states_mem_needs(
                model.param_count, cpu_offload=recipe.offloads_optimizer, **gpus
            )[1]
        )
    if recipe.sharding == ZERO3:
        offload = {"cpu_offload": recipe.offloads_optimizer, "cpu_offload_params": recipe.offloads_params}
        return float(estimate_zero3_model_states_mem_needs(model.param_count, largest, **offload, **gpus)[1])
    return None


def accelerate_bytes(scenario: Scenario) -> float | None:
    """The largest step of ``accelerate estimate-memory``, training with Adam:
    full fine-tuning without sharding.
    """
    from accelerate.commands.estimate import estimate_training_usage  # type: ignore[import-untyped]

    if scenario.recipe.method != "full":
        return None
    dtype = {2: "bfloat16", 4: "float32"}[
        2 if scenario.recipe.numerics.compute_dtype in ("bf16", "fp16") else 4
    ]
    return float(max(estimate_training_usage(4 * scenario.model.param_count, dtype).values()))


def llama_factory_bytes(scenario: Scenario) -> float | None:
    """The last column of the table "Hardware Requirement" in LLaMA-Factory's README:
    bytes per parameter by method and bits.

    18 for full fine-tuning with autocast, 2 for LoRA, 1 over 8 bits, 0.5 over 4 bits.  The table says nothing
    of several GPUs and of offload, so only jobs on one GPU without offload are asked.
    """
    recipe, hardware = scenario.recipe, scenario.hardware
    if hardware.world_size > 1 or recipe.offload != "none":
        return None
    quantization = recipe.numerics.quantization
    per_param = 18.0 if recipe.method == "full" else {"none": 2.0, "int8": 1.0}.get(quantization, 0.5)
    return round(per_param * scenario.model.param_count / GIGA) * GIGA


_ZERO = "full fine-tuning under ZeRO-2 and ZeRO-3"
_ONE = "rows on one GPU without offload"
_FULL = "full fine-tuning; says nothing of sharding"
TOOLS = (
    Tool("DeepSpeed 0.19.8, estimate_zero2/3_model_states_mem_needs", "DeepSpeed", _ZERO, deepspeed_bytes),
    Tool("accelerate 1.15.0, estimate-memory (training with Adam)", "accelerate", _FULL, accelerate_bytes),
    Tool("LLaMA-Factory, table of hardware requirements", "LLaMA-Factory", _ONE, llama_factory_bytes),
)


def compare(tool: Tool, rows: tuple[RowScore, ...]) -> dict[str, object]:
    """GPU memory errors of one estimator, and ours on the same rows; its answers as points."""
    answers = list(_answers(tool, rows))
    errors = [point.predicted / point.measured - 1 for point, _ in answers]
    ours = [abs(error) for _, error in answers]
    return {
        "name": tool.name,
        "applies_to": tool.applies_to,
        "n_rows": len(errors),
        "mape": round(statistics.fmean(map(abs, errors)), 3),
        "median_signed": round(statistics.median(errors), 3),
        "ours_mape": round(statistics.fmean(ours), 3),
        "points": stored_points([point for point, _ in answers]),
    }


def _answers(tool: Tool, rows: tuple[RowScore, ...]) -> Iterator[tuple[Point, float]]:
    """What the estimator says of each row that it speaks of, and our error there."""
    for row in rows:
        if row.memory is None or row.scenario is None or row.record.phase_reached in ("load", "adapters"):
            continue
        answer = tool.answer(row.scenario)
        if answer is not None:
            count = row.scenario.hardware.world_size if row.record.memory_scope == "all_gpus" else 1
            numbers = (float(row.memory.measured), float(answer * count))
            yield (
                Point(row.record.id, tool.short, tool.short, row.memory.quantity, *numbers, None),
                row.memory.error,
            )


def other_tools_part() -> list[dict[str, object]]:
    """The part of the file as it should be now."""
    return [compare(tool, core_validation().rows) for tool in TOOLS]


if __name__ == "__main__":
    write_accuracy({"other_tools": other_tools_part()})
