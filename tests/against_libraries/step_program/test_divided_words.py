"""A loss whose logits are divided by words over GPUs: bytes of torch's own function, on a fake group."""

from __future__ import annotations

from typing import Any

from tests.extras import import_or_skip

torch = import_or_skip("torch")

from live_bytes import LiveBytes
from parallel_trace import group_of
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel

ROWS, WORDS, SIZE = 64, 4_096, 2


class LocalBytes(LiveBytes):
    """Of a DTensor, the part that lies here."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(each, DTensor | AsyncCollectiveTensor) for each in types):
            return NotImplemented
        return super().__torch_dispatch__(func, types, args, kwargs)


def test_words_divided_over_gpus_have_four_wide_tensors_in_backward() -> None:
    """16 bytes for each logit of this GPU, beside the 16-bit logits, which were there before."""
    labels, part = torch.zeros(ROWS, dtype=torch.long), torch.randn(ROWS, WORDS // SIZE).bfloat16()
    with group_of(SIZE) as mesh, loss_parallel():
        logits = DTensor.from_local(part, mesh, [Shard(1)]).requires_grad_()
        # For shapes that it does not know, DTensor runs operators on whole tensors.
        torch.nn.functional.cross_entropy(logits.float(), labels).backward()
        logits.grad = None
        with LocalBytes() as counted:
            loss = torch.nn.functional.cross_entropy(logits.float(), labels)
            forward, counted.peak = counted.peak, 0
            loss.backward()
    wide = ROWS * WORDS // SIZE * 4
    assert 3 * wide <= forward < 3.01 * wide
    assert 4 * wide <= counted.peak < 4.01 * wide
