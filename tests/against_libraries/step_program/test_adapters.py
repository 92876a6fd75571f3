"""Which matrices PEFT really adapts, how many parameters that trains,
and what k-bit preparation turns to fp32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from scenarios import GPT2_SIZES, GROUPED, NO_DROPOUT, SIZES, Setup, job, with_layers

from planner.domain.recipes.recipe import Numerics
from planner.program.job import Job
from tests.extras import import_or_skip

torch = import_or_skip("torch")
import_or_skip("transformers")
peft = import_or_skip("peft")

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
LATENT = {
    "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 12,
    "moe_intermediate_size": 20,
    "q_lora_rank": 24, "n_routed_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
    "pad_token_id": 0,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **SIZES, **GROUPED},
    "gpt2": {"model_type": "gpt2", **GPT2_SIZES, **NO_DROPOUT},
    "phi3": {"model_type": "phi3", **SIZES, **GROUPED, "pad_token_id": 0},
    "phi": {"model_type": "phi", **SIZES},
    "mixtral": {"model_type": "mixtral", **SIZES, **GROUPED, "num_local_experts": 4},
    "qwen2_moe": {
        "model_type": "qwen2_moe",
        **SIZES,
        **GROUPED,
        **EXPERTS,
        "shared_expert_intermediate_size": 64,
    },
    "qwen3_moe": {"model_type": "qwen3_moe", **SIZES, **GROUPED, **EXPERTS, "mlp_only_layers": [0]},
    "olmoe": {"model_type": "olmoe", **SIZES, **GROUPED, **EXPERTS},
    "granitemoe": {"model_type": "granitemoe", **SIZES, **GROUPED, "num_local_experts": 4},
    "gpt_oss": {"model_type": "gpt_oss", **SIZES, **GROUPED, "head_dim": 32, "num_local_experts": 4},
    "deepseek_v2": {"model_type": "deepseek_v2", **SIZES, **LATENT},
    "deepseek_v3": {"model_type": "deepseek_v3", **SIZES, **LATENT, "n_group": 2, "topk_group": 1},
}
# PEFT has no word for "attention": the modules that the planner means by it.
ATTENTION_NAMES = {
    "llama": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "gpt2": ("c_attn", "attn.c_proj"),
    "phi3": ("qkv_proj", "o_proj"),
}
NAMED = [
    ("llama", ("q_proj", "v_proj")),
    ("llama", ("down_proj", "gate_proj")),
    ("gpt2", ("c_attn",)),
    ("gpt2", ("c_proj",)),
    ("gpt2", ("mlp.c_proj",)),
    ("phi3", ("qkv_proj", "gate_up_proj")),
    ("phi", ("fc1", "dense")),
    ("mixtral", ("q_proj", "w1", "w2", "w3")),
    ("mixtral", ("q_proj", "k_proj")),
    ("qwen3_moe", ("q_proj", "gate_proj", "up_proj", "down_proj")),
    ("qwen3_moe", ("down_proj",)),
]


PATTERNS = {
    "llama": (
        r"model.layers.[\d]+.(mlp|self_attn).(up|down|gate|q|k|v|o)_proj",
        r".*self_attn\.(q|v)_proj",
        r".*(q_proj|lm_head)",
    ),
    "phi": (r".*\.mlp\.fc\d",),
    "qwen3_moe": (r".*self_attn.*",),
    "lfm2": (
        r"model.layers.[\d]+.(mlp|cross_attn|self_attn).(up|down|gate|q|k|v|o)_proj",
        r".*\.conv\.in_proj",
        r".*feed_forward\.w[12]",
    ),
}
OTHERWISE_NAMED: dict[str, dict[str, Any]] = {
    "lfm2": {"model_type": "lfm2", **SIZES, **GROUPED, "layer_types": ["conv", "full_attention", "conv"]}
}


@pytest.mark.parametrize(
    ("name", "pattern"), [(name, each) for name, all_ in PATTERNS.items() for each in all_]
)
def test_an_expression_matches_what_peft_matches(name: str, pattern: str) -> None:
    """Names of the modules whose paths PEFT matches, among the linear ones of the real model."""
    from real_models import build

    from planner.intake.patterns import matched_targets

    fields = (CONFIGS | OTHERWISE_NAMED)[name]
    linears = [
        path for path, module in build(fields, Setup()).named_modules() if isinstance(module, torch.nn.Linear)
    ]
    config = peft.LoraConfig(target_modules=pattern)
    found = [path for path in linears if peft.tuners.tuners_utils.check_target_module_exists(config, path)]
    assert set(matched_targets(job(fields, Setup()).model, pattern)) == {
        path.rpartition(".")[2] for path in found
    }


def real_count(name: str, setup: Setup) -> int:
    """Trained parameters of the real PEFT model."""
    from real_models import build

    model = build(CONFIGS[name], setup)
    return sum(tensor.numel() for tensor in model.parameters() if tensor.requires_grad)


@pytest.mark.parametrize("rank", [4, 8])
@pytest.mark.parametrize("name", CONFIGS)
def test_all_linear(name: str, rank: int) -> None:
    """``all-linear`` trains PEFT's number of parameters exactly:
    twice the rank on fused gate and up experts, or no experts.
    """
    setup = Setup(rank=rank, attention="eager")
    assert job(CONFIGS[name], setup).trained == real_count(name, setup)


@pytest.mark.parametrize("name", ATTENTION_NAMES)
def test_attention(name: str) -> None:
    """``attention`` is the projections of the attention module and nothing else."""
    real = real_count(name, Setup(rank=8, targets=ATTENTION_NAMES[name]))
    assert job(CONFIGS[name], Setup(rank=8, targets=("attention",))).trained == real


@pytest.mark.parametrize(("name", "targets"), NAMED)
def test_named_modules(name: str, targets: tuple[str, ...]) -> None:
    """Names match as PEFT matches them: by the end of the module's path,
    experts by the names that they had before fusion.
    """
    setup = Setup(rank=8, targets=targets)
    assert job(CONFIGS[name], setup).trained == real_count(name, setup)


@pytest.mark.parametrize(
    "modules", [("embed_tokens",), ("lm_head",), ("embed_tokens", "lm_head")], ids="-".join
)
def test_modules_to_save(modules: tuple[str, ...]) -> None:
    """``modules_to_save`` trains a whole copy of each named module."""
    setup = Setup(rank=8, modules_to_save=modules)
    assert job(CONFIGS["llama"], setup).trained == real_count("llama", setup)


def test_adapter_dtype_is_fp32_over_a_16_bit_base() -> None:
    """PEFT makes adapters fp32 over a bf16 base, which is the default of the stack."""
    from real_models import build

    model = build(CONFIGS["llama"], Setup(rank=8))
    dtypes = {tensor.dtype for tensor in model.parameters() if tensor.requires_grad}
    case = job(CONFIGS["llama"], Setup(rank=8, adapter_dtype="fp32"))
    assert {dtype.itemsize for dtype in dtypes} == {case.regime.adapter}
    assert case.stack.defaults.adapter_dtype == "fp32"


def kbit_case(name: str) -> tuple[Any, Job]:
    """A model with real 4-bit linears after PEFT's k-bit preparation, and its description."""
    import transformers
    from real_models import DTYPES

    bnb = import_or_skip("bitsandbytes")
    config = with_layers(CONFIGS[name], 1)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**config), dtype=DTYPES["bf16"]
    )
    for path, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and not path.endswith("lm_head"):
            parent, _, leaf = path.rpartition(".")
            packed = bnb.nn.Linear4bit(
                module.in_features, module.out_features, bias=module.bias is not None, quant_type="nf4"
            )
            packed.weight = bnb.nn.Params4bit(module.weight.data, requires_grad=False, quant_type="nf4")
            packed.bias = module.bias
            setattr(model.get_submodule(parent), leaf, packed.to("cpu"))
    model.is_loaded_in_4bit = True
    prepared = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    return prepared, job(
        config, Setup(rank=8, mixed=True, numerics=Numerics("bf16", "bf16-mixed", "nf4", True))
    )


@pytest.mark.parametrize("name", ["llama", "phi", "mixtral"])
def test_kbit_preparation(name: str) -> None:
    """Preparation turns norms, tables, head, biases and fused experts to fp32,
    and leaves 4-bit matrices alone.
    """
    bnb = import_or_skip("bitsandbytes")
    model, case = kbit_case(name)
    sizes: dict[str, set[int]] = {"norm": set(), "outside": set(), "experts": set(), "bias": set()}
    for path, tensor in model.named_parameters():
        if isinstance(tensor, bnb.nn.Params4bit):
            assert tensor.dtype == torch.uint8
            continue
        kind = "norm" if "norm" in path else "experts" if "expert" in path or ".gate." in path else "outside"
        in_block = ".layers." in path and path.endswith("bias")
        sizes["bias" if in_block and kind == "outside" else kind].add(tensor.element_size())
    regime = case.regime
    assert sizes["norm"] == {regime.norm_weight}
    assert sizes["outside"] == {regime.outside}
    assert sizes["bias"] | sizes["experts"] <= {regime.base}


def test_parameters_of_experts_are_adapted_at_the_asked_rank() -> None:
    """PEFT's ``target_parameters``: one rank for each expert, where older names give the first tensor two."""
    from real_models import build

    from planner.intake.linears import unmatched_targets, with_parameters

    paths = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
    model = build(CONFIGS["mixtral"], Setup())
    config = peft.LoraConfig(r=8, target_modules=["q_proj"], target_parameters=list(paths))
    made = sum(
        tensor.numel() for tensor in peft.get_peft_model(model, config).parameters() if tensor.requires_grad
    )
    planned = job(CONFIGS["mixtral"], Setup(rank=8, targets=("q_proj", *(f"param:{path}" for path in paths))))
    assert planned.recipe.adapter is not None
    targets = planned.recipe.adapter.targets
    spec = with_parameters(planned.model, targets, "converted")
    assert replace(planned, scenario=replace(planned.scenario, model=spec)).adapter_params == made
    assert not unmatched_targets(spec, targets)
