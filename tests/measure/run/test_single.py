"""What is refused before a case is started."""

from __future__ import annotations

import pytest

from measure.run.cases.case import RunOptions
from measure.run.single import HostMemoryShortError, prepare
from planner.errors import UsageError
from planner.units import GIB
from tests.extras import import_or_skip
from tests.measure.driver_double import Driver, machine

import_or_skip("torch")


def test_offload_needs_a_compiler(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed compiles its Adam for the CPU: without a compiler the job is refused in a sentence,
    not tried.
    """
    import_or_skip("deepspeed")
    said = {"model": "qwen2.5-0.5b", "method": "full", "seq": 512, "sharding": "zero2"}
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UsageError, match=r"'c\+\+' is not here: install a C\+\+ compiler"):
        prepare({**said, "offload": "optimizer"}, RunOptions(workload="loop"), machine(driver), force=False)
    assert (
        prepare(said, RunOptions(workload="loop"), machine(driver), force=False).scenario.recipe.sharding.name
        == "zero2"
    )


def test_a_limit_above_the_card_is_refused(driver: Driver) -> None:
    """A shortage on this card must not be called one of a larger card."""
    said = {"model": "qwen2.5-0.5b", "method": "lora", "seq": 512}
    with pytest.raises(UsageError, match="memory limit is 180"):
        prepare(said, RunOptions(memory_limit_bytes=180 * GIB), machine(driver), force=False)
    assert (
        prepare(
            said, RunOptions(memory_limit_bytes=80 * GIB), machine(driver), force=False
        ).scenario.hardware.gpu.id
        == "h200-sxm"
    )


@pytest.mark.parametrize(
    ("driver_cuda", "built", "runs"), [(12080, "13.0", False), (12020, "12.8", True), (13000, "12.8", True)]
)
def test_a_torch_that_is_too_new_for_the_driver_is_refused(
    driver: Driver, driver_cuda: int, built: str, runs: bool
) -> None:
    """A newer major version of CUDA needs a newer driver; a newer minor one does not,
    and an older build always runs.
    """
    driver.answers["nvmlSystemGetCudaDriverVersion"] = lambda: driver_cuda
    here = machine(driver)
    here.environment["torch_cuda"] = built
    said = {"model": "qwen2.5-0.5b", "method": "lora", "seq": 512}
    if runs:
        assert prepare(said, RunOptions(), here, force=False).scenario.hardware.gpu.id == "h200-sxm"
        return
    with pytest.raises(
        UsageError, match=r"built for CUDA 13.0 and the driver 580.159.04 goes up to CUDA 12.8"
    ):
        prepare(said, RunOptions(), here, force=False)
    assert prepare({**said, "gpu": "cpu"}, RunOptions(), here, force=False).scenario.hardware.gpu.id == "cpu"


def test_a_model_that_the_host_cannot_hold_is_not_started_on_the_cpu(driver: Driver) -> None:
    """Otherwise it takes the host's memory until the kernel kills something; with force it is tried."""
    here = machine(driver)
    here.environment["host_memory_bytes"] = 24 * GIB
    here.environment["container_limit_bytes"] = None
    said = {"model": "llama-3.1-8b", "method": "full", "seq": 128, "gpu": "cpu"}
    with pytest.raises(
        HostMemoryShortError, match=r"take 29.92 GiB of host RAM at least, and this machine has 24.00 GiB"
    ):
        prepare(said, RunOptions(), here, force=False)
    assert prepare(said, RunOptions(), here, force=True).scenario.hardware.gpu.id == "cpu"
    here.environment["host_memory_bytes"] = 100 * GIB
    assert prepare(said, RunOptions(), here, force=False).scenario.hardware.gpu.id == "cpu"
    here.environment["container_limit_bytes"] = 24 * GIB
    with pytest.raises(HostMemoryShortError, match="24"):
        prepare(said, RunOptions(), here, force=False)
