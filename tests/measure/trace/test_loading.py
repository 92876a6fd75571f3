"""What a loader and the Trainer do around the tensors that come to the card."""

from __future__ import annotations

from typing import Any

import pytest

from tests.extras import import_or_skip

import_or_skip("peft")

from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.core_model_loading import dot_natural_key

from measure.trace.build import build_on_meta, make_config, materialize
from measure.trace.loading import by_name, with_loader
from measure.trace.record import Record
from measure.trace.tracer import Recorder
from tests.jobs import resolved

NAMES = ["model.layers.10.q.weight", "model.layers.9.q.weight", "lm_head.weight", "model.norm.weight"]


def loaded(**flags: Any) -> list[Record]:
    """The records of loading a small model."""
    case = resolved({"gpu": "4090", "seq": 32, "method": "qlora", **flags})
    model, recorder = build_on_meta(case, make_config(case)).model, Recorder()
    with FakeTensorMode():
        materialize(model, recorder, by_names=True)
    return with_loader(recorder.trace.records, case)


def test_names_are_sorted_as_the_loader_sorts_them() -> None:
    """Numbers count as numbers."""
    assert sorted(NAMES, key=by_name) == sorted(NAMES, key=dot_natural_key)


def test_all_that_comes_has_been_taken_in_one_piece() -> None:
    """Packed bytes and 16-bit tensors, as they come; the Trainer gives the cache back when all is there."""
    taken, given_back, *rest = loaded(model="llama-3.2-1b")
    assert taken.alloc
    assert not given_back.alloc
    assert taken.block is given_back.block
    table, norms = 262_668_288, 33 * 2048
    packed = 1_235_814_400 - table - norms
    # Beside those there are frequencies of rotary positions.
    assert 0 <= taken.block.n_bytes - (packed // 2 + 2 * (table + norms)) < 1024
    assert [each.empties for each in rest].index(True) == len(rest) - 1


def test_weights_are_widened_in_the_order_of_modules() -> None:
    """They come by their names, ``down_proj`` first, but PEFT casts an expert's ``gate_up_proj`` first."""
    records = loaded(model="granite-3.0-1b-a400m")
    first = next(n for n, each in enumerate(records) if not each.alloc and each.block.role == "weights")
    experts = [
        each.block.n_bytes
        for each in records[first:]
        if each.alloc and each.block.module.endswith("experts") and each.block.role == "weights"
    ]
    wide = [4 * 32 * 1024 * count for count in (2 * 512, 512)]
    assert experts == wide * 24


@pytest.mark.parametrize("switch", ["loader_reserves=nothing", "runs_trainer=false"])
def test_other_loops_do_not(switch: str) -> None:
    """Each can be switched off."""
    records = loaded(model="qwen2.5-0.5b", switches=switch)
    reserved = records[0].block.op == "caching_allocator_warmup"
    emptied = any(each.empties for each in records)
    assert (reserved, emptied) == (switch.startswith("runs"), switch.startswith("loader"))


def test_a_tied_head_is_the_last_parameter_while_matrices_are_chosen() -> None:
    """OLMo's norms have none, and from_pretrained ties behind the quantiser, so no matrix of a layer stays
    whole.
    """
    case = resolved({"model": "olmo-1b", "gpu": "4090", "seq": 32, "method": "qlora"})
    model = build_on_meta(case, make_config(case)).model
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    kinds = {type(each).__name__ for name, each in model.named_modules() if name.endswith("base_layer")}
    assert kinds == {"Linear4bit"}
