"""Parameter counts and module structure of the classic and remote-code architectures.

Against Transformers' own modules on the meta device where the architecture ships with Transformers, and
against formulas written by hand and published counts where the module ships with the checkpoint.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from planner.catalog.hf_config import model_from_config
from planner.catalog.location import data_dir
from planner.catalog.models import model_ids
from planner.domain.model import BlockSpec, ModelSpec, NormSpec
from planner.files.structured import read_toml
from planner.words import words
from tests.against_libraries.parameters.modules import built, n_parameters
from tests.extras import import_or_skip

torch = import_or_skip("torch")
transformers = import_or_skip("transformers")

SHIPPED = set(
    words(
        """
    biogpt codegen gpt2 gpt_bigcode gpt_neo gptj gpt_neox opt bloom falcon mpt phi stablelm cohere glm
    glm4
    """
    )
)
REMOTE = {"baichuan", "chatglm", "qwen"}

# Published number minus the number of parameters in the module, where the two differ by more than rounding;
# the reason is in the entry's params_source.
EXPLAINED = {
    "gpt-j-6b": 7 * (29 * 2 * 4096 + 28 * 4096) + 8 * 4096,
    "stablelm-2-1_6b": -24 * 2 * 2048,
    # Its publisher counts the tied head twice.
    "bloom-2b6-zh": 46145 * 2560,
    # Named after Baichuan 1; the larger vocabulary is not in the name.  See
    # test_baichuan_2_is_baichuan_1_with_more_rows.
    "baichuan2-7b": 7_000_000_000 - 7_505_973_248,
    "baichuan2-13b": 13_000_000_000 - 13_896_668_160,
}


def _entries(types: set[str]) -> dict[str, dict[str, Any]]:
    """Catalog entries of the given model types, by id."""
    paths = [
        path
        for path in sorted((data_dir() / "models").glob("*.toml"))
        if path.name not in ("sizes.toml", "stored.toml")
    ]
    entries = {path.stem: read_toml(path) for path in paths}
    return {name: entry for name, entry in entries.items() if entry["config"]["model_type"] in types}


SHIPPED_ENTRIES, REMOTE_ENTRIES = _entries(SHIPPED), _entries(REMOTE)
ALL_ENTRIES = SHIPPED_ENTRIES | REMOTE_ENTRIES
MADE_BY_TOOLS = ("qwen-7b-plus-4-layers", *(name for name in model_ids() if name.startswith("nntile-")))
"""Made of another model by a tool, or for a benchmark; nobody published their weights."""


def _small(kind: str, **fields: Any) -> dict[str, Any]:
    return {"model_type": kind, "vocab_size": 96, **fields}


_WIDE = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
_GATED = _WIDE | {"intermediate_size": 80}
SMALL: dict[str, dict[str, Any]] = {
    "gpt2": _small("gpt2", n_positions=32, n_embd=48, n_layer=2, n_head=4),
    "gptj": _small("gptj", n_positions=32, n_embd=48, n_layer=2, n_head=4, rotary_dim=8),
    "codegen": _small("codegen", n_positions=32, n_embd=48, n_layer=2, n_head=4, rotary_dim=8),
    "gpt_neox": _small("gpt_neox", **_GATED),
    "opt": _small("opt", ffn_dim=80, **_WIDE),
    "gpt_neo": _small("gpt_neo", hidden_size=48, num_layers=24, num_heads=4),
    "gpt_bigcode": _small("gpt_bigcode", n_positions=32, n_embd=48, n_layer=2, n_head=4),
    "biogpt": _small("biogpt", **_WIDE),
    "bloom": _small("bloom", hidden_size=48, n_layer=2, n_head=4),
    "falcon": _small("falcon", **_WIDE),
    "mpt": _small("mpt", d_model=48, n_layers=2, n_heads=4),
    "phi": _small("phi", **_GATED),
    "stablelm": _small("stablelm", num_key_value_heads=2, **_GATED),
    "cohere": _small("cohere", **_GATED),
    "glm": _small("glm", pad_token_id=0, **_GATED),
    "glm4": _small("glm4", pad_token_id=0, **_GATED),
}

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("gpt2", {"n_inner": 80, "tie_word_embeddings": False}),
    ("gptj", {"n_inner": 80}),
    ("codegen", {"n_inner": 80, "tie_word_embeddings": True}),
    ("gptj", {"tie_word_embeddings": True}),
    ("gpt_neox", {"attention_bias": False, "use_parallel_residual": False, "tie_word_embeddings": True}),
    (
        "gpt_neo",
        {
            "intermediate_size": 80,
            "attention_types": [[["global"], 2], [["local"], 1]],
            "num_layers": 3,
            "tie_word_embeddings": False,
        },
    ),
    ("gpt_bigcode", {"multi_query": False, "n_inner": 80, "tie_word_embeddings": False}),
    ("biogpt", {"intermediate_size": 80, "max_position_embeddings": 32, "tie_word_embeddings": False}),
    ("opt", {"word_embed_proj_dim": 24, "do_layer_norm_before": False}),
    ("opt", {"enable_bias": False, "layer_norm_elementwise_affine": False, "_remove_final_layer_norm": True}),
    ("bloom", {"tie_word_embeddings": False}),
    ("falcon", {"parallel_attn": False, "multi_query": False, "bias": True, "alibi": True}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 80}),
    (
        "falcon",
        {
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "num_ln_in_parallel_attn": 1,
            "tie_word_embeddings": False,
        },
    ),
    ("mpt", {"attn_config": {"clip_qkv": 6.0}, "tie_word_embeddings": False}),
    ("phi", {"qk_layernorm": True, "num_key_value_heads": 2}),
    ("stablelm", {"use_qkv_bias": True, "tie_word_embeddings": True}),
    ("stablelm", {"qk_layernorm": True, "use_parallel_residual": True}),
    ("cohere", {"attention_bias": True, "use_qk_norm": True, "num_key_value_heads": 2}),
    ("glm", {"attention_bias": False, "num_key_value_heads": 4, "head_dim": 16, "tie_word_embeddings": True}),
    ("glm4", {"attention_bias": False}),
]


def _decoder_layers(module: Any) -> Any:
    """The list of decoder layers: the module list that holds the most parameters."""
    lists = [child for child in module.modules() if isinstance(child, torch.nn.ModuleList)]
    return max(lists, key=lambda child: sum(tensor.numel() for tensor in child.parameters()))


def _module_linears(layer: Any) -> Counter[tuple[str, int, int, bool, str]]:
    found: Counter[tuple[str, int, int, bool, str]] = Counter()
    for path, child in layer.named_modules():
        name = path.rpartition(".")[2]
        if isinstance(child, torch.nn.Linear):
            # Some quantisers replace nn.Linear itself and no class derived from it.
            kind = "linear" if type(child) is torch.nn.Linear else "subclass"
            found[name, child.out_features, child.in_features, child.bias is not None, kind] += 1
        elif type(child).__name__ == "Conv1D":
            found[name, child.weight.shape[1], child.weight.shape[0], child.bias is not None, "conv1d"] += 1
    return found


def _spec_linears(block: BlockSpec) -> Counter[tuple[str, int, int, bool, str]]:
    return Counter(
        (line.name, line.out_features, line.in_features, line.bias, line.kind) for line in block.linears
    )


def _module_norms(layer: Any) -> Counter[tuple[str, int, int, int]]:
    """Norms as (kind, weight elements, bias elements, features normalised)."""
    found: Counter[tuple[str, int, int, int]] = Counter()
    for child in layer.modules():
        kind = (
            "rms"
            if "RMSNorm" in type(child).__name__
            else "layer"
            if "LayerNorm" in type(child).__name__
            else ""
        )
        if not kind or any(True for _ in child.children()):
            continue
        weight, bias = getattr(child, "weight", None), getattr(child, "bias", None)
        weights, biases = 0 if weight is None else weight.numel(), 0 if bias is None else bias.numel()
        width = weight.shape[-1] if weight is not None else child.normalized_shape[-1]
        # Cohere keeps the weights of all heads in one norm
        copies = weights // width if weight is not None else 1
        found[kind, weights // copies, biases // copies, width] += copies
    return found


def _spec_norms(norms: tuple[NormSpec, ...]) -> Counter[tuple[str, int, int, int]]:
    found: Counter[tuple[str, int, int, int]] = Counter()
    for norm in norms:
        found[norm.kind, norm.width * norm.weight, norm.width * norm.bias, norm.width] += norm.copies
    return found


def assert_is_module(spec: ModelSpec, config: dict[str, Any]) -> None:
    """The layers, parameters, matrices, norms and ends of the module that Transformers builds."""
    module = built(config)
    assert n_parameters(module) == spec.param_count
    layers = _decoder_layers(module)
    assert len(layers) == spec.n_layers
    (group,) = spec.groups
    assert _module_linears(layers[0]) == _spec_linears(group.block)
    assert _module_norms(layers[0]) == _spec_norms(group.block.norms)
    head, table = module.get_output_embeddings(), module.get_input_embeddings()
    assert tuple(head.weight.shape) == (spec.head.out_features, spec.head.in_features)
    assert (head.bias is not None) == spec.head.bias
    assert tuple(table.weight.shape) == (spec.token_embedding.rows, spec.token_embedding.width)
    assert (head.weight is table.weight) == spec.tied
    names = {path.rpartition(".")[2] for path, _ in module.named_modules()}
    assert {spec.head.name, spec.token_embedding.name} | {
        table.name for table in spec.extra_embeddings
    } <= names


@pytest.mark.parametrize("name", sorted(SHIPPED_ENTRIES))
def test_entry_matches_transformers_module(name: str) -> None:
    """Every entry whose architecture ships with Transformers has its parameters,
    matrices and norms exactly, at full depth.
    """
    config = SHIPPED_ENTRIES[name]["config"]
    assert_is_module(model_from_config(config, name), config)


@pytest.mark.parametrize(("kind", "change"), [(kind, {}) for kind in SMALL] + VARIANTS)
def test_optional_fields_match_transformers_module(kind: str, change: dict[str, Any]) -> None:
    """Absent fields mean the defaults of the config class,
    and optional fields change shapes as they do in the module.
    """
    config = SMALL[kind] | change
    assert_is_module(model_from_config(config, kind), config)


@pytest.mark.parametrize("name", sorted(ALL_ENTRIES))
def test_published_count(name: str) -> None:
    """The computed count is the published one,
    or agrees within half a unit of the last digit that is published.
    """
    entry = ALL_ENTRIES[name]
    spec, published = model_from_config(entry["config"], name), entry["published_params"]
    if name in EXPLAINED:
        assert entry["params_origin"] in {"meta-device", "published-rounded"}
        assert published - spec.param_count == EXPLAINED[name]
    elif entry["params_origin"] in {"published-exact", "published-bytes"}:
        assert spec.param_count == published
    else:
        digits = str(published)
        unit = 10 ** (len(digits) - len(digits.rstrip("0")))
        assert abs(spec.param_count - published) <= unit / 2


def test_most_counts_are_exact() -> None:
    """At least nine in ten entries agree exactly with a published number,
    published bytes or Transformers' own module.
    """
    exact = [entry for entry in ALL_ENTRIES.values() if entry["params_origin"] != "published-rounded"]
    assert len(exact) >= 0.9 * len(ALL_ENTRIES)
    assert all(entry["params_origin"] != "published-rounded" for entry in SHIPPED_ENTRIES.values())


def test_every_entry_file_is_complete() -> None:
    """Every entry of these families names itself, its place on the Hub, its names and its sources."""
    for name, entry in ALL_ENTRIES.items():
        assert entry["schema"] == 1
        assert entry["id"] == name
        assert entry["params_source"]
        if name not in MADE_BY_TOOLS:
            assert entry["hub_id"] in entry["aliases"]
            assert entry["config_source"].startswith(f"https://huggingface.co/{entry['hub_id']}/")
        assert Path(data_dir() / "models" / f"{name}.toml").is_file()
