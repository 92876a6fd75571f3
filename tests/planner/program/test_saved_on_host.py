"""Saved tensors in host RAM without checkpointing: which ones leave, which stay, and when they come and go.

The numbers of whole jobs are those of TRL's own program (1.16.0), run without a GPU.
"""

from __future__ import annotations

import pytest

from planner.predicting import estimate
from planner.program.ops.autograd import run_backward
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit
from planner.program.ops.work import ToHost
from planner.program.saved_on_host import SavedOnHost, on_host
from planner.program.step import parts_of
from tests.jobs import job_by, resolved, typed

GIB = 2**30
JOB = typed(
    "--model qwen2.5-0.5b --method lora --lora-rank 16 --lora-targets all-linear --stack trl "
    "--gpu a100-80-sxm --seq 1024 --batch 4 --load-dtype bf16 --offload activations "
    "--no-gradient-checkpointing"
)


def hooked() -> tuple[Operators, SavedOnHost]:
    """Operators whose saved tensors go through the hooks."""
    torch = Operators()
    torch.enter("forward")
    return torch, on_host(torch)


def made(torch: Operators, count: float = 64) -> Tensor:
    """A tensor that something made."""
    return torch.new(Unit.TOKENS, count, "bf16", "made")


def live(torch: Operators) -> set[int]:
    """Slots that are there."""
    found: set[int] = set()
    for stage in torch.stages.values():
        for event in stage:
            (found.add if event >= 0 else found.discard)(event if event >= 0 else ~event)
    return found


def test_a_saved_tensor_goes_when_five_later_ones_have_been_saved() -> None:
    """Weights count among the five, and stay where they are."""
    torch, hooks = hooked()
    hooks.pack(made(torch))
    for number in range(4):
        hooks.pack(Tensor(None, Unit.ONE, 64, "bf16") if number % 2 else made(torch))
    assert 0 in live(torch)
    hooks.pack(made(torch))
    assert 0 not in live(torch)


def test_what_is_saved_again_meanwhile_stays_until_its_backward() -> None:
    """The second time it is kept as it is, and it goes to the host once."""
    torch, hooks = hooked()
    x = made(torch)
    kept = [hooks.pack(x), hooks.pack(x)]
    del x
    for _ in range(8):
        hooks.pack(made(torch))
    assert 0 in live(torch)
    assert torch.work["forward", "elementwise", ToHost(128)][Unit.TOKENS] == 9 * 128
    kept.clear()
    assert 0 not in live(torch)


def test_a_node_lets_go_of_what_the_node_before_brought_back() -> None:
    """Three in a row: while the third runs, what the first had is gone, what the second had is not."""
    torch, hooks = hooked()
    x = torch.same(torch.parameter(Unit.TOKENS, 64, "bf16", trained=True), "neg")
    out = torch.kernel(torch.kernel(torch.kernel(x, "silu"), "tanh"), "gelu")
    del x
    hooks.end_forward()
    there: list[tuple[int, int]] = []

    def end_node() -> None:
        before = len(hooks.back)
        hooks.end_node()
        there.append((before, len(hooks.back)))

    torch.end_node = end_node
    assert out.node is not None
    torch.enter("backward")
    run_backward(torch, out.node, [made(torch)])
    assert there == [(1, 1), (2, 1), (2, 1), (1, 1)]


def test_numbers_of_tokens_come_back_too_and_what_waits_goes_then() -> None:
    """The labels of a loss, beside whose node the log-softmax before it leaves the GPU."""
    torch, hooks = hooked()
    x = made(torch)
    kept = [hooks.pack(x)]
    labels = hooks.pack(Tensor(None, Unit.TOKENS, 1, "int64"))
    weight = hooks.pack(Tensor(None, Unit.ONE, 8, "bf16"))
    del x
    weight()
    hooks.end_node()
    assert 0 in live(torch)
    labels()
    hooks.end_node()
    assert 0 not in live(torch)
    kept[0]()
    assert torch.elsewhere == [1]


@pytest.mark.parametrize(
    ("flags", "allocated_gib", "reserved_gib"),
    [
        ({}, 2.04, 2.63),
        ({"method": "full", "lora_rank": None, "lora_targets": None}, 4.99, 5.54),
        ({"method": "qlora", "double_quant": False}, 1.44, 1.94),
    ],
)
def test_peaks_are_those_of_trl(flags: dict[str, object], allocated_gib: float, reserved_gib: float) -> None:
    """Qwen2.5 0.5B, 4 x 1,024 tokens."""
    said = {name: value for name, value in {**JOB, **flags}.items() if value is not None}
    peak = estimate(resolved(said)).memory
    assert float(peak.allocated_peak_bytes) / GIB == pytest.approx(allocated_gib, rel=0.01)
    assert float(peak.reserved_peak_bytes) / GIB == pytest.approx(reserved_gib, rel=0.03)


def test_checkpointing_sends_the_input_of_each_layer_and_what_it_makes_again() -> None:
    """With reentry the second run's saved tensors go through the hooks, too."""
    flags = {**JOB, "gradient_checkpointing": True, "checkpoint_reentrant": True, "stack": "axolotl"}
    job = job_by(flags)
    layer = next(part.template for part in parts_of(job) if part.name == "layer")
    sent = {direction for direction, _, kind in layer.work if isinstance(kind, ToHost)}
    assert sent == {"forward", "again"}
    assert layer.work["forward", "elementwise", ToHost(2 * 896)] == {Unit.TOKENS: 2 * 896}


@pytest.mark.parametrize(
    ("flags", "allocated_gib", "reserved_gib"),
    [
        ({"method": "lora", "lora_rank": 16, "lora_targets": "linear-modules"}, 8.452, 9.613),
        ({"method": "full", "checkpoint_reentrant": False, "grad_accum": 2}, 15.189, 16.629),
    ],
)
def test_the_log_softmax_comes_back_beside_the_layers(
    flags: dict[str, object], allocated_gib: float, reserved_gib: float
) -> None:
    """Axolotl 0.19.0 with ``activation_offloading``, run without a GPU: Llama 3.2 1B, 1 x 4,096 tokens.

    With the log-softmax kept on the GPU that with adapters reserved 10.23 GiB.
    """
    given = {"stack": "axolotl", "model": "llama-3.2-1b", "gpu": "h100-sxm", "seq": 2048, "batch": 2}
    given |= {"grad_accum": 2, "padding": "packed", "gradient_checkpointing": True, "offload": "activations"}
    given |= {"precision": "bf16-mixed", "load_dtype": "bf16", "attention": "flash2"}
    if flags["method"] == "lora":
        given |= {"lora_dropout": 0.0}
    else:
        given |= {"switches": "adapter_kernels=eager"}
    given |= {"versions": "transformers==5.16.1,peft==0.20.0"}
    peak = estimate(resolved({**given, "optimizer": "adamw_torch_fused", **flags})).memory
    assert float(peak.allocated_peak_bytes) / GIB == pytest.approx(allocated_gib, rel=0.001)
    assert float(peak.reserved_peak_bytes) / GIB == pytest.approx(reserved_gib, rel=0.011)
