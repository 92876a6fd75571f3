"""xformers beside a CPU build of torch: new versions run on torch's kernels, older ones are refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

from measure.dry_run.guesses import Guesses
from measure.dry_run.libraries import xformers_library
from measure.dry_run.libraries.importing import Change
from measure.trace.cuda.sdpa import efficient_gradients

AMPERE, HOPPER = (8, 0), (9, 0)


class Imports:
    """Changes of modules by name, as they would be made on import."""

    def __init__(self) -> None:
        self.changes: dict[str, Change] = {}
        self.around: dict[str, Callable[[], AbstractContextManager[Any]]] = {}

    def add(self, name: str, change: Change) -> None:
        """Keep the change."""
        self.changes[name] = change

    def wrap(self, name: str, around: Callable[[], AbstractContextManager[Any]]) -> None:
        """Keep the context."""
        self.around[name] = around


def installed(monkeypatch: pytest.MonkeyPatch, version: str) -> tuple[Imports, Guesses]:
    """What is changed of this version, and where its guesses go."""
    imports, guesses = Imports(), Guesses()
    monkeypatch.setattr(xformers_library, "version", lambda _: version)
    xformers_library.install(cast("Any", imports), guesses)
    return imports, guesses


@pytest.mark.parametrize(
    ("card", "name", "says_newer"),
    [(AMPERE, "fa2F", False), (HOPPER, "fa2F", True), (HOPPER, "cutlassF", False)],
)
def test_a_new_version_believes_that_it_was_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, card: tuple[int, int], name: str, says_newer: bool
) -> None:
    """What it chooses is said, and on Hopper that another kernel may be there.  Who loads the compiled part
    once more gets what is written beside it.
    """
    imports, guesses = installed(monkeypatch, "0.0.35")
    library, dispatch = ModuleType("xformers._cpp_lib"), ModuleType("xformers.ops.fmha.dispatch")
    library.__file__ = str(tmp_path / "_cpp_lib.py")
    (tmp_path / "cpp_lib.json").write_text('{"version": {"cuda": 1208}}', encoding="utf-8")
    vars(library).update(_built_with_cuda=False, _BuildInfo=lambda read: SimpleNamespace(metadata=read))
    operator = type("Operator", (), {"NAME": name})
    vars(dispatch)["_run_priority_list"] = lambda *_: operator
    imports.changes["xformers._cpp_lib"](library)
    imports.changes["xformers.ops.fmha.dispatch"](dispatch)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: card)
    assert vars(library)["_built_with_cuda"] is True
    assert vars(library)["_register_extensions"]().metadata["version"] == {"cuda": 1208}
    assert vars(dispatch)["_run_priority_list"]("forward", [], None) is operator
    (said,) = guesses.listed()
    assert said.origin == name
    assert ("flash_attn_3" in said.value) is says_newer


@pytest.mark.parametrize("version", ["0.0.26.post1", "0.0.33"])
def test_an_older_version_is_refused_where_it_is_used(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Its attention and its fused products, but not its import."""
    imports, guesses = installed(monkeypatch, version)
    for module_name, functions in (
        ("xformers.ops.fmha", ["_memory_efficient_attention"]),
        ("xformers.ops.swiglu_op", ["swiglu", "swiglu_packed"]),
    ):
        module = ModuleType(module_name)
        imports.changes[module_name](module)
        assert not guesses.refusals
        for name in functions:
            with pytest.raises(NotImplementedError, match="kernels of its own"):
                vars(module)[name](1, op=None)
        guesses.refusals.clear()


def test_kernels_that_cannot_be_imported_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs catch that error, and would go on with another attention."""
    imports, guesses = installed(monkeypatch, "0.0.30")
    with pytest.raises(ImportError), imports.around["xformers.ops.fmha.flash"]():
        raise ImportError("libtorch_cuda.so")
    assert len(guesses.refusals) == 1


@pytest.mark.parametrize(("wants_bias", "n_elements"), [(False, 0), (True, 2 * 8 * 16)])
def test_the_bias_has_a_gradient_where_it_is_wanted(wants_bias: bool, n_elements: int) -> None:
    """Its rows are a multiple of 16 elements."""
    row = torch.empty(1, 8, 2, 4, device="meta")
    bias = torch.empty(1, 2, 8, 9, device="meta")
    rest = (bias, row, None, None, 8, 8, row, 0.0, row, row, 0, wants_bias)
    *gradients, of_bias = efficient_gradients(row, row, row, row, *rest)
    assert [each.shape for each in gradients] == [row.shape] * 3
    assert of_bias.untyped_storage().nbytes() == n_elements * 4
