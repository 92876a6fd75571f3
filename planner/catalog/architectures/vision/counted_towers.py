"""Towers that are loaded and counted, and whose computation is not modelled: Gemma 3n and 4,
Llama 3.2 Vision, Muse Glimmer; those of GLM in ``glm_vision``.
Trained on text alone, such models are answered like any other.

Module names, shapes and defaults are those of Transformers 5.23
(``models/{gemma3n,gemma4,gemma4_unified,mllama,muse_glimmer}/modeling_*.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.dense.llama_family import read_llama
from planner.catalog.architectures.parts import layer_norm, rms
from planner.catalog.architectures.vision.qwen_vision import NO_ATTENTION
from planner.catalog.architectures.vision.square_vision import language_model
from planner.domain.model import (
    BlockGroup,
    BlockSpec,
    EmbeddingSpec,
    LinearSpec,
    MlpSpec,
    ModelSpec,
    NormSpec,
)
from planner.domain.vision import ImageRule, TowerSpec
from planner.errors import NotModelledError

_GEMMA4_TOKENS = 280
"""Most tokens of an image.  Source: transformers 5.23 models/gemma4/image_processing_gemma4.py
``max_soft_tokens``.
"""
_CROSSED = (3, 8, 13, 18, 23, 28, 33, 38)
_MLLAMA_SHAPES = 8
"""Shapes of images in tiles, where a file does not list them."""

Matrix = tuple[str, int, int, bool]
"""Name, inputs, outputs, whether it has a bias."""


def counted_block(matrices: Sequence[Matrix], norms: Sequence[NormSpec] = (), extra: int = 0) -> BlockSpec:
    """Matrices and norms of one layer; ``extra``: parameters besides."""
    linears = tuple(
        LinearSpec(name, "mlp", n_in, n_out, "mlp_in", bias) for name, n_in, n_out, bias in matrices
    )
    return BlockSpec(NO_ATTENTION, MlpSpec(0, False, ""), linears, tuple(norms), extra_params=extra)


def counted_tower(
    width: int,
    entry: BlockSpec,
    groups: Sequence[BlockGroup],
    projectors: Sequence[BlockSpec],
    *,
    listed: bool,
) -> TowerSpec:
    """A tower of which only the weights are known."""
    last = tuple(BlockGroup(1, block) for block in projectors)
    rule = ImageRule("resized", 1)
    return TowerSpec("counted", width, rule, entry, tuple(groups), last, 1.0, listed=listed)


def read_gemma4(fields: ConfigFields) -> ModelSpec:
    """``gemma4``: AutoModelForCausalLM loads towers for images and sounds, too; without their sections
    the decoder alone.
    """
    spec = replace(language_model(fields, tied_default=True), architecture="gemma4", loads_whole=True)
    if not fields.has("vision_config"):
        return spec
    vision, hidden = fields.section("vision_config"), spec.hidden_size
    width, patch = vision.integer("hidden_size", default=768), vision.integer("patch_size", default=16)
    places = 2 * vision.integer("position_embedding_size", default=10_240) * width
    projectors = [counted_block([("embedding_projection", width, hidden, False)])]
    matrices = [("input_proj", 3 * patch**2, width, False)]
    extra = places
    groups = [_gemma4_layers(vision, width)]
    if fields.has("audio_config"):
        audio = fields.section("audio_config")
        more, n_convolved = _gemma4_sound_entry(audio)
        matrices, extra = [*matrices, *more], extra + n_convolved
        groups.append(_gemma4_sound_layers(audio))
        projectors.append(counted_block([("embedding_projection", more[-1][2], hidden, False)]))
    entry = counted_block(matrices, extra=extra)
    listed = fields.has("audio_config")
    tower = counted_tower(width, entry, groups, projectors, listed=listed)
    return replace(spec, vision=_forward_alone(tower, vision, seeing=1, joined=False))


def _forward_alone(tower: TowerSpec, vision: ConfigFields, *, seeing: int, joined: bool) -> TowerSpec:
    """A tower whose first ``seeing`` groups of layers and first projector see.

    Transformers finds no input of it that could require a gradient.
    """
    merge = vision.integer("pooling_kernel_size", default=3)
    rule = ImageRule(
        "filled",
        vision.integer("patch_size", default=16),
        merge,
        max_patches=_GEMMA4_TOKENS * merge**2,
        joined=joined,
    )
    return replace(tower, code="forward", rule=rule, n_seeing=seeing, has_hook=False)


def _gemma4_layers(vision: ConfigFields, width: int) -> BlockGroup:
    """Every matrix is a module ``linear`` inside one that clamps."""
    inner, size = vision.integer("intermediate_size", default=3072), vision.integer("head_dim", default=64)
    out = vision.integer("num_attention_heads", default=12) * size
    keys = vision.integer("num_key_value_heads", default=12) * size
    shapes = [(width, out), (width, keys), (width, keys), (out, width), (width, inner), (width, inner)]
    matrices = [("linear", *shape, False) for shape in [*shapes, (inner, width)]]
    block = counted_block(matrices, (rms(width, copies=4), rms(size, copies=2)))
    return BlockGroup(vision.layers("num_hidden_layers", default=16), block)


def _gemma4_sound_entry(audio: ConfigFields) -> tuple[list[Matrix], int]:
    """Matrices around the layers, the last one behind them, and the parameters of two convolutions."""
    width, out = audio.integer("hidden_size", default=1024), audio.integer("output_proj_dims", default=1536)
    first, second = audio.integers("subsampling_conv_channels") or (128, 32)
    matrices = [("input_proj_linear", first // 4 * second, width, False), ("output_proj", width, out, True)]
    return matrices, 9 * first + first + 9 * first * second + second


def _gemma4_sound_layers(audio: ConfigFields) -> BlockGroup:
    width = audio.integer("hidden_size", default=1024)
    size = width // audio.integer("num_attention_heads", default=8)
    square, wide = (width, width), (width, 4 * width)
    shapes = [square] * 4 + [wide, wide[::-1]] * 2 + [(width, 2 * width), square]
    matrices = [("linear", *shape, False) for shape in shapes] + [("relative_k_proj", *square, False)]
    kernel = audio.integer("conv_kernel_size", default=5) * width
    block = counted_block(matrices, (rms(width, copies=9),), size + kernel)
    return BlockGroup(audio.layers("num_hidden_layers", default=12), block)


_MOBILENET = {"mobilenetv5_300m_enc": 294_126_912}
"""Parameters of towers made of convolutions: as timm 1.0.31 builds them on meta."""


def read_gemma3n(fields: ConfigFields) -> ModelSpec:
    """``gemma3n``: AutoModelForCausalLM loads towers for images and sounds, too; rows of their marks are
    computed for every token of text.

    Raises:
        NotModelledError: a tower for images whose parameters nobody counted.
    """
    spec = replace(language_model(fields, tied_default=True), architecture="gemma3n", loads_whole=True)
    vision, audio = fields.optional_section("vision_config"), fields.optional_section("audio_config")
    kind, hidden = vision.text("architecture", "mobilenetv5_300m_enc"), spec.hidden_size
    if kind not in _MOBILENET:
        raise NotModelledError(f"{fields.where}: nobody counted the tower '{kind[:40]}' of Gemma 3n")
    width, sound = vision.integer("hidden_size", default=2048), audio.integer("hidden_size", default=1536)
    first, second = audio.integers("sscp_conv_channel_size") or (128, 32)
    features = audio.integer("input_feat_size", default=128) // 4 * second
    n_convolved = 9 * first + first + 9 * first * second + second
    entry = counted_block([("input_proj_linear", features, sound, False)], extra=n_convolved)
    groups = [BlockGroup(1, counted_block([], extra=_MOBILENET[kind])), _gemma3n_sound_layers(audio, sound)]
    projectors = [counted_block([], (rms(each),)) for each in (width, sound)]
    sides = (("embed_vision", vision, width), ("embed_audio", audio, sound))
    tables = tuple(
        EmbeddingSpec(name, given.integer("vocab_size", default=128), each, soft=True)
        for name, given, each in sides
    )
    norms = tuple(NormSpec("rms", each, on="soft_rows", scaling="in_fp32") for each in (width, sound))
    matrices = tuple(
        LinearSpec("embedding_projection", "embedding_projection", each, hidden, "soft_rows")
        for each in (width, sound)
    )
    return replace(
        spec,
        extra_embeddings=spec.extra_embeddings + tables,
        extra_linears=spec.extra_linears + matrices,
        final_norms=spec.final_norms + norms,
        vision=counted_tower(width, entry, groups, projectors, listed=False),
    )


def _gemma3n_sound_layers(audio: ConfigFields, width: int) -> BlockGroup:
    square, wide = (width, width), (width, 4 * width)
    shapes = [(name, *square) for name in ("q_proj", "k_proj", "v_proj", "pos_proj", "post")]
    shapes += [("ffw_layer_1", *wide), ("ffw_layer_2", *wide[::-1])] * 2
    shapes += [("linear_start", width, 2 * width), ("linear_end", *square)]
    size = width // audio.integer("conf_num_attention_heads", default=8)
    kernel = audio.integer("conf_conv_kernel_size", default=5) * width
    block = counted_block([(*each, False) for each in shapes], (rms(width, copies=9),), size + kernel)
    n_layers = audio.layers("conf_num_hidden_layers", default=12)
    return BlockGroup(n_layers, block)


def read_gemma4_unified(fields: ConfigFields) -> ModelSpec:
    """``gemma4_unified``: no tower, but a product of patches and one of pieces of sound.

    Where tokens of an image see each other, its mask is made for text, too.
    """
    spec = language_model(fields, tied_default=True)
    spec = replace(spec, architecture="gemma4_unified", loads_whole=True)
    if fields.section("text_config").data.get("use_bidirectional_attention", "vision") == "vision":
        spec = spec.with_blocks(_with_mask)
    if not fields.has("vision_config"):
        return spec
    vision, hidden = fields.section("vision_config"), spec.hidden_size
    side = vision.integer("patch_size", default=16) * vision.integer("pooling_kernel_size", default=3)
    width, pixels = vision.integer("mm_embed_dim", default=3840), 3 * side**2
    places = 2 * vision.integer("mm_posemb_size", default=1120) * width
    norms = (layer_norm(pixels), layer_norm(width, copies=2))
    entry = counted_block([("patch_dense", pixels, width, True)], norms, places)
    out = vision.integer("output_proj_dims", default=3840)
    projectors = [counted_block([("embedding_projection", out, hidden, False)])]
    if fields.has("audio_config"):
        sound = fields.section("audio_config").integer("audio_embed_dim", default=640)
        projectors.append(counted_block([("embedding_projection", sound, hidden, False)]))
    tower = counted_tower(width, entry, (), projectors, listed=False)
    return replace(spec, vision=_forward_alone(tower, vision, seeing=0, joined=True))


def _with_mask(block: BlockSpec) -> BlockSpec:
    return replace(block, attention=replace(block.attention, makes_mask=True))


def side_of(fields: ConfigFields, name: str, default: int) -> int:
    """A side in pixels, which files also say as a list of two."""
    if not isinstance(fields.data.get(name), list):
        return fields.integer(name, default=default)
    sides = set(fields.integers(name))
    if len(sides) != 1 or not min(sides):
        raise fields.fail(f"{name} with two sides is not modelled")
    return sides.pop()


def llava_projector(fields: ConfigFields, width: int, hidden: int) -> BlockSpec:
    """Two matrices.

    Raises:
        NotModelledError: one that reads several layers.
    """
    if isinstance(fields.data.get("vision_feature_layer", -1), list):
        raise NotModelledError(f"{fields.where}: vision_feature_layer with several layers is not modelled")
    bias = fields.flag("multimodal_projector_bias", True)
    return counted_block([("linear_1", width, hidden, bias), ("linear_2", hidden, hidden, bias)])


def read_mllama(fields: ConfigFields) -> ModelSpec:
    """``mllama`` (Llama 3.2 Vision): layers that attend to the image are passed over for text.

    They are counted with the tower, so that freezing the tower also takes their adapters away.
    """
    text = fields.section("text_config")
    n_layers = text.layers("num_hidden_layers", default=40)
    crossed = text.integers("cross_attention_layers") if text.has("cross_attention_layers") else _CROSSED
    n_crossed = len({each for each in crossed if each < n_layers})
    known = {"model_type": "llama", "num_hidden_layers": n_layers - n_crossed}
    defaults = {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
    }
    section = ConfigFields({**defaults, "intermediate_size": 14_336, **text.data, **known}, text.where)
    spec = read_llama(section)
    table = replace(spec.token_embedding, rows=spec.vocab_size + 8)
    layers = (
        BlockGroup(n_crossed, _cross_layer(spec.groups[0].block, spec.hidden_size)) if n_crossed else None
    )
    tower = _mllama_tower(fields.section("vision_config"), spec.hidden_size)
    tower = replace(tower, groups=(*tower.groups, *([layers] if layers else [])))
    return replace(spec, architecture="mllama", token_embedding=table, vision=tower)


def _cross_layer(block: BlockSpec, hidden: int) -> BlockSpec:
    """A layer of the language model whose keys are those of the image; two gates of one number."""
    norms = (rms(hidden, copies=2), rms(block.attention.head_dim, copies=2))
    return counted_block(
        [(each.name, each.in_features, each.out_features, each.bias) for each in block.linears], norms, 2
    )


def _mllama_tower(vision: ConfigFields, hidden: int) -> TowerSpec:
    width = vision.integer("hidden_size", default=1280)
    inner = vision.integer("intermediate_size", default=5120)
    side, patch = (
        side_of(vision, name, default) for name, default in (("image_size", 448), ("patch_size", 14))
    )
    tiles, places = vision.integer("max_num_tiles", default=4), (side // patch) ** 2 + 1
    ratios = vision.data.get("supported_aspect_ratios")
    shapes = len(ratios) + 1 if isinstance(ratios, list) else _MLLAMA_SHAPES + 1
    beside_tiles = 2 * (1 + shapes * tiles * width)
    extra = width + 1 + places * width + shapes * tiles * places * width + beside_tiles
    conv = LinearSpec(
        "patch_embedding", "embedding_projection", 3 * patch**2, width, "embed", kind="parameter"
    )
    entry = replace(counted_block([], (layer_norm(width, copies=2),), extra), linears=(conv,))
    matrices = [(f"{name}_proj", width, width, False) for name in "qkvo"]
    matrices += [("fc1", width, inner, True), ("fc2", inner, width, True)]
    layer = counted_block(matrices, (layer_norm(width, copies=2),))
    groups = (
        BlockGroup(vision.integer("num_hidden_layers", default=32), layer),
        BlockGroup(vision.integer("num_global_layers", default=8), replace(layer, extra_params=2)),
    )
    out = vision.integer("vision_output_dim", default=7680)
    projector = counted_block([("multi_modal_projector", out, hidden, True)])
    return counted_tower(width, entry, groups, [projector], listed=True)


_VOXTRAL = {
    "model_type": "llama",
    "vocab_size": 131_072,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 30,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
}


def read_voxtral(fields: ConfigFields) -> ModelSpec:
    """``voxtral``: a Llama that hears, by an encoder like Whisper's; text passes it over."""
    text = fields.optional_section("text_config").data
    given = ConfigFields({**fields.data, "text_config": {**_VOXTRAL, **text}}, fields.where)
    spec = replace(language_model(given, tied_default=False), architecture="voxtral", loads_whole=True)
    audio = given.optional_section("audio_config")
    width = audio.integer("hidden_size", default=1280)
    inner = audio.integer("intermediate_size", default=5120)
    places = audio.integer("max_source_positions", default=1500) * width
    convolved = 3 * width * (audio.integer("num_mel_bins", default=128) + width) + 2 * width
    entry = counted_block([], (layer_norm(width),), places + convolved)
    matrices = [(f"{name}_proj", width, width, name != "k") for name in ("k", "v", "q", "out")]
    matrices += [("fc1", width, inner, True), ("fc2", inner, width, True)]
    layer = counted_block(matrices, (layer_norm(width, copies=2),))
    n_layers = audio.layers("num_hidden_layers", default=32)
    hidden = spec.hidden_size
    projector = counted_block([("linear_1", inner, hidden, False), ("linear_2", hidden, hidden, False)])
    tower = counted_tower(width, entry, [BlockGroup(n_layers, layer)], [projector], listed=False)
    return replace(spec, vision=tower)


def read_muse_glimmer(fields: ConfigFields) -> ModelSpec:
    """``muse_glimmer``: layers of plain matrices, of whose patches four become a token."""
    spec, vision = language_model(fields, tied_default=False), fields.optional_section("vision_config")
    width = vision.integer("hidden_size", default=1536)
    inner = vision.integer("intermediate_size", default=8960)
    places = vision.integer("pos_emb_height", default=32) * vision.integer("pos_emb_width", default=32)
    pixels = 3 * vision.integer("patch_temporal", default=2) * vision.integer("patch_size", default=14) ** 2
    entry = counted_block([("patch_embedding", pixels, width, False)], (layer_norm(width),), places * width)
    matrices = [(name, width, width, True) for name in ("q_proj", "k_proj", "v_proj", "proj")]
    matrices += [("fc1", width, inner, True), ("fc2", inner, width, True)]
    layer = counted_block(matrices, (layer_norm(width, copies=2),))
    merged = fields.integer("out_hidden_size", default=6144)
    middle = fields.integer("projector_hidden_size", default=4096)
    matrices = [("fc1", merged, middle, False), ("fc2", middle, middle, False)]
    projector = counted_block([*matrices, ("vision_projection", middle, spec.hidden_size, False)])
    groups = [BlockGroup(vision.layers("num_hidden_layers", default=50), layer)]
    tower = counted_tower(width, entry, groups, [projector], listed=True)
    tower = replace(tower, behind=(layer_norm(width),))
    return replace(spec, architecture="muse_glimmer", vision=tower)


READERS = {
    "muse_glimmer": read_muse_glimmer,
    "voxtral": read_voxtral,
    "gemma3n": read_gemma3n,
    "gemma4": read_gemma4,
    "gemma4_unified": read_gemma4_unified,
    "mllama": read_mllama,
}
