"""Small scenarios for the comparisons with real libraries: every choice spelled out,
nothing read from a command line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.catalog.gpus import load_gpu
from planner.catalog.hf_config import model_from_config
from planner.catalog.stacks import load_stack
from planner.domain.hardware import Hardware, HostSpec
from planner.domain.model import ModelSpec
from planner.domain.recipes.attention_kernels import Attention
from planner.domain.recipes.optimizers import Optimizer
from planner.domain.recipes.recipe import Adapter, Batch, Dtype, Numerics, Recipe
from planner.domain.recipes.sharding import ShardingName, sharding_named
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.job import Job, job_of

BATCH, LENGTH = 2, 128
TOKENS = BATCH * LENGTH

SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "vocab_size": 512,
}
GPT2_SIZES = {"n_embd": 256, "n_layer": 3, "n_head": 8, "vocab_size": 512, "n_positions": 512}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
GROUPED = {"num_key_value_heads": 4}


_LAYER_FIELDS = ("n_layer", "n_layers", "num_hidden_layers")


def with_layers(config: dict[str, Any], count: int) -> dict[str, Any]:
    """``config`` with ``count`` layers."""
    return {**config, **{name: count for name in _LAYER_FIELDS if name in config}}


@dataclass(frozen=True)
class Setup:
    """The choices that these comparisons vary.  ``rank`` 0 is full fine-tuning;
    ``dropout`` belongs to LoRA.
    """

    dtype: Dtype = "bf16"
    rank: int = 0
    dropout: float = 0.0
    targets: tuple[str, ...] = ("all-linear",)
    adapter_dtype: Dtype = "fp32"
    modules_to_save: tuple[str, ...] = ()
    attention: Attention = "sdpa"
    checkpointing: bool = False
    reentrant: bool = False
    padded: bool = False
    optimizer: Optimizer = "adamw_torch_fused"
    sharding: ShardingName = "none"
    world: int = 1
    mixed: bool = False
    numerics: Numerics | None = None
    stack: str = "hf-trainer@5"
    dora: bool = False


def scenario(config: dict[str, Any], setup: Setup, model: ModelSpec | None = None) -> Scenario:
    """The planner's description of what the tests build for real; ``model``:
    instead of that of ``config``.
    """
    precision: Any = f"{setup.dtype}-mixed" if setup.mixed else setup.dtype
    adapter = (
        Adapter(
            setup.rank, setup.targets, setup.dropout, setup.modules_to_save, setup.adapter_dtype, setup.dora
        )
        if setup.rank
        else None
    )
    recipe = Recipe(
        method="lora" if setup.rank else "full",
        numerics=setup.numerics or Numerics(setup.dtype, precision),
        adapter=adapter,
        train_layers=(),
        optimizer=setup.optimizer,
        sharding=sharding_named(setup.sharding),
        offload="none",
        gradient_checkpointing=setup.checkpointing,
        checkpoint_reentrant=setup.reentrant,
        checkpoint_every=1,
        checkpoint_policy="full",
        attention=setup.attention,
        loss="hf",
        batch=Batch(BATCH, 1, LENGTH, "max_length" if setup.padded else "packed", LENGTH - int(setup.padded)),
        task="sft",
    )
    hardware = Hardware(load_gpu("rtx4090"), setup.world, 1, HostSpec("unknown"))
    return Scenario(model or model_from_config(config, "tiny"), hardware, recipe, load_stack(setup.stack))


def job(config: dict[str, Any], setup: Setup) -> Job:
    """The scenario with its dtype regime and counts."""
    return job_of(scenario(config, setup), Coefficients())
