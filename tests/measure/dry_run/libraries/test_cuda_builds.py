"""Programs that compile for CUDA while they run are told at once that nothing can."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.extras import needs

pytestmark = needs("torch")


def test_sources_of_cuda_are_not_compiled() -> None:
    """Others are."""
    from measure.dry_run.libraries.cuda_builds import install

    module, said = ModuleType("torch.utils.cpp_extension"), []
    vars(module)["load"] = lambda name, sources, verbose=False: (name, sources, verbose)
    changes: dict[str, Any] = {}
    guesses = SimpleNamespace(assume=lambda *words: said.append(words))
    install(SimpleNamespace(add=changes.__setitem__), guesses)  # type: ignore[arg-type]
    changes[module.__name__](module)
    assert module.load("plain", "a.cpp", verbose=True) == ("plain", "a.cpp", True)
    assert not said
    with pytest.raises(RuntimeError, match="no compiler for CUDA, which fast needs"):
        module.load("fast", ["a.cpp", "b.cu"])
    assert said[0][-1] == "fast"
