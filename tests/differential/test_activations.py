"""What real Transformers blocks keep for backward, and the peak of a rebuilt block, against the ledger of a layer.

Bytes alive on the CPU are counted by a dispatch mode, per layer as the difference of a deeper and a shallower model.  Where the
CPU differs from CUDA the difference is written out here: ``nn.LayerNorm`` keeps its two statistics in the input's dtype (CUDA:
fp32), and a dropout mask has the dtype of its input (CUDA: one byte).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from scenarios import BATCH, GPT2_SIZES, GROUPED, LENGTH, NO_DROPOUT, SIZES, TOKENS, Setup, job, with_layers

from planner.anatomy.adapters import is_adapted
from planner.domain.model import BlockSpec
from planner.memory.activations import activations
from planner.memory.job import Job
from tests.extras import import_or_skip

import_or_skip("torch")
import_or_skip("transformers")
import_or_skip("peft")

PAD = {"pad_token_id": 0}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **SIZES, **GROUPED},
    "mistral": {"model_type": "mistral", **SIZES, **GROUPED, "sliding_window": None},
    "qwen2": {"model_type": "qwen2", **SIZES, **GROUPED},
    "qwen3": {"model_type": "qwen3", **SIZES, **GROUPED, "head_dim": 32},
    "gemma": {"model_type": "gemma", **SIZES, **GROUPED, "head_dim": 32},
    "gemma3": {"model_type": "gemma3_text", **SIZES, **GROUPED, "head_dim": 32},
    "olmo2": {"model_type": "olmo2", **SIZES, **GROUPED},
    "granite": {"model_type": "granite", **SIZES, **GROUPED, "residual_multiplier": 0.22, "attention_multiplier": 0.1},
    "smollm3": {"model_type": "smollm3", **SIZES, **GROUPED, **PAD},
    "phi3": {"model_type": "phi3", **SIZES, **GROUPED, **PAD},
    "glm": {"model_type": "glm", **SIZES, **GROUPED, "head_dim": 32, **PAD},
    "cohere": {"model_type": "cohere", **SIZES, **GROUPED},
    "stablelm": {"model_type": "stablelm", **SIZES, "num_key_value_heads": 8},
    "gpt2": {"model_type": "gpt2", **GPT2_SIZES, **NO_DROPOUT},
    "gpt_neox": {"model_type": "gpt_neox", **SIZES},
    "phi": {"model_type": "phi", **SIZES},
    "opt": {
        "model_type": "opt", "hidden_size": 256, "ffn_dim": 1024, "num_hidden_layers": 2, "num_attention_heads": 8,
        "vocab_size": 512, "max_position_embeddings": 512, "dropout": 0.0, "word_embed_proj_dim": 256,
    },
    "falcon-7b": {"model_type": "falcon", **SIZES, "ffn_hidden_size": 1024},
    "mixtral": {"model_type": "mixtral", **SIZES, **GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {"model_type": "qwen2_moe", **SIZES, **GROUPED, **EXPERTS, "shared_expert_intermediate_size": 512},
    "qwen3_moe": {"model_type": "qwen3_moe", **SIZES, **GROUPED, **EXPERTS, "head_dim": 32},
    "olmoe": {"model_type": "olmoe", **SIZES, **GROUPED, "num_experts": 8, "num_experts_per_tok": 2},
}  # fmt: skip
# These classes have no SDPA in Transformers 5.23.
EAGER_ONLY: dict[str, dict[str, Any]] = {
    "bloom": {
        "model_type": "bloom", "hidden_size": 256, "n_layer": 2, "n_head": 8, "vocab_size": 512,
        "hidden_dropout": 0.0, "attention_dropout": 0.0,
    },
    "mpt": {"model_type": "mpt", "d_model": 256, "n_layers": 2, "n_heads": 8, "vocab_size": 512, "max_seq_len": 512},
    "gemma2": {"model_type": "gemma2", **SIZES, **GROUPED, "head_dim": 32},
    "gptj": {"model_type": "gptj", **GPT2_SIZES, **NO_DROPOUT, "rotary_dim": 16},
}  # fmt: skip
MIXTURES = {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe"}
# Rotary tables that these compute in every layer, and index tensors of routing: not in the ledger, under 0.5 % here.
ROUNDED = {"glm", "gptj"} | MIXTURES


def measured(config: dict[str, Any], setup: Setup, layers: int, *, backward: bool = False) -> Any:
    """Bytes alive while a real model of ``layers`` layers runs."""
    from real_models import build, run_passes

    return run_passes(build(with_layers(config, layers), setup), padded=setup.padded, backward=backward)


def predicted(config: dict[str, Any], setup: Setup, layers: int) -> tuple[Job, Any]:
    """The job of a model of ``layers`` layers and its activations."""
    case = job(with_layers(config, layers), setup)
    return case, activations(case)


def saved_per_layer(config: dict[str, Any], setup: Setup, few: int = 1) -> tuple[float, float]:
    """(measured, predicted) bytes per token that one layer keeps, the prediction as it would be on the CPU."""
    more = few + 1
    kept = measured(config, setup, more).saved - measured(config, setup, few).saved
    case, deep = predicted(config, setup, more)
    _, shallow = predicted(config, setup, few)
    return kept / TOKENS, (deep.kept - shallow.kept) / TOKENS + cpu_difference(case)


def cpu_difference(case: Job) -> float:
    """Bytes per token and layer that the CPU keeps beyond what CUDA keeps (negative: less)."""
    block, regime = case.model.groups[0].block, case.regime
    if case.recipe.gradient_checkpointing:
        return 0
    rows = sum(norm.copies * norm.rows_per_token for norm in block.norms if norm.kind == "layer" and norm.scaling == "cast")
    return dropout_width(case, block) * (regime.adapter - 1) - 2 * rows * (4 - regime.norm_out)


def dropout_width(case: Job, block: BlockSpec) -> int:
    """Features per token that LoRA's dropout masks."""
    adapter = case.recipe.adapter
    if adapter is None or not adapter.dropout:
        return 0
    return sum(linear.in_features for linear in block.linears if is_adapted(linear, adapter.targets))


@pytest.mark.parametrize("setup", [Setup(), Setup(rank=8)], ids=["full", "lora"])
@pytest.mark.parametrize("name", CONFIGS)
def test_saved_bytes_of_every_architecture(name: str, setup: Setup) -> None:
    """Each layer keeps exactly what the ledger says, in bf16, for full and LoRA training."""
    kept, ledger = saved_per_layer(CONFIGS[name], setup)
    assert ledger == pytest.approx(kept, rel=0.005 if name in ROUNDED else 1e-9)


@pytest.mark.parametrize("setup", [Setup(attention="eager"), Setup(attention="eager", rank=8)], ids=["full", "lora"])
@pytest.mark.parametrize("name", [*EAGER_ONLY, "gpt2", "gpt_neox", "falcon-7b", "opt", "qwen3"])
def test_saved_bytes_of_written_out_attention(name: str, setup: Setup) -> None:
    """Eager attention keeps its score-sized tensors as the ledger says: fp32 softmax or not, soft cap or not."""
    kept, ledger = saved_per_layer((EAGER_ONLY | CONFIGS)[name], setup)
    assert ledger == pytest.approx(kept, rel=0.005 if name in ROUNDED else 1e-9)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize(("rank", "dropout"), [(0, 0.0), (8, 0.0), (8, 0.1), (3, 0.1)])
def test_saved_bytes_of_llama_to_the_byte(dtype: Any, attention: Any, rank: int, dropout: float) -> None:
    """Llama's layer is exact in both dtypes and kernels, at several ranks, with and without LoRA dropout."""
    setup = Setup(dtype=dtype, attention=attention, rank=rank, dropout=dropout)
    kept, ledger = saved_per_layer(CONFIGS["llama"], setup)
    assert ledger == pytest.approx(kept, rel=1e-9)


@pytest.mark.parametrize("name", ["gemma", "olmo2", "cohere", "phi3", "gpt_neox", "opt", "mixtral"])
def test_saved_bytes_in_fp32(name: str) -> None:
    """In fp32 casts are no copies: what fp32 norms and products share is counted once."""
    kept, ledger = saved_per_layer(CONFIGS[name], Setup(dtype="fp32"))
    assert ledger == pytest.approx(kept, rel=0.005 if name in ROUNDED else 1e-9)


@pytest.mark.parametrize("targets", [("attention",), ("q_proj", "v_proj"), ("down_proj",)], ids="-".join)
def test_saved_bytes_of_partial_adapters(targets: tuple[str, ...]) -> None:
    """Only matrices that have an adapter keep a copy of their input."""
    names = ("q_proj", "k_proj", "v_proj", "o_proj") if targets == ("attention",) else targets
    kept, _ = saved_per_layer(CONFIGS["llama"], Setup(rank=8, targets=names))
    _, ledger = saved_per_layer_prediction(Setup(rank=8, targets=targets))
    assert ledger == pytest.approx(kept, rel=1e-9)


def saved_per_layer_prediction(setup: Setup) -> tuple[None, float]:
    """The predicted half of :func:`saved_per_layer` for Llama."""
    _, deep = predicted(CONFIGS["llama"], setup, 2)
    _, shallow = predicted(CONFIGS["llama"], setup, 1)
    return None, (deep.kept - shallow.kept) / TOKENS


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "opt"])
def test_padding_expands_grouped_heads_and_converts_the_mask(name: str, dtype: Any) -> None:
    """A boolean mask makes Transformers expand grouped keys and values, and torch keep a mask of the dtype in every layer."""
    kept, ledger = saved_per_layer(CONFIGS[name], Setup(padded=True, dtype=dtype))
    _, without = saved_per_layer(CONFIGS[name], Setup(padded=True, dtype=dtype, stack="litgpt"))
    assert ledger == pytest.approx(kept, rel=1e-9)
    assert ledger - without >= {"bf16": 2, "fp32": 4}[dtype] * LENGTH


@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
@pytest.mark.parametrize("rank", [0, 8], ids=["full", "lora"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
def test_checkpointing_keeps_the_input_of_each_layer(name: str, rank: int, reentrant: bool) -> None:
    """Under both kinds of checkpointing a layer keeps its input and nothing else."""
    setup = Setup(checkpointing=True, reentrant=reentrant, rank=rank)
    kept, ledger = saved_per_layer(CONFIGS[name], setup)
    assert ledger == pytest.approx(kept, rel=1e-9)


@pytest.mark.parametrize("rank", [0, 8], ids=["full", "lora"])
@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in {"mistral", "granite", "smollm3", "falcon-7b"}])
def test_peak_of_a_rebuilt_block(name: str, rank: int) -> None:
    """The most that one checkpointed layer adds in backward agrees within 10 %, for mixtures within 15 %."""
    check_rebuilt_peak(CONFIGS[name], Setup(checkpointing=True, rank=rank), 0.15 if name in MIXTURES else 0.10)


@pytest.mark.parametrize("setup", [
    Setup(checkpointing=True, dtype="fp32"), Setup(checkpointing=True, reentrant=True),
    Setup(checkpointing=True, attention="eager"), Setup(checkpointing=True, rank=8, dtype="fp32"),
], ids=["fp32", "reentrant", "eager", "lora-fp32"])  # fmt: skip
def test_peak_of_a_rebuilt_llama_block(setup: Setup) -> None:
    """The same for Llama's layer in fp32, reentrant and eager."""
    check_rebuilt_peak(CONFIGS["llama"], setup)


def check_rebuilt_peak(config: dict[str, Any], setup: Setup, tolerance: float = 0.10) -> None:
    """Compare what the backward of a two-layer model needs beyond the stored inputs."""
    case, amounts = predicted(config, setup, 2)
    extra = measured(config, setup, 2, backward=True).backward_peak - amounts.kept
    mask = BATCH * LENGTH * LENGTH * case.regime.residual if setup.attention == "eager" else 0
    adding = max(layer.adding_extra for layer in amounts.layers)
    assert adding + mask == pytest.approx(extra, rel=tolerance)


def test_the_dispatch_mode_sees_what_is_alive() -> None:
    """The oracle itself: a product keeps its input until backward, views cost nothing, freed tensors leave."""
    import torch
    from live_bytes import counting

    weight = torch.zeros(64, 64, requires_grad=True)
    with counting() as bytes_:
        x = torch.ones(32, 64) * 2
        assert bytes_.live == 32 * 64 * 4
        y = (x @ weight).view(-1)[::2]
        del x
        assert bytes_.live == 2 * 32 * 64 * 4
        del y
        assert bytes_.live == 0
        assert bytes_.peak >= 2 * 32 * 64 * 4


def test_dropout_difference_is_not_zero() -> None:
    """The CPU correction for dropout masks is really applied: three more bytes per masked feature in fp32."""
    with_dropout = job(CONFIGS["llama"], Setup(rank=8, dropout=0.1))
    assert cpu_difference(with_dropout) == 3 * dropout_width(with_dropout, with_dropout.model.groups[0].block)
    assert cpu_difference(job(CONFIGS["llama"], replace(Setup(rank=8)))) == 0
