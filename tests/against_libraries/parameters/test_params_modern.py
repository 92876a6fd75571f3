"""Parameter counts and module structure of the modern architectures: Llama and what followed it,
mixtures, latent attention.

Against Transformers' own modules on the meta device where the architecture ships with Transformers, and
against published counts for all.  What the readers say beyond shapes is in
``tests/planner/catalog/architectures``.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from planner.catalog.hf_config import model_from_config
from planner.catalog.models import model_entry, model_ids
from planner.domain.model import BlockSpec, ModelSpec, NormSpec
from planner.words import words
from tests.against_libraries.parameters.modules import built, n_parameters
from tests.extras import import_or_skip

torch = import_or_skip("torch")
transformers = import_or_skip("transformers")

DENSE = {"llama", "mistral", "qwen2", "qwen3", "phi3", "olmo2", "olmo3", "granite", "smollm3", "internlm3"}
DENSE |= set(words("starcoder2 seed_oss arcee ministral cohere2 exaone4 hunyuan_v1_dense olmo ministral3"))
DENSE |= {"apertus", "ernie4_5", "granitemoehybrid"}
GEMMA = {"gemma", "gemma2", "gemma3_text", "gemma3"}
MIXTURES = set(words("mixtral qwen2_moe qwen3_moe olmoe granitemoe deepseek_v2 deepseek_v3 gpt_oss"))
MIXTURES |= {"glm4_moe", "glm4_moe_lite", "minimax_m2", "hunyuan_v1_moe", "llama4", "llama4_text"}
SHIPPED, REMOTE = DENSE | GEMMA | MIXTURES, {"internlm", "internlm2"}

ENTRIES = {
    name: entry
    for name in model_ids()
    if (entry := model_entry(name)).config["model_type"] in SHIPPED | REMOTE
    # Those with layers of Mamba are in test_params_hybrid.py.
    and "mamba" not in entry.config.get("layer_types", ())
}
SHIPPED_NAMES = sorted(name for name, entry in ENTRIES.items() if entry.config["model_type"] in SHIPPED)
# One of each kind of layer pattern, small enough to build at full depth in a moment.
FULL_DEPTH = words("qwen2.5-14b gemma-3-1b gemma-2-2b smollm3-3b gpt-oss-20b deepseek-v2-lite llama-3.2-1b")

# Elements in the published checkpoint,
# and which of them are no parameters of the module (params_source says what they are).
CHECKPOINT_ELEMENTS = {
    "llama-2-7b": (6_738_417_664, 32 * 64),
    "llama-2-13b": (13_015_866_880, 40 * 64),
    "llama-2-70b": (68_976_653_312, 80 * 64),
    "qwen1.5-0.5b": (619_570_176, 151_936 * 1_024),
    "qwen3-0.6b": (751_632_384, 151_936 * 1_024),
    "qwen3-1.7b": (2_031_739_904, 151_936 * 2_048),
    "gemma-3-4b": (4_300_079_472, 416_866_032 + 1_152 * 2_560 + 1_152),
    "gemma-3-12b": (12_187_325_040, 416_866_032 + 1_152 * 3_840 + 1_152),
    "gemma-3-27b": (27_432_406_640, 416_866_032 + 1_152 * 5_376 + 1_152),
    "deepseek-llm-67b": (134_850_002_944 // 2, 0),
    "deepseek-v3": (671_026_419_200, 58 * 256),
    "minicpm5-1b": (2_161_265_664 // 2, 0),
}

_SIZES = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 96,
}
_SMALL = _SIZES | {"pad_token_id": 0}
_MLA = {
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
    "moe_intermediate_size": 20,
}
_FEW = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    (
        "llama",
        {
            "attention_bias": True,
            "mlp_bias": True,
            "num_key_value_heads": 2,
            "head_dim": 20,
            "tie_word_embeddings": True,
        },
    ),
    ("granite", {"attention_bias": True, "mlp_bias": True}),
    ("mistral", {"num_key_value_heads": 2, "head_dim": 20}),
    ("mistral", {"num_key_value_heads": 4, "sliding_window": None}),
    ("qwen2", {"num_key_value_heads": 2}),
    (
        "qwen2",
        {
            "num_key_value_heads": None,
            "use_sliding_window": True,
            "sliding_window": 8,
            "max_window_layers": 3,
        },
    ),
    ("qwen3", {"num_key_value_heads": 2, "attention_bias": True, "tie_word_embeddings": True}),
    (
        "qwen3",
        {"num_key_value_heads": 1, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    ("gemma", {"num_key_value_heads": 1, "attention_bias": True}),
    ("gemma2", {}),
    (
        "gemma2",
        {"sliding_window": 8, "tie_word_embeddings": False, "head_dim": 12, "attn_logit_softcapping": None},
    ),
    ("gemma3_text", {}),
    ("gemma3_text", {"sliding_window_pattern": 2, "sliding_window": 8, "attention_bias": True}),
    (
        "gemma3_text",
        {"layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]},
    ),
    ("phi3", {"num_key_value_heads": 2, "sliding_window": 8, "tie_word_embeddings": True}),
    ("olmo2", {"num_key_value_heads": 2, "attention_bias": True}),
    ("olmo3", {"num_key_value_heads": 2, "attention_bias": True}),
    (
        "olmo3",
        {
            "num_key_value_heads": 4,
            "sliding_window": 8,
            "layer_types": ["full_attention"] * 3 + ["sliding_attention"],
        },
    ),
    ("smollm3", {}),
    (
        "smollm3",
        {"no_rope_layers": [0, 1, 1, 0], "use_sliding_window": True, "sliding_window": 8, "mlp_bias": True},
    ),
    ("internlm3", {"num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True}),
    ("starcoder2", {"num_key_value_heads": 1, "sliding_window": 8}),
    ("starcoder2", {"num_key_value_heads": 4, "use_bias": False, "tie_word_embeddings": False}),
    ("seed_oss", {"num_key_value_heads": 2}),
    (
        "seed_oss",
        {
            "num_key_value_heads": 4,
            "head_dim": 20,
            "attention_bias": False,
            "attention_out_bias": True,
            "mlp_bias": True,
        },
    ),
    ("arcee", {"num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True}),
    ("ministral", {"head_dim": 12, "num_key_value_heads": 2, "sliding_window": 8}),
    (
        "ministral",
        {
            "head_dim": 12,
            "num_key_value_heads": 4,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
        },
    ),
    ("cohere2", {"num_key_value_heads": 2, "sliding_window": 8, "attention_bias": True}),
    ("cohere2", {"sliding_window_pattern": 2, "sliding_window": 8, "tie_word_embeddings": False}),
    ("exaone4", {"num_key_value_heads": 2, "sliding_window": 8, "head_dim": 20}),
    ("exaone4", {"num_key_value_heads": 4, "sliding_window": None, "layer_types": ["full_attention"] * 4}),
    ("hunyuan_v1_dense", {"head_dim": 20, "num_key_value_heads": 2, "attention_bias": True}),
    ("olmo", {"num_key_value_heads": 2, "attention_bias": True, "clip_qkv": 8.0}),
    ("ministral3", {"num_key_value_heads": 2, "head_dim": 20, "sliding_window": 8}),
    ("apertus", {"num_key_value_heads": 2, "attention_bias": True}),
    ("apertus", {"hidden_act": "relu2", "tie_word_embeddings": True}),
    ("ernie4_5", {"num_key_value_heads": 4, "use_bias": True}),
    ("ernie4_5", {"head_dim": 20, "tie_word_embeddings": False}),
    ("granitemoehybrid", {"layer_types": ["attention"] * 4, "num_local_experts": 0, "mamba_n_heads": 4}),
    ("mixtral", {"num_key_value_heads": 2, "num_local_experts": 4, "sliding_window": 8, "head_dim": 20}),
    ("olmoe", {"num_key_value_heads": 2, "attention_bias": True, "num_experts": 4, "num_experts_per_tok": 2}),
    (
        "granitemoe",
        {
            "num_key_value_heads": 2,
            "attention_bias": True,
            "num_local_experts": 4,
            "tie_word_embeddings": True,
        },
    ),
    (
        "qwen2_moe",
        {"num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2, "mlp_only_layers": [1]},
    ),
    (
        "qwen2_moe",
        {
            "num_key_value_heads": 4,
            "qkv_bias": False,
            "decoder_sparse_step": 2,
            "shared_expert_intermediate_size": 24,
        },
    ),
    (
        "qwen2_moe",
        {"num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3},
    ),
    ("qwen3_moe", {"num_experts": 8, "attention_bias": True, "mlp_only_layers": [0, 3], "head_dim": 20}),
    (
        "qwen3_moe",
        {"num_experts": 8, "moe_intermediate_size": 24, "use_sliding_window": True, "sliding_window": 8},
    ),
    ("deepseek_v2", {"q_lora_rank": None, "num_experts_per_tok": 2, "first_k_dense_replace": 1, **_MLA}),
    (
        "deepseek_v2",
        {
            "num_experts_per_tok": 2,
            "attention_bias": True,
            "mlp_bias": True,
            "first_k_dense_replace": 2,
            **_MLA,
        },
    ),
    ("deepseek_v3", {"q_lora_rank": 24, "num_key_value_heads": 4, "n_shared_experts": 2, **_MLA}),
    ("deepseek_v3", {"num_key_value_heads": 4, "attention_bias": True, "first_k_dense_replace": 0, **_MLA}),
    (
        "glm4_moe",
        {"num_key_value_heads": 2, **_FEW, "attention_bias": True, "head_dim": 20, "use_qk_norm": True},
    ),
    ("glm4_moe", {"num_key_value_heads": 4, **_FEW, "first_k_dense_replace": 2, "n_shared_experts": 2}),
    (
        "glm4_moe_lite",
        {"num_key_value_heads": 4, "mlp_layer_types": ["dense"] * 2 + ["sparse"] * 2, **_FEW, **_MLA},
    ),
    (
        "minimax_m2",
        {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 20},
    ),
    (
        "llama4_text",
        {"num_key_value_heads": 2, "head_dim": 12, "num_local_experts": 4, "intermediate_size_mlp": 40},
    ),
    (
        "llama4_text",
        {"num_key_value_heads": 4, "head_dim": 12, "interleave_moe_layer_step": 2, "attention_bias": True},
    ),
    (
        "hunyuan_v1_moe",
        {"num_key_value_heads": 2, "num_experts": 4, "moe_topk": 2, "head_dim": 20, "attention_bias": True},
    ),
    ("gpt_oss", {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 20}),
    (
        "gpt_oss",
        {"num_key_value_heads": 4, "attention_bias": False, "num_local_experts": 4, "sliding_window": 8},
    ),
]


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The config of the causal language model:
    of the text part where the file is that of a multimodal model.
    """
    return dict(config["text_config"]) if config["model_type"] in ("gemma3", "llama4") else dict(config)


def _shallow(config: dict[str, Any]) -> dict[str, Any]:
    """``config`` with just the layers that show every kind of layer."""
    kinds = {
        "gemma3_text": 6,
        "smollm3": 4,
        "cohere2": 4,
        "deepseek_v2": 2,
        "deepseek_v3": 4,
        "llama4_text": 4,
    }
    n_layers = kinds.get(config["model_type"], 2)
    if "layer_types" in config:
        config = config | {"layer_types": config["layer_types"][:n_layers]}
    return config | {"num_hidden_layers": n_layers}


def _module_linears(layer: Any) -> Counter[tuple[str, int, int, bool]]:
    linears = [
        (path.rpartition(".")[2], child)
        for path, child in layer.named_modules()
        if isinstance(child, torch.nn.Linear)
    ]
    return Counter(
        (name, child.out_features, child.in_features, child.bias is not None) for name, child in linears
    )


def _spec_linears(block: BlockSpec) -> Counter[tuple[str, int, int, bool]]:
    linears = [linear for linear in block.linears if linear.kind in ("linear", "subclass")]
    return Counter((linear.name, linear.out_features, linear.in_features, linear.bias) for linear in linears)


def _module_norms(layer: Any) -> Counter[tuple[str, int]]:
    norms = [
        child for child in layer.modules() if "Norm" in type(child).__name__ and hasattr(child, "weight")
    ]
    return Counter(
        ("rms" if "RMSNorm" in type(norm).__name__ else "layer", norm.weight.numel()) for norm in norms
    )


def _spec_norms(norms: tuple[NormSpec, ...]) -> Counter[tuple[str, int]]:
    return sum((Counter({(norm.kind, norm.width): norm.copies}) for norm in norms if norm.weight), Counter())


def _module_parameters(layer: Any) -> Counter[tuple[str, int]]:
    """Bare parameters of a layer (experts, routers, sinks): name as PEFT would address it,
    and elements with bias.
    """
    covered = [
        child
        for child in layer.modules()
        if isinstance(child, torch.nn.Linear) or "Norm" in type(child).__name__
    ]
    skip = {id(tensor) for child in covered for tensor in child.parameters()}
    found: Counter[tuple[str, int]] = Counter()
    sizes: dict[str, int] = {}
    for path, tensor in layer.named_parameters():
        if id(tensor) not in skip:
            owner = (
                path.removesuffix(".weight").removesuffix(".bias").removesuffix("_bias").rpartition(".")[2]
            )
            sizes[owner] = sizes.get(owner, 0) + tensor.numel()
    found.update(sizes.items())
    return found


def _spec_parameters(block: BlockSpec) -> Counter[tuple[str, int]]:
    bare = [linear for linear in block.linears if linear.kind == "parameter"]
    found = Counter((linear.name, linear.weight_count + linear.bias_count) for linear in bare)
    if block.mlp.activation == "xielu":
        return found + Counter({("alpha_p", 1): 1, ("alpha_n", 1): block.extra_params - 1})
    return found + Counter({("sinks", block.extra_params): 1} if block.extra_params else {})


def _layer_signature(layer: Any) -> tuple[Any, ...]:
    # EXAONE 4 keeps the window on every layer, and beside it whether the layer has one.
    window = (
        getattr(layer.self_attn, "sliding_window", None)
        if getattr(layer.self_attn, "is_sliding", True)
        else None
    )
    parts = (_module_linears(layer), _module_norms(layer), _module_parameters(layer))
    return (*(tuple(sorted(part.items())) for part in parts), window)


def _spec_signatures(spec: ModelSpec, *, with_window: bool) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for group in spec.groups:
        block = group.block
        parts = (_spec_linears(block), _spec_norms(block.norms), _spec_parameters(block))
        window = block.attention.window_tokens if with_window else None
        found[(*(tuple(sorted(part.items())) for part in parts), window)] += group.count
    return found


# These attention modules read the window from the config on every call instead of keeping it.
_WINDOW_ON_CONFIG = {"llama4_text", "mistral", "mixtral", "phi3", "starcoder2", "ministral3"}


def assert_is_module(spec: ModelSpec, config: dict[str, Any]) -> None:
    """The layers, parameters, matrices, norms and ends of the module that Transformers builds."""
    module = built(config)
    assert n_parameters(module) == spec.param_count
    decoder = module.get_decoder()
    layers = decoder.model.layers if config["model_type"] == "llama4_text" else decoder.layers
    assert len(layers) == spec.n_layers
    keeps_window = config["model_type"] not in _WINDOW_ON_CONFIG
    found = Counter((*signature[:-1], signature[-1] or None) for signature in map(_layer_signature, layers))
    assert found == _spec_signatures(spec, with_window=keeps_window)
    if hasattr(module.config, "sliding_window") and not keeps_window:
        assert {group.block.attention.window_tokens for group in spec.groups} == {
            module.config.sliding_window
        }
    head, table = module.get_output_embeddings(), module.get_input_embeddings()
    assert tuple(head.weight.shape) == (spec.head.out_features, spec.head.in_features)
    assert tuple(table.weight.shape) == (spec.token_embedding.rows, spec.token_embedding.width)
    assert (head.weight is table.weight) == spec.tied
    activation = getattr(module.config, "hidden_act", None) or module.config.hidden_activation
    if module.config.model_type == "gpt_oss":
        # Its experts have an activation of their own and never read ``hidden_act``.
        assert not hasattr(module.model.layers[0].mlp.experts, "act_fn")
        activation = "clamped_swiglu"
    assert {group.block.mlp.activation for group in spec.groups} == {activation}


@pytest.mark.parametrize("name", SHIPPED_NAMES)
def test_entry_matches_transformers_module(name: str) -> None:
    """Every entry has Transformers' parameters, matrices, norms and windows exactly,
    on the layers that show each kind.
    """
    config = _shallow(_text_config(ENTRIES[name].config_fields()))
    assert_is_module(model_from_config(config, name), config)


@pytest.mark.parametrize("name", FULL_DEPTH)
def test_entry_matches_transformers_module_at_full_depth(name: str) -> None:
    """At full depth the layer patterns repeat as Transformers repeats them."""
    config = _text_config(ENTRIES[name].config_fields())
    assert_is_module(model_from_config(config, name), config)


@pytest.mark.parametrize(("kind", "change"), VARIANTS)
def test_optional_fields_match_transformers_module(kind: str, change: dict[str, Any]) -> None:
    """Absent fields mean the defaults of the config class,
    and optional fields change shapes as they do in the module.
    """
    config = {"model_type": kind} | _SMALL | change
    assert_is_module(model_from_config(config, kind), config)


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_published_count(name: str) -> None:
    """The computed count is the published one,
    or agrees within one unit of the last published digit (some round down).
    """
    entry = ENTRIES[name]
    count = model_from_config(entry.config_fields(), name).param_count
    if entry.params_origin in {"published-exact", "published-bytes"}:
        assert count == entry.published_params
    else:
        digits = str(entry.published_params)
        assert abs(count - entry.published_params) <= 10 ** (len(digits) - len(digits.rstrip("0")))
    if entry.params_origin == "published-bytes":
        elements, extra = CHECKPOINT_ELEMENTS[name]
        assert count == elements - extra


def test_most_counts_are_exact() -> None:
    """Of the entries 107 agree with a published integer or published bytes;
    all that Transformers ships are exact.
    """
    origins = Counter(entry.params_origin for entry in ENTRIES.values())
    assert origins["published-exact"] + origins["published-bytes"] >= 107
    assert all(ENTRIES[name].params_origin != "published-rounded" for name in SHIPPED_NAMES)
