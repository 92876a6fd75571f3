"""Which tensors of a model are an adapter's, as the report of a dry run tells them apart."""

from __future__ import annotations

from typing import Any

import pytest

from tests.extras import needs

pytestmark = needs("torch", "peft")


def adapted(kind: str) -> Any:
    """Two linear layers, of which PEFT adapts the second."""
    import peft
    from torch import nn

    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    more: dict[str, Any] = {"IA3Config": {"feedforward_modules": []}}.get(kind, {})
    return peft.get_peft_model(model, getattr(peft, kind)(target_modules=["1"], **more))


@pytest.mark.parametrize(
    "kind", ["LoraConfig", "LoHaConfig", "LoKrConfig", "IA3Config", "BOFTConfig", "OFTConfig", "HRAConfig"]
)
def test_what_lies_beside_an_adapted_module_is_the_adapters(kind: str) -> None:
    """All that trains, and nothing that is frozen."""
    from measure.dry_run.stages import beside_adapted

    model = adapted(kind)
    found = beside_adapted(model)
    trained = {name for name, each in model.named_parameters() if each.requires_grad}
    assert trained
    assert {name for name, each in model.named_parameters() if id(each) in found} == trained


def test_a_layer_that_is_adapted_twice() -> None:
    """What lies beside the inner module is inside of the outer one's, and an adapter's all the same."""
    from torch import nn

    from measure.dry_run.stages import beside_adapted

    inner, outer = nn.Module(), nn.Module()
    inner.base_layer, inner.hada_w1 = nn.Linear(4, 4), nn.Linear(4, 2)
    outer.base_layer, outer.hada_w2 = inner, nn.Linear(4, 2)
    found = beside_adapted(outer)
    names = {name for name, each in outer.named_parameters() if id(each) in found}
    assert names == {"base_layer.hada_w1.weight", "base_layer.hada_w1.bias", "hada_w2.weight", "hada_w2.bias"}


def test_the_layers_of_a_model_are_its_longest_list() -> None:
    """The decoder's of an encoder and a decoder, the model itself where it is the list, and no blocks that
    have names for numbers or hold nothing, such as dropout that is switched off.
    """
    from torch import nn

    from measure.dry_run.stages import longest_list

    def layers(count: int) -> nn.Sequential:
        return nn.Sequential(*(nn.Identity() for _ in range(count)))

    both = nn.ModuleDict({"encoder": layers(3), "decoder": layers(3), "head": layers(2)})
    assert longest_list(both) == "decoder."
    assert longest_list(nn.Sequential(layers(2), layers(1), nn.Identity())) == ""
    named = nn.Sequential()
    named.add_module("first", nn.Identity())
    assert longest_list(named) is None
    assert longest_list(nn.ModuleDict({"head": nn.Identity(), "dropout": nn.Sequential()})) is None
