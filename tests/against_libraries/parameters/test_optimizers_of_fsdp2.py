"""Which optimizers can step the DTensors of FSDP2: what `planner/intake/supported.py` says of each,
against real steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.domain.recipes.optimizers import OPTIMIZER_FACTS, OPTIMIZERS, Optimizer
from planner.domain.recipes.sharding import FSDP
from planner.intake.supported import cannot_step
from tests.extras import import_or_skip

torch = import_or_skip("torch")
transformers = import_or_skip("transformers")
bnb = import_or_skip("bitsandbytes")

OPTIMIZERS_OF: dict[Optimizer, Callable[[list[Any]], Any]] = {
    "adamw_torch": lambda tensors: torch.optim.AdamW(tensors, foreach=True),
    "adamw_torch_fused": lambda tensors: torch.optim.AdamW(tensors, fused=True),
    "sgd": lambda tensors: torch.optim.SGD(tensors, lr=0.1),
    "rmsprop": lambda tensors: torch.optim.RMSprop(tensors, foreach=True),
    "adafactor": lambda tensors: transformers.Adafactor(
        tensors, lr=1e-3, scale_parameter=False, relative_step=False
    ),
    "adamw_8bit": bnb.optim.AdamW8bit,
    "paged_adamw_8bit": bnb.optim.PagedAdamW8bit,
    "paged_adamw_32bit": bnb.optim.PagedAdamW32bit,
    "lion": bnb.optim.Lion32bit,
    "lion_8bit": bnb.optim.Lion8bit,
    "paged_lion_32bit": bnb.optim.PagedLion32bit,
    "paged_lion_8bit": bnb.optim.PagedLion8bit,
    "ademamix": bnb.optim.AdEMAMix32bit,
    "ademamix_8bit": bnb.optim.AdEMAMix8bit,
    "paged_ademamix_32bit": bnb.optim.PagedAdEMAMix32bit,
    "paged_ademamix_8bit": bnb.optim.PagedAdEMAMix8bit,
}


# Tools' own, which a rule refuses under every engine, and those of packages, which nobody tried.
REFUSED: frozenset[Optimizer] = frozenset(
    name for name, facts in OPTIMIZER_FACTS.items() if facts.library in ("tool", "package")
)

# torchao is no dependency; that its states become DTensors is read in its source.  Transformers' own AdamW is
# gone from the version that is installed.
READ: frozenset[Optimizer] = frozenset({"adamw_torch_8bit", "adamw_torch_4bit", "adamw_hf"})


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Any]:
    """A mesh of this process alone."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def test_every_optimizer_is_tried() -> None:
    """A new optimizer has to be tried here, too."""
    assert set(OPTIMIZERS_OF) | REFUSED | READ == set(OPTIMIZERS)


@pytest.mark.parametrize("optimizer", OPTIMIZERS_OF)
def test_a_real_step_fails_where_it_is_said_to(optimizer: Optimizer, mesh: Any) -> None:
    """One step over a matrix that ``fully_shard`` has divided, by each optimizer:
    it runs unless the rule refuses it.
    """
    from torch.distributed.fsdp import fully_shard

    # 8-bit states begin at 4,096 elements.
    layer = torch.nn.Linear(128, 64, bias=False)
    fully_shard(layer, mesh=mesh)
    stepping = OPTIMIZERS_OF[optimizer](list(layer.parameters()))
    layer(torch.ones(4, 128)).sum().backward()
    if cannot_step(optimizer, FSDP):
        with pytest.raises((RuntimeError, NotImplementedError), match=r"DTensor|sharding strategy"):
            stepping.step()
    else:
        before = layer.weight.full_tensor().clone()
        stepping.step()
        assert not torch.equal(layer.weight.full_tensor(), before)
