"""What engines are told on CUDA devices: backends, devices, and DeepSpeed's own Adam;
library functions keep their signatures.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, create_autospec

import pytest

from measure.recipe.engine_configs import deepspeed_config
from measure.run.cases.case import RunCase, RunOptions
from planner.domain.scenario import Scenario
from tests.extras import import_or_skip

torch = import_or_skip("torch")
import_or_skip("transformers")

SAID = {"model": "qwen2.5-0.5b", "gpu": "a100-80gb", "gpus": 2, "method": "full", "seq": 512}
CARD = torch.device("cuda", 0)


def scenario(**said: Any) -> Scenario:
    """A job on two cards."""
    return RunCase({**SAID, **said}, RunOptions()).scenario()


def task(job: Scenario, device: Any = CARD) -> Any:
    """What an engine asks of a task."""
    options = RunOptions(workload="loop")
    return SimpleNamespace(
        scenario=job,
        probe=SimpleNamespace(device=device),
        case=SimpleNamespace(options=options),
        begin_loss=lambda _: None,
    )


@pytest.mark.parametrize(
    ("said", "device", "backend"),
    [
        ({"sharding": "ddp"}, CARD, "nccl"),
        ({"sharding": "ddp"}, torch.device("cpu"), "gloo"),
        ({"sharding": "fsdp"}, CARD, "nccl"),
        ({"sharding": "fsdp", "offload": "optimizer+params"}, CARD, "cuda:nccl,cpu:gloo"),
    ],
)
def test_ranks_talk_through_the_right_backend(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, str], device: Any, backend: str
) -> None:
    """NCCL on cards, gloo on CPUs, and both where gradients are offloaded."""
    from measure.worker.workloads import sharded

    join = create_autospec(torch.distributed.init_process_group)
    monkeypatch.setattr(torch.distributed, "init_process_group", join)
    sharded.join_ranks(device, scenario(**said))
    assert join.call_args.args == (backend,)


def test_deepspeed_joins_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own function makes the group, with NCCL on cards."""
    deepspeed = import_or_skip("deepspeed")
    from measure.worker.workloads import sharded

    join = create_autospec(deepspeed.init_distributed)
    monkeypatch.setattr(deepspeed, "init_distributed", join)
    sharded.join_ranks(CARD, scenario(sharding="zero2"))
    assert join.call_args.args == ("nccl",)


@pytest.mark.parametrize(
    ("device", "expected"), [(CARD, [CARD]), (torch.device("cpu"), None)], ids=["card", "cpu"]
)
def test_ddp_is_bound_to_its_card(monkeypatch: pytest.MonkeyPatch, device: Any, expected: Any) -> None:
    """On a card the wrapper gets the device, on a CPU none."""
    from measure.worker.workloads.sharded import DdpEngine

    wrap = create_autospec(torch.nn.parallel.DistributedDataParallel)
    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", wrap)
    engine = DdpEngine(torch.nn.Linear(2, 2), task(scenario(sharding="ddp"), device))
    assert wrap.call_args.kwargs == {"device_ids": expected}
    assert engine.running is wrap.return_value


def test_offloaded_states_are_updated_by_deepspeeds_own_adam(monkeypatch: pytest.MonkeyPatch) -> None:
    """On cards with offload it is DeepSpeed's Adam for CPUs, over what is trained;
    without offload the recipe's own.
    """
    import_or_skip("deepspeed")
    from deepspeed.ops import adam

    from measure.worker.workloads.sharded import DeepspeedEngine

    made = MagicMock(spec=adam.DeepSpeedCPUAdam)
    make = create_autospec(adam.DeepSpeedCPUAdam, return_value=made)
    monkeypatch.setattr(adam, "DeepSpeedCPUAdam", make)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).requires_grad_(False))
    on_cards: Any = SimpleNamespace(_on_cpu=False)
    job = task(scenario(sharding="zero2", offload="optimizer"))
    assert DeepspeedEngine._make_optimizer(on_cards, model, job) is made
    assert [tuple(tensor.shape) for tensor in make.call_args.args[0]] == [(2, 2), (2,)]
    plain = DeepspeedEngine._make_optimizer(on_cards, model, task(scenario(sharding="zero2")))
    assert isinstance(plain, torch.optim.AdamW)


def test_the_file_for_cards_differs_from_that_for_cpus() -> None:
    """Streams overlap, host memory is pinned, and DeepSpeed's Adam is asked for; on a CPU none of that."""
    job = scenario(sharding="zero3", offload="optimizer+params")
    on_cards, on_cpu = (deepspeed_config(job, on_cpu=where) for where in (False, True))
    for config, there in ((on_cards, True), (on_cpu, False)):
        zero = config["zero_optimization"]
        assert zero["overlap_comm"] is there
        assert (zero["offload_optimizer"]["pin_memory"], zero["offload_param"]["pin_memory"]) == (
            there,
            there,
        )
        assert config["zero_force_ds_cpu_optimizer"] is there
