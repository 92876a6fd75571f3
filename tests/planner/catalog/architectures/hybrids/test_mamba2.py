"""What the readers of Granite 4 H, Bamba, Falcon-H1 and Nemotron-H say: kinds of layers, mixers, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from planner.catalog.hf_config import model_from_config
from planner.domain.mixer_specs import Mamba2Spec
from planner.domain.model import ModelSpec
from planner.errors import InputFileError, NotModelledError

H, V = 64, 512
BASE = {
    "hidden_size": H, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": V,
    "num_hidden_layers": 4, "intermediate_size": 96,
}  # fmt: skip
MIXER = {"mamba_n_heads": 8, "mamba_d_state": 16, "mamba_n_groups": 2}
GRANITE = {
    "model_type": "granitemoehybrid", **BASE, **MIXER, "num_local_experts": 0, "shared_intermediate_size": 96,
}  # fmt: skip
FALCON = {"model_type": "falcon_h1", **BASE, **MIXER, "mamba_d_ssm": 128}
NEMOTRON = {
    "model_type": "nemotron_h", **BASE, "head_dim": 16, "mamba_num_heads": 8, "mamba_head_dim": 16,
    "n_groups": 2, "ssm_state_size": 16,
}  # fmt: skip


def spec(base: dict[str, Any], **more: Any) -> ModelSpec:
    """The model of a small configuration."""
    return model_from_config(base | more, "x")


def mixer(model: ModelSpec) -> Mamba2Spec:
    """The mixer of the layers that have one."""
    (found,) = {group.block.mixer for group in model.groups if group.block.mixer is not None}
    assert isinstance(found, Mamba2Spec)
    return found


def runs(model: ModelSpec) -> list[tuple[int, bool, bool]]:
    """Layers in a row alike: how many, whether they mix, whether they have a feed-forward part."""
    return [
        (group.count, group.block.mixer is not None, any(each.group == "mlp" for each in group.block.linears))
        for group in model.groups
    ]


def test_layers_of_granite_in_their_order() -> None:
    """By either name of the list and of the kinds; mixers alone where there is none."""
    kinds = ["mamba", "mamba", "attention", "mamba"]
    for name in ("layer_types", "layers_block_type"):
        assert runs(spec(GRANITE, **{name: kinds})) == [(2, True, True), (1, False, True), (1, True, True)]
    assert runs(spec(GRANITE)) == [(4, True, True)]


def test_a_mixer_by_hand() -> None:
    """Twice the width in 8 heads of 16; the input is gate, features, two groups of two states, and steps."""
    found = mixer(spec(GRANITE))
    assert (found.width, found.head_dim, found.conv_width) == (128, 16, 128 + 2 * 2 * 16)
    (block,) = (group.block for group in spec(GRANITE).groups)
    shapes = {
        each.name: (each.in_features, each.out_features) for each in block.linears if each.group == "mixer"
    }
    assert shapes == {"in_proj": (H, 128 + 192 + 8), "out_proj": (128, H)}
    # Convolution of 4 with its bias, and three numbers for each head.
    assert block.extra_params == 192 * 4 + 192 + 3 * 8


def test_the_kernel_reads_the_weight_of_out_proj_itself() -> None:
    """So no adapter is put there."""
    for base in (GRANITE, FALCON, {**NEMOTRON, "hybrid_override_pattern": "M*"}):
        block = next(group.block for group in spec(base).groups if group.block.mixer is not None)
        (out,) = (each for each in block.linears if each.name == "out_proj")
        assert not out.adaptable


@pytest.mark.parametrize(
    ("said", "width"), [({}, 128), ({"mamba_d_ssm": None}, 128), ({"mamba_d_ssm": 64}, 64)]
)
def test_falcons_mixer_has_a_width_of_its_own(said: dict[str, Any], width: int) -> None:
    """Null stands for the expanded hidden size; attention runs beside it."""
    model = spec(FALCON, **said)
    assert mixer(model).width == width
    assert {each.group for each in model.groups[0].block.linears} == {"mixer", "attention", "mlp"}


def test_letters_of_nemotron_are_its_layers() -> None:
    """Each is one part."""
    model = spec(NEMOTRON, hybrid_override_pattern="MM*-")
    assert runs(model) == [(2, True, False), (1, False, False), (1, False, True)]
    assert model.n_layers == 4


@pytest.mark.parametrize("latent", [None, 16])
def test_nemotrons_experts_have_two_matrices(latent: int | None) -> None:
    """No gate, and of fewer features where two matrices stand around them; the shared one has them all."""
    said = {"n_routed_experts": 4, "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 40}
    block = spec(NEMOTRON, hybrid_override_pattern="E", moe_latent_size=latent, **said).groups[0].block
    hidden = BASE["hidden_size"]
    sizes = {(each.group, each.name): (each.in_features, each.out_features) for each in block.linears}
    assert not block.mlp.gated
    assert sizes["expert", "up_proj"] == (latent or hidden, 24)
    assert sizes["expert", "down_proj"] == (24, latent or hidden)
    assert sizes["shared_expert", "up_proj"] == (hidden, 40)
    assert sizes.get(("mlp", "fc1_latent_proj")) == (None if latent is None else (hidden, latent))


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({**GRANITE, "layer_types": ["mamba"]}, "layer_types names 1 layers, num_hidden_layers is 4"),
        (
            {**GRANITE, "mamba_d_head": 8},
            "mamba_d_head 8 is not the width of the mixer, 128",
        ),
        ({**GRANITE, "mamba_n_groups": 3}, "8 heads of Mamba are not divisible by their 3 groups"),
        ({**GRANITE, "mamba_d_state": 1}, "takes multiples of 8 alone"),
        (NEMOTRON, "neither layers_block_type nor hybrid_override_pattern"),
    ],
)
def test_what_cannot_be_built_is_refused(said: dict[str, Any], sentence: str) -> None:
    """With the numbers."""
    with pytest.raises(InputFileError, match=sentence):
        spec(said)


def test_layers_of_other_kinds_have_no_verdict() -> None:
    """Letters and names that nobody knows."""
    with pytest.raises(NotModelledError, match="layers of type 'X' are not modelled"):
        spec(NEMOTRON, hybrid_override_pattern="MX")
    with pytest.raises(NotModelledError, match="layers of type 'conv' are not modelled"):
        spec(GRANITE, layer_types=["conv"] * 4)
