"""What operators cost, counted by hand: multiplications,
bytes and launches of single operators and of a layer.
"""

from __future__ import annotations

from planner.domain.mixer_specs import Mamba2Spec
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit
from planner.program.ops.work import Product, in_units
from planner.program.step import parts_of
from tests.jobs import job_by


def tensor(torch: Operators, count: float, unit: Unit = Unit.TOKENS) -> Tensor:
    """A bf16 tensor that costs nothing."""
    return torch.new(unit, count, "bf16", "input", cost=None)


def test_a_product_with_a_matrix_multiplies_and_writes() -> None:
    """64 to 96 features: 6,144 multiplications and 192 bytes a token;
    what it reads is read while it multiplies.
    """
    torch = Operators()
    torch.mm(tensor(torch, 64), tensor(torch, 64 * 96, Unit.ONE), 96)
    assert torch.work == {
        ("forward", "matmul", Product("bf16", (Unit.TOKENS, 1.0))): {Unit.TOKENS: 64 * 96},
        ("forward", "matmul", "bytes"): {Unit.TOKENS: 192},
        ("forward", "elementwise", "launches"): {Unit.ONE: 1},
    }


def test_experts_share_the_rows() -> None:
    """Two of eight experts for each token: a quarter of a row for each stored matrix,
    twice the work of one.
    """
    torch = Operators()
    torch.mm(tensor(torch, 2 * 64), tensor(torch, 8 * 64 * 96, Unit.ONE), 2 * 96, copies=8)
    kinds = [kind for _, _, kind in torch.work if isinstance(kind, Product)]
    assert kinds == [Product("bf16", (Unit.TOKENS, 0.25))]
    assert torch.work["forward", "matmul", kinds[0]] == {Unit.TOKENS: 2 * 64 * 96}


def test_a_narrow_matrix_reads_its_input() -> None:
    """LoRA's first matrix: 64 multiplications for each rank and token, and the input is read."""
    torch = Operators()
    with torch.counted_as("adapters"):
        torch.mm(tensor(torch, 64), tensor(torch, 64, Unit.RANK), (Unit.RANK_TOKENS, 1))
    assert torch.work["forward", "adapters", Product("bf16")] == {Unit.RANK_TOKENS: 64}
    assert torch.work["forward", "adapters", "bytes"] == {
        Unit.TOKENS: 128,
        Unit.RANK: 128,
        Unit.RANK_TOKENS: 2,
    }


def test_rows_of_logits_that_do_not_begin_at_16_bytes() -> None:
    """50,257 words in 16 bits."""
    torch = Operators()
    torch.mm(tensor(torch, 64), tensor(torch, 64 * 50257, Unit.ONE), 50257)
    assert [kind.aligned for _, _, kind in torch.work if isinstance(kind, Product)] == [False]


def test_an_elementwise_operator_reads_and_writes() -> None:
    """A sum of two bf16 tensors: two read, one written; a copy to fp32: two bytes read, four written."""
    torch = Operators()
    torch.add(tensor(torch, 64), tensor(torch, 64))
    assert torch.work["forward", "elementwise", "bytes"] == {Unit.TOKENS: 3 * 128}
    torch.to(tensor(torch, 64), "fp32")
    assert torch.work["forward", "elementwise", "bytes"] == {Unit.TOKENS: 3 * 128 + 6 * 64}
    assert torch.work["forward", "elementwise", "launches"] == {Unit.ONE: 2}


def test_a_tower_counts_patches() -> None:
    """Rows and amounts are of another unit."""
    torch = Operators()
    torch.mm(tensor(torch, 64), tensor(torch, 64 * 96, Unit.ONE), 96)
    changed = in_units(torch.work, {Unit.TOKENS: Unit.PATCHES})
    assert changed["forward", "matmul", Product("bf16", (Unit.PATCHES, 1.0))] == {Unit.PATCHES: 64 * 96}


def test_a_layer_of_mamba_2_pays_for_its_scan() -> None:
    """Each token: the scan's own products forward, three times as many backward, and its three matrices'."""
    flags = {"model": "granite-4.0-h-tiny", "method": "full", "gpu": "h100-sxm", "seq": 1024}
    asked = job_by({**flags, "gradient_checkpointing": False})
    mamba = next(
        part.template for part in parts_of(asked) if any(op == "chunk_scan" for _, op in part.template.ops)
    )
    spec = next(block.mixer for block, _ in asked.model.blocks() if isinstance(block.mixer, Mamba2Spec))
    scans = {
        direction: counts[Unit.TOKENS]
        for (direction, _, kind), counts in mamba.work.items()
        if isinstance(kind, Product) and kind.rows is None and Unit.TOKENS in counts
    }
    assert scans == {"forward": spec.macs_per_token, "backward": 3 * spec.macs_per_token}
