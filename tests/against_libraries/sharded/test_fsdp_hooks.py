"""FSDP1's hooks on frozen units hold the input of every checkpointed layer and its gradient until backward
has ended.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.extras import import_or_skip, printed_by

LAYERS = 4


@pytest.mark.real
def test_inputs_and_gradients_of_all_layers_are_alive_at_the_end() -> None:
    """All of them with checkpoints around the units, none without checkpoints."""
    import_or_skip("torch")
    script = Path(__file__).parents[1] / "fsdp_hooks.py"
    alive = printed_by(script)
    assert alive["around"] == {"inputs": LAYERS, "gradients": LAYERS}
    assert alive["plain"] == {"inputs": 0, "gradients": 0}
