"""Products of the step program against torch's own FLOP counter on real Transformers and PEFT modules (CPU,
no weights downloaded).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from planner.catalog.hf_config import model_from_config
from planner.domain.model import ModelSpec
from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.job import Job, job_of
from planner.program.ops.tensors import Unit
from planner.program.ops.work import Product
from planner.program.step import parts_of
from tests.extras import import_or_skip

torch = import_or_skip("torch")
transformers = import_or_skip("transformers")

from scenarios import Setup, scenario

from measure.recipe.trained import freeze

BATCH, LENGTH, RANK = 2, 24, 4
TOKENS = BATCH * LENGTH
ATTENTION_TARGETS = ("q_proj", "v_proj")

LLAMA = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 128,
}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {**LLAMA, "num_key_value_heads": 4}),
    "llama-gqa": ("LlamaConfig", {**LLAMA, "num_key_value_heads": 2, "head_dim": 24}),
    "qwen2": ("Qwen2Config", {**LLAMA, "num_key_value_heads": 2, "tie_word_embeddings": True}),
    "gpt2": (
        "GPT2Config",
        {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 128, "n_positions": 64, "resid_pdrop": 0.0},
    ),
}
FROZEN_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0}


@dataclass(frozen=True)
class Counted:
    """FLOP that torch counted: products of matrices, and batched products (attention)."""

    matmul: float
    attention: float


def build(name: str, *, attention: str = "eager") -> tuple[Any, ModelSpec]:
    """A small random model and its description, both from the same config."""
    class_name, fields = CONFIGS[name]
    extra = FROZEN_DROPOUT if class_name == "GPT2Config" else {}
    config = getattr(transformers, class_name)(
        **fields, **extra, attn_implementation=attention, use_cache=False
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.train()
    return model, model_from_config(config.to_dict(), name)


def add_lora(
    model: Any, targets: tuple[str, ...], *, checkpointed: bool, modules_to_save: tuple[str, ...] = ()
) -> Any:
    """The model with adapters, its input requiring a gradient when it is checkpointed (as PEFT and the
    Trainer arrange).
    """
    peft = import_or_skip("peft")
    chosen = "all-linear" if targets == ("all-linear",) else list(targets)
    config = peft.LoraConfig(
        r=RANK, target_modules=chosen, modules_to_save=list(modules_to_save) or None, task_type="CAUSAL_LM"
    )
    adapted = peft.get_peft_model(model, config)
    if checkpointed:
        adapted.enable_input_require_grads()
    return adapted


def count(model: Any, *, checkpointing: str = "off") -> Counted:
    """FLOP of one forward and backward pass."""
    from torch.utils.flop_counter import FlopCounterMode

    if checkpointing != "off":
        model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": checkpointing == "reentrant"}
        )
    ids = torch.randint(0, 128, (BATCH, LENGTH))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids).loss.backward()
    total = {str(operator): flop for operator, flop in counter.get_flop_counts()["Global"].items()}
    batched = total.get("aten.bmm", 0) + total.get("aten.baddbmm", 0)
    return Counted(sum(total.values()) - batched, batched)


def job_like(spec: ModelSpec, checkpointing: str, **said: Any) -> Job:
    """The job that describes the same run."""
    setup = Setup(
        attention="eager",
        dtype="fp32",
        checkpointing=checkpointing != "off",
        reentrant=checkpointing == "reentrant",
        **said,
    )
    return job_of(scenario({}, setup, spec), Coefficients())


def products(job: Job) -> Counted:
    """FLOP of the products of the step program, adapters included."""
    values = {Unit.TOKENS: TOKENS, Unit.RANK_TOKENS: RANK * TOKENS, Unit.PAIRS: TOKENS * LENGTH}
    found = {True: 0.0, False: 0.0}
    for part in parts_of(job):
        for (_, _, kind), counts in part.template.work.items():
            for unit, amount in counts.items():
                if isinstance(kind, Product):
                    found[unit is Unit.PAIRS] += 2 * part.count * amount * values[unit]
    return Counted(found[False], found[True])


# The rotary table is a product of (features / 2) x 1 by 1 x positions per sequence;
# nothing else is outside the counts.
def rotary_flop(spec: ModelSpec) -> int:
    """FLOP of the rotary table of one forward pass, which Transformers computes as a batched product."""
    attention = spec.groups[0].block.attention
    return 2 * BATCH * attention.head_dim // 2 * LENGTH if attention.position == "rope" else 0


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("checkpointing", ["off", "reentrant", "non-reentrant"])
def test_full_fine_tune_matches_the_counter_exactly(name: str, checkpointing: str) -> None:
    """Forward, both gradients and recomputation of every matrix are those that torch executes,
    to the last FLOP.
    """
    model, spec = build(name)
    if checkpointing == "reentrant":
        model.enable_input_require_grads()
    counted = count(model, checkpointing=checkpointing)
    assert counted.matmul == products(job_like(spec, checkpointing)).matmul


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("checkpointing", ["off", "reentrant", "non-reentrant"])
def test_lora_on_all_linears_matches_the_counter_exactly(name: str, checkpointing: str) -> None:
    """Frozen matrices cost no weight gradient,
    and the first layer no input gradient unless it is checkpointed.
    """
    model, spec = build(name)
    adapted = add_lora(model, ("all-linear",), checkpointed=checkpointing != "off")
    counted = count(adapted, checkpointing=checkpointing)
    assert counted.matmul == products(job_like(spec, checkpointing, rank=RANK)).matmul


@pytest.mark.parametrize("checkpointing", ["off", "reentrant", "non-reentrant"])
def test_lora_on_two_projections_matches_the_counter_exactly(checkpointing: str) -> None:
    """With adapters on queries and values only,
    recomputation without re-entrance stops before the last matrix of a block.
    """
    model, spec = build("llama")
    adapted = add_lora(model, ATTENTION_TARGETS, checkpointed=checkpointing != "off")
    counted = count(adapted, checkpointing=checkpointing)
    job = job_like(spec, checkpointing, rank=RANK, targets=ATTENTION_TARGETS)
    assert counted.matmul == products(job).matmul


@pytest.mark.every(3)
@pytest.mark.parametrize("checkpointing", ["off", "reentrant", "non-reentrant"])
@pytest.mark.parametrize(
    "layers", [("last:1",), ("first:1", "head"), ("1", "norm"), ("embed", "2")], ids="+".join
)
@pytest.mark.parametrize("name", ["llama-gqa", "qwen2", "gpt2"])
def test_trained_layers_match_the_counter_exactly(
    name: str, layers: tuple[str, ...], checkpointing: str
) -> None:
    """Frozen layers cost no weight gradient,
    and where backward does not reach them nothing but the forward pass.
    """
    spec = build(name)[1]
    said = job_like(spec, checkpointing).scenario
    said = replace(said, recipe=replace(said.recipe, train_layers=layers))
    model = freeze(build(name)[0], said)
    counted = count(model, checkpointing=checkpointing)
    assert counted.matmul == products(job_of(said, Coefficients())).matmul


def test_saved_modules_are_trained_whole() -> None:
    """A head in ``modules_to_save`` gets a weight gradient,
    and a token table there makes the first layer return its own.
    """
    modules = ("lm_head", "embed_tokens")
    model, spec = build("llama")
    adapted = add_lora(model, ("all-linear",), checkpointed=False, modules_to_save=modules)
    job = job_like(spec, "off", rank=RANK, modules_to_save=modules)
    assert count(adapted).matmul == products(job).matmul


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("checkpointing", ["off", "reentrant"])
def test_eager_attention_matches_the_counter(name: str, checkpointing: str) -> None:
    """Eager attention computes the whole square: twice its forward products backward,
    once more when recomputed.
    """
    model, spec = build(name)
    if checkpointing == "reentrant":
        model.enable_input_require_grads()
    expected = products(job_like(spec, checkpointing)).attention + rotary_flop(spec)
    assert count(model, checkpointing=checkpointing).attention == pytest.approx(expected, rel=0.01)


def test_routed_experts_count_active_copies_only() -> None:
    """A mixture of experts costs ``top_k`` experts per token, not all of them."""
    config = transformers.MixtralConfig(
        **LLAMA, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, use_cache=False
    )
    config._attn_implementation = "eager"
    # The default grouped product is a kernel that torch's counter does not know.
    config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config)
    counted = count(model.train())
    planned = products(job_like(model_from_config(config.to_dict(), "mixtral"), "off"))
    total = planned.matmul + planned.attention
    assert counted.matmul + counted.attention == pytest.approx(total, rel=0.01)
