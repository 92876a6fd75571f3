"""What is not traced, or cannot run on fake tensors, ends with a sentence and never with a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.extras import import_or_skip

import_or_skip("peft")

import torch
from transformers.models.llama.modeling_llama import LlamaMLP

from measure.trace.traced_job import refuse_what_is_not_traced, trace_events, trace_records
from planner.domain.recipes.recipe import Numerics
from planner.errors import ExitCode, NotModelledError
from tests.against_libraries.scenarios import Setup
from tests.jobs import resolved
from tests.measure.trace.tiny import llama


def _reads_a_value(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()


def _has_a_shape_that_depends_on_values(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].sum() + x


def _fails(x: torch.Tensor) -> torch.Tensor:
    torch.neg(x)
    raise ValueError("no such kernel\nand more")


@pytest.mark.parametrize(
    ("forward", "operator", "says"),
    [
        (_reads_a_value, "aten._local_scalar_dense.default", "needs values, which fake tensors do not have"),
        (_has_a_shape_that_depends_on_values, "aten.", "needs values, which fake tensors do not have"),
        (_fails, "aten.neg.default", "fails on fake tensors (ValueError: no such kernel)"),
    ],
)
def test_operator_and_module_are_named(
    monkeypatch: pytest.MonkeyPatch, forward: Callable[..., Any], operator: str, says: str
) -> None:
    """Exit code 6, one line, with the operator, the path of the module and what to do instead."""
    monkeypatch.setattr(LlamaMLP, "forward", lambda _, x: forward(x))
    with pytest.raises(NotModelledError) as caught:
        trace_records(*llama())
    message = str(caught.value)
    assert caught.value.exit_code == ExitCode.NOT_MODELLED
    assert f"operator {operator}" in message
    assert "in module model.layers.0.mlp" in message
    assert says in message
    assert "plan --model" in message
    assert "\n" not in message


@pytest.mark.parametrize("rank", [0, 4])
def test_fp16_gradients_are_refused_as_torch_refuses_them(rank: int) -> None:
    """torch does not unscale fp16 gradients; the sentence says which dtype to take instead."""
    setup = Setup(rank=rank, numerics=Numerics("fp16", "fp16-mixed"), adapter_dtype="fp16")
    with pytest.raises(NotModelledError, match="adapter-dtype fp32" if rank else "load-dtype fp32"):
        refuse_what_is_not_traced(llama(setup)[0])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            {
                "method": "full",
                "model": "llama-3.1-8b",
                "tensor_parallel": 2,
                "stack": "torchtitan",
                "precision": "fp32",
            },
            "GPUs share a batch .* use one GPU for each batch",
        ),
        ({"method": "full", "sharding": "hsdp", "replicas": 1}, "copies other than one on each node"),
        (
            {"model": "qwen2-vl-2b", "method": "lora", "images_per_sample": 1, "image_size": "56x56"},
            "images cannot be traced yet; use --images-per-sample 0",
        ),
        ({"method": "full", "offload": "activations"}, "offload 'activations' .* use --offload optimizer"),
        ({"method": "lora", "stack": "unsloth", "offload": "none"}, "the fused kernels of stack 'unsloth"),
        ({"method": "lora", "stack": "axolotl"}, "the adapter kernels of stack 'axolotl'"),
        (
            {"method": "full", "stack": "axolotl", "padding": "packed", "attention": "sdpa"},
            "the attention kernel over packed samples of stack 'axolotl'",
        ),
        (
            {"method": "lora", "stack": "llama-factory", "modules_to_save": "lm_head"},
            "the dtype of modules_to_save of stack 'llama-factory'",
        ),
    ],
)
def test_what_is_not_traced_is_refused_with_a_way_out(flags: dict[str, str | int], words: str) -> None:
    """A sentence that names another setting, not wrong numbers."""
    common = {"model": "qwen2.5-0.5b", "gpu": "a100-80gb", "gpus": "2", "seq": "64"}
    with pytest.raises(NotModelledError, match=words):
        refuse_what_is_not_traced(resolved({**common, **flags}, force=True))


def test_plain_jobs_are_traced() -> None:
    """Nothing is refused beside what has a reason."""
    refuse_what_is_not_traced(llama(Setup(mixed=True))[0])


def test_what_an_engine_divides_is_not_traced_here() -> None:
    """One card would be counted with the whole of everything."""
    with pytest.raises(NotModelledError, match="engine's own code"):
        trace_events(llama(Setup(sharding="zero2", world=2, mixed=True))[0])
