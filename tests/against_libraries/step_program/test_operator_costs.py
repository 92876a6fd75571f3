"""Bytes moved and operators issued of a Llama layer,
against the operators that torch runs for the real modules.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from planner.catalog.gpus import load_gpu
from planner.catalog.hf_config import model_from_config
from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.job import job_of
from planner.program.ops.tensors import Unit
from planner.program.step import parts_of
from tests.extras import import_or_skip

torch = import_or_skip("torch")
transformers = import_or_skip("transformers")

from scenarios import Setup, scenario
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

BATCH, LENGTH = 2, 512
TOKENS = BATCH * LENGTH
CONFIG = {
    "hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 4, "num_key_value_heads": 4,
    "vocab_size": 512,
}  # fmt: skip
# Operators that write nothing.
NOTHING = {"empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "detach"}
PRODUCTS = {"mm", "addmm", "bmm"}


class Counting(TorchDispatchMode):
    """Counts kernels, and the bytes of what each reads and writes; of products what they write,
    of attention nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.totals: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator."""
        out = function(*args, **(kwargs or {}))
        name = function._schema.name.split("::")[1]
        read, written = (
            [each for each in tree_leaves(side) if isinstance(each, torch.Tensor)]
            for side in ((args, kwargs), out)
        )
        places = {each.untyped_storage().data_ptr() for each in read}
        is_view = all(each.untyped_storage().data_ptr() in places for each in written) and not name.endswith(
            "_"
        )
        if not is_view and name not in NOTHING:
            self.totals["launches"] += 1
            moved = [] if "attention" in name else written if name in PRODUCTS else [*read, *written]
            self.totals["bytes"] += sum(
                min(each.untyped_storage().nbytes(), each.numel() * each.element_size()) for each in moved
            )
        return out


def traced(n_layers: int) -> Counter[str]:
    """What a whole step of a model with so many layers costs."""
    config = transformers.LlamaConfig(
        **CONFIG, num_hidden_layers=n_layers, attn_implementation="sdpa", use_cache=False
    )
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).train()
    ids = torch.randint(0, 512, (BATCH, LENGTH))
    with Counting() as counting:
        model(input_ids=ids, labels=ids).loss.backward()
    return counting.totals


def test_a_layer_moves_and_issues_what_torch_does() -> None:
    """The difference of two depths is one layer: as many operators to the last one,
    and bytes within a percent.
    """
    one, two = traced(1), traced(2)
    config = transformers.LlamaConfig(**CONFIG, num_hidden_layers=2).to_dict()
    job = job_of(scenario({}, Setup(attention="sdpa"), model_from_config(config, "llama")), Coefficients())
    layer = next(part.template for part in parts_of(job) if part.name == "layer")
    values, found = {Unit.ONE: 1, Unit.TOKENS: TOKENS, Unit.LENGTH: LENGTH}, Counter[str]()
    for (_, _, kind), counts in layer.work.items():
        if isinstance(kind, str):
            found[kind] += sum(round(amount * values[unit]) for unit, amount in counts.items())
    assert found["launches"] == two["launches"] - one["launches"]
    assert found["bytes"] == pytest.approx(two["bytes"] - one["bytes"], rel=0.01)


def test_checkpointing_hooks_what_torch_saves() -> None:
    """The host spends two operators on each tensor that a layer saves, where Python's hooks see it."""
    counts: list[int] = []

    def pack(saved: torch.Tensor) -> torch.Tensor:
        counts[-1] += 1
        return saved

    for n_layers in (1, 2):
        counts.append(0)
        config = transformers.LlamaConfig(
            **CONFIG, num_hidden_layers=n_layers, attn_implementation="sdpa", use_cache=False
        )
        model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).train()
        ids = torch.randint(0, 512, (BATCH, LENGTH))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
            model(input_ids=ids, labels=ids)

    def forward(**said: object) -> float:
        asked = scenario({}, Setup(attention="sdpa", **said), model_from_config(config.to_dict(), "llama"))
        parts = parts_of(job_of(asked, Coefficients()))
        layer = next(each.template for each in parts if each.name == "layer")
        return sum(
            spent[Unit.ONE]
            for (way, _, kind), spent in layer.work.items()
            if way == "forward" and kind in ("launches", "calls")
        )

    plain, hooked = forward(), forward(checkpointing=True, reentrant=False)
    assert hooked - plain == 2 * (counts[1] - counts[0])
    assert forward(checkpointing=True, reentrant=True) == plain


def test_a_mixture_issues_what_torch_does() -> None:
    """Most operators that sort tokens by expert write some numbers for each token, and take the host as long
    as any other.  On a card that groups the products of all experts, as the CPU counts them here.
    """
    sizes = CONFIG | {"num_experts": 8, "num_experts_per_tok": 2}
    issued: list[int] = []
    for count in (1, 2):
        config = transformers.OlmoeConfig(**sizes, num_hidden_layers=count, attn_implementation="sdpa")
        model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).train()
        ids = torch.randint(0, 512, (BATCH, 64))
        with Counting() as counting:
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        assert loss.requires_grad
        issued.append(counting.totals["launches"])
    asked = scenario({}, Setup(attention="sdpa"), model_from_config(config.to_dict(), "olmoe"))
    asked = replace(asked, hardware=replace(asked.hardware, gpu=load_gpu("h100-sxm")))
    job = job_of(asked, Coefficients())
    layer = next(part.template for part in parts_of(job) if part.name == "layer")
    forward = [
        counts for (way, _, kind), counts in layer.work.items() if (way, kind) == ("forward", "launches")
    ]
    assert sum(round(counts[Unit.ONE]) for counts in forward) == issued[1] - issued[0]
