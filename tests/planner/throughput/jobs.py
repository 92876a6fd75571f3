"""Jobs of Llama-2-7B with every choice written out, its sizes by hand, and jobs of Mistral 7B from flags."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner.catalog.gpus import load_gpu
from planner.catalog.stacks import load_stack
from planner.domain.hardware import Hardware, HostSpec
from planner.domain.model import ModelSpec
from planner.domain.prediction import TimePrediction
from planner.domain.recipes.recipe import Adapter, Batch, Numerics, Recipe
from planner.domain.recipes.sharding import NONE, sharding_named
from planner.domain.scenario import Scenario
from planner.domain.term import TimeTerm
from planner.domain.uncertainty.coefficients import Coefficients
from planner.throughput.flop import products_flop
from planner.throughput.step_time import predict_time
from planner.throughput.time_inputs import TimedJob, job_of
from tests.jobs import resolved, typed

LLAMA_2_7B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}
# 32 x (4 x 4096^2 + 3 x 4096 x 11008), and 4096 x 32000.
BLOCK_WEIGHTS, HEAD_WEIGHTS = 6_476_005_376, 131_072_000
N = BLOCK_WEIGHTS + HEAD_WEIGHTS
PARAMS = 6_738_415_616
FIRST_QKV = 3 * 4096**2
# All seven matrices of a layer: in + out features, times 32 layers.
LORA_WIDTHS = 32 * (4 * 8192 + 3 * (4096 + 11008))
PRIORS = Coefficients()
# A 4-bit base, by the flags of a command.
MISTRAL: dict[str, Any] = typed(
    "--model mistral-7b --method qlora --gpu a100-80-sxm --seq 1024 --stack hf-trainer@4"
)


def recipe(method: str = "full", **changes: object) -> Recipe:
    """A recipe with every choice written out; ``changes`` replace fields of the recipe."""
    adapter = Adapter(8, ("all-linear",), 0.05, (), "fp32", dora=False) if method == "lora" else None
    base = Recipe(
        method="lora" if method == "lora" else "full",
        numerics=Numerics("bf16", "bf16-mixed"),
        adapter=adapter,
        train_layers=(),
        optimizer="adamw_torch",
        sharding=NONE,
        offload="none",
        gradient_checkpointing=True,
        checkpoint_reentrant=True,
        checkpoint_every=1,
        checkpoint_policy="full",
        attention="flash2",
        loss="hf",
        batch=Batch(4, 2, 1024, "packed", 1024),
        task="sft",
    )
    if "sharding" in changes:
        changes["sharding"] = sharding_named(str(changes["sharding"]))
    return replace(base, **changes)


def scenario(model: ModelSpec, the_recipe: Recipe, gpu: str = "a100-80-sxm", **hardware: object) -> Scenario:
    """A scenario on ``gpu``; ``hardware`` replaces fields of one unknown host with one GPU."""
    base = Hardware(load_gpu(gpu), 1, 1, HostSpec("unknown"))
    return Scenario(model, replace(base, **hardware), the_recipe, load_stack("hf-trainer@5"))


def predicted(the_scenario: Scenario, coefficients: Coefficients = PRIORS) -> TimePrediction:
    """The prediction, which must exist."""
    answer = predict_time(the_scenario, coefficients)
    assert answer is not None
    return answer


def term(answer: TimePrediction, name: str) -> TimeTerm:
    """The one term of that name."""
    (found,) = [part for part in answer.terms if part.name == name]
    return found


def job(the_scenario: Scenario) -> TimedJob:
    """The job of a scenario, which must exist."""
    found = job_of(the_scenario, PRIORS)
    assert found is not None
    return found


def mistral_job(**changes: object) -> TimedJob:
    """The job of ``MISTRAL`` with other flags."""
    return job(resolved(MISTRAL | changes))


def all_flop(held: TimedJob) -> float:
    """Products of a micro-step, recomputed ones too."""
    return float(products_flop(held, held.micro, "training", ("forward", "again", "backward")))
