"""The oracle that counts bytes of real tensors: views cost nothing, freed tensors leave."""

from __future__ import annotations

from tests.extras import import_or_skip

torch = import_or_skip("torch")

from live_bytes import counting


def test_the_dispatch_mode_sees_what_is_alive() -> None:
    """Bytes alive follow each tensor; the peak holds them all."""
    weight = torch.zeros(64, 64, requires_grad=True)
    with counting() as bytes_:
        x = torch.ones(32, 64) * 2
        assert bytes_.live == 32 * 64 * 4
        y = (x @ weight).view(-1)[::2]
        del x
        assert bytes_.live == 2 * 32 * 64 * 4
        del y
        assert bytes_.live == 0
        assert bytes_.peak >= 2 * 32 * 64 * 4
