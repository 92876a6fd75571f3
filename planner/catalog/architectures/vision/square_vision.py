"""Towers over images of one size, CLIP's and SigLIP's, and the decoder of another architecture behind them.

Module names, shapes and defaults are those of Transformers 5.23 (``models/{clip,siglip}/modeling_*.py``,
``configuration_*.py``).
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.parts import layer_norm, plain_mlp
from planner.catalog.architectures.vision.qwen_vision import NO_ATTENTION
from planner.domain.attention_shape import AttentionSpec
from planner.domain.model import BlockGroup, BlockSpec, LinearSpec, MlpSpec, ModelSpec, NormSpec
from planner.domain.vision import ImageRule, TowerSpec
from planner.errors import NotModelledError

_LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}
"""Defaults of ``LlamaConfig``, which published files of LLaVA leave out."""


def language_model(fields: ConfigFields, *, tied_default: bool | None = None) -> ModelSpec:
    """The decoder of ``text_config``, by the reader of its own architecture.

    ``tied_default``: what the class of the whole has for a head that no field describes, if it has its own.
    """
    from planner.catalog.architectures import reader_for

    section = fields.section("text_config")
    kind = section.text("model_type", "llama")
    data = {**(_LLAMA if kind == "llama" else {}), **section.data, "model_type": kind}
    reader = reader_for(kind)
    if reader is None:
        raise NotModelledError(
            f"{section.where}: a language model of architecture '{kind[:40]}' is not modelled"
        )
    spec = reader(ConfigFields(data, section.where))
    if spec.vision is not None:
        raise NotModelledError(f"{section.where}: a vision-language model inside another one is not modelled")
    tied = spec.tied if tied_default is None else tied_default
    return replace(spec, decoder=spec.architecture, tied=fields.flag("tie_word_embeddings", tied))


def clip_tower(vision: ConfigFields, hidden: int, *, n_unread: int, keeps_class: bool) -> TowerSpec:
    """CLIP's tower with LLaVA's projector; ``n_unread``:
    last layers whose output the projector does not read.
    """
    kind = vision.text("model_type", "clip_vision_model")
    if kind != "clip_vision_model":
        raise NotModelledError(
            f"{vision.where}: a vision tower of architecture '{kind[:40]}' is not modelled, "
            "clip_vision_model is"
        )
    width, n_layers = vision.integer("hidden_size", default=768), vision.layers("num_hidden_layers")
    side, patch = vision.integer("image_size", default=224), vision.integer("patch_size", default=32)
    if n_unread >= n_layers:
        raise vision.fail(f"a CLIP tower of {n_layers} layers has none that LLaVA reads")
    layer, grid = _layer(vision, width, "quick_gelu"), (side // patch) ** 2
    numbers = vision.integer("num_channels", default=3) * patch**2
    conv = LinearSpec("patch_embedding", "embedding_projection", numbers, width, "embed", kind="parameter")
    entry = BlockSpec(
        NO_ATTENTION, MlpSpec(0, False, ""), (conv,), (layer_norm(width),), extra_params=(grid + 2) * width
    )
    tokens = grid + int(keeps_class)
    return TowerSpec(
        "llava",
        width,
        ImageRule("square", patch, side_pixels=side, tokens=tokens, extra_patches=1),
        entry,
        (BlockGroup(n_layers, layer),),
        (BlockGroup(1, _projector(width, hidden)),),
        tokens / (grid + 1),
        behind=(layer_norm(width),),
        n_unread=n_unread,
    )


def _layer(vision: ConfigFields, width: int, activation: str) -> BlockSpec:
    """A layer of CLIP or SigLIP, which differ in the ``activation`` that they have by default."""
    heads = vision.integer("num_attention_heads", default=12)
    inner = vision.integer("intermediate_size", default=3072)
    if width % heads:
        raise vision.fail(f"hidden_size {width} is not divisible by num_attention_heads {heads}")
    attention = AttentionSpec(heads, heads, width // heads, width // heads, position="none", heads_last=True)
    linears = tuple(
        LinearSpec(f"{name}_proj", "attention", width, width, "attn_in", bias=True) for name in "qkv"
    )
    linears += (LinearSpec("out_proj", "attention", width, width, "attn_out", bias=True),)
    return BlockSpec(
        attention,
        MlpSpec(inner, gated=False, activation=vision.text("hidden_act", activation)),
        linears + plain_mlp(width, inner, ("fc1", "fc2"), bias=True),
        (layer_norm(width, copies=2),),
    )


def siglip_layers(vision: ConfigFields) -> tuple[int, BlockSpec, BlockGroup, tuple[NormSpec, ...]]:
    """Width, entry, layers and what is behind them of SigLIP's tower.

    Source: transformers 5.23 models/siglip/configuration_siglip.py.

    Raises:
        NotModelledError: another tower, or one with a head.
    """
    kind = vision.text("model_type", "siglip_vision_model")
    if kind != "siglip_vision_model" or vision.flag("vision_use_head", True):
        what = f"of architecture '{kind[:40]}'" if kind != "siglip_vision_model" else "with a head of its own"
        raise NotModelledError(
            f"{vision.where}: a vision tower {what} is not modelled, siglip_vision_model without a head is"
        )
    width, n_layers = vision.integer("hidden_size", default=768), vision.layers("num_hidden_layers")
    side, patch = vision.integer("image_size", default=224), vision.integer("patch_size", default=16)
    grid = side // patch
    numbers = vision.integer("num_channels", default=3) * patch**2
    conv = LinearSpec(
        "patch_embedding", "embedding_projection", numbers, width, "embed", bias=True, kind="parameter"
    )
    entry = BlockSpec(NO_ATTENTION, MlpSpec(0, False, ""), (conv,), (), extra_params=grid**2 * width)
    layers = BlockGroup(n_layers, _layer(vision, width, "gelu_pytorch_tanh"))
    return width, entry, layers, (layer_norm(width),)


def siglip_tower(vision: ConfigFields, hidden: int, tokens: int) -> TowerSpec:
    """SigLIP's tower with Gemma 3's projector, which averages patches to ``tokens`` for each image.

    Source: transformers 5.23 models/gemma3/modeling_gemma3.py Gemma3MultiModalProjector.
    """
    width, entry, layers, behind = siglip_layers(vision)
    side, patch = vision.integer("image_size", default=224), vision.integer("patch_size", default=16)
    grid, row = side // patch, round(tokens**0.5)
    if not row or row * row != tokens or grid % row:
        raise vision.fail(f"{grid} x {grid} patches are not averaged to mm_tokens_per_image {tokens}")
    last = LinearSpec(
        "mm_input_projection_weight", "embedding_projection", width, hidden, "mlp_in", kind="parameter"
    )
    return TowerSpec(
        "gemma3",
        width,
        ImageRule("square", patch, side_pixels=side, tokens=tokens),
        entry,
        (layers,),
        (
            BlockGroup(
                1,
                BlockSpec(
                    NO_ATTENTION,
                    MlpSpec(0, False, ""),
                    (last,),
                    (NormSpec("rms", width, scaling="one_plus"),),
                ),
            ),
        ),
        tokens / grid**2,
        behind=behind,
    )


def paligemma_tower(vision: ConfigFields, hidden: int) -> TowerSpec:
    """SigLIP's tower and one matrix behind it, which makes a token of each patch.

    Source: transformers 5.23 models/paligemma/modeling_paligemma.py PaliGemmaMultiModalProjector.
    """
    width, entry, layers, behind = siglip_layers(vision)
    side, patch = vision.integer("image_size", default=224), vision.integer("patch_size", default=16)
    last = LinearSpec("linear", "mlp", width, hidden, "mlp_in", bias=True)
    rule = ImageRule("square", patch, side_pixels=side, tokens=(side // patch) ** 2)
    projector = BlockSpec(NO_ATTENTION, MlpSpec(0, False, ""), (last,), ())
    return TowerSpec(
        "paligemma", width, rule, entry, (layers,), (BlockGroup(1, projector),), 1.0, behind=behind
    )


def _projector(width: int, hidden: int) -> BlockSpec:
    linears = (
        LinearSpec("linear_1", "mlp", width, hidden, "mlp_in", bias=True),
        LinearSpec("linear_2", "mlp", hidden, hidden, "mlp_mid", bias=True),
    )
    return BlockSpec(NO_ATTENTION, MlpSpec(hidden, False, "gelu"), linears, ())
