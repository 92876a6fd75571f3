"""DeepSpeed's optimizers in host RAM run without what they would compile."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from measure.dry_run.libraries.host_optimizers import install
from measure.dry_run.libraries.importing import OnImport


class _Builds:
    def load(self) -> None:
        """What needs a compiler."""
        raise AssertionError


@pytest.mark.parametrize(
    ("name", "builder", "word"),
    [
        ("deepspeed.ops.adam.cpu_adam", "CPUAdamBuilder", "adam"),
        ("deepspeed.ops.adagrad.cpu_adagrad", "CPUAdagradBuilder", "adagrad"),
        ("deepspeed.ops.lion.cpu_lion", "CPULionBuilder", "lion"),
    ],
)
def test_kernels_are_not_built_and_do_nothing(
    monkeypatch: pytest.MonkeyPatch, name: str, builder: str, word: str
) -> None:
    """It is said once for each optimizer; what it did not have before it does not have now."""
    module: Any = ModuleType(name)
    setattr(module, builder, _Builds)
    cpu: Any = ModuleType("cpuinfo")
    said: list[str] = []
    for each in (module, cpu):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    guesses: Any = SimpleNamespace(assume=lambda what, value, origin: said.append(origin))
    install(OnImport(), guesses)
    kernels = getattr(module, builder)().load()
    for call in (f"create_{word}", f"{word}_update", f"destroy_{word}"):
        getattr(kernels, call)(0, 1e-3)
    assert not hasattr(kernels, "build")
    assert said == [name]
    assert cpu.get_cpu_info() == {}
