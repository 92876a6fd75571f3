"""The compiled part of flash-attn: what its kernels take and return."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from measure.dry_run.guesses import Guesses
from measure.dry_run.libraries import flash_attention_kernels

BATCH, TOKENS, HEADS, SHARED, WIDTH = 2, 100, 8, 2, 64


def kernels(monkeypatch: pytest.MonkeyPatch, version: str) -> tuple[ModuleType, Guesses]:
    """What a program imports beside this version of the package."""
    monkeypatch.setattr(flash_attention_kernels, "version", lambda _: version)
    monkeypatch.setitem(sys.modules, "flash_attn_2_cuda", ModuleType("flash_attn_2_cuda"))
    guesses = Guesses()
    flash_attention_kernels.install(guesses)
    return sys.modules["flash_attn_2_cuda"], guesses


def heads(n: int, *rows: int) -> torch.Tensor:
    """One of query, key and value."""
    return torch.empty(*rows, n, WIDTH, dtype=torch.bfloat16, device="meta")


def test_a_batch_goes_forward_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments as flash_attn 2.8 gives them; the given gradients are those that come back."""
    module, guesses = kernels(monkeypatch, "2.8.3.post2")
    q, k, v = (heads(n, BATCH, TOKENS) for n in (HEADS, SHARED, SHARED))
    how = (None, 0.0, 0.125, True, -1, -1, 0.0)
    out, sums, _, state = module.fwd(q, k, v, None, *how, False, None)
    assert (out.shape, sums.shape) == (q.shape, (BATCH, HEADS, TOKENS))
    gradients = tuple(torch.empty_like(each) for each in (q, k, v))
    *back, kept = module.bwd(out, q, k, v, out, sums, *gradients, *how, False, None, state)
    assert all(one is other for one, other in zip(back, gradients, strict=True))
    # A number for each head and row, whose rows are rounded to 128.
    assert kept.numel() == BATCH * HEADS * 128
    assert {each.origin for each in guesses.listed()} == {"fwd", "bwd"}


def test_samples_end_to_end_go_forward_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sample's rows are rounded by themselves."""
    module, _ = kernels(monkeypatch, "2.7.0")
    q, k, v = (heads(n, BATCH * TOKENS) for n in (HEADS, SHARED, SHARED))
    edges = torch.empty(BATCH + 1, dtype=torch.int32, device="meta")
    how = (0.0, 0.125, False, True, -1, -1, 0.0)
    rows = (edges, edges, None, None, None, None, TOKENS, TOKENS)
    out, sums, _, state = module.varlen_fwd(q, k, v, None, *rows, *how, False, None)
    assert (out.shape, sums.shape) == (q.shape, (HEADS, BATCH * TOKENS))
    gradients = tuple(torch.empty_like(each) for each in (q, k, v))
    rows = (edges, edges, None, TOKENS, TOKENS)
    *_, kept = module.varlen_bwd(out, q, k, v, out, sums, *gradients, *rows, *how, False, None, state)
    assert kept.numel() == HEADS * (BATCH * TOKENS + 128 * BATCH)


def test_older_versions_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their kernels return other things."""
    module, guesses = kernels(monkeypatch, "2.5.8")
    with pytest.raises(NotImplementedError, match=r"flash-attn 2\.5\.8 has no stand-in"):
        module.fwd  # noqa: B018 - asking is enough
    assert guesses.refusals
    assert not hasattr(module, "__path__")
