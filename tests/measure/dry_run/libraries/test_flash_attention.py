"""FlashAttention without its packages: which versions stand in, and on which cards."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

from measure.dry_run.guesses import Guesses
from measure.dry_run.libraries import transformers_4
from measure.dry_run.libraries.flash_attention import install
from measure.dry_run.libraries.importing import Change

HOPPER, ADA = (9, 0), (8, 9)


class Imports:
    """Changes of modules by name, as they would be made on import."""

    def __init__(self) -> None:
        self.changes: dict[str, Change] = {}

    def add(self, name: str, change: Change) -> None:
        """Keep the change."""
        self.changes[name] = change

    def wrap(self, name: str, _: object) -> None:
        """Keep that its code runs inside of something."""
        self.changes[name] = lambda _: None


@pytest.fixture
def changes() -> dict[str, Change]:
    """What is changed of Transformers and of the package kernels."""
    imports = Imports()
    install(cast("Any", imports), Guesses())
    return imports.changes


@pytest.mark.parametrize(
    ("version", "card", "runs"), [(2, ADA, True), (3, ADA, False), (3, HOPPER, True), (4, HOPPER, False)]
)
def test_a_version_runs_on_cards_that_have_its_kernel(
    changes: dict[str, Change],
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    card: tuple[int, int],
    runs: bool,
) -> None:
    """Of another one Transformers' own check says what is missing."""

    class Model:
        def _flash_attn_import_error(self, flash_attn_version: int) -> None:
            raise ImportError(f"no version {flash_attn_version}")

    module = ModuleType("transformers.modeling_utils")
    module.PreTrainedModel = Model  # type: ignore[attr-defined]
    changes["transformers.modeling_utils"](module)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: card)
    if runs:
        Model()._flash_attn_import_error(version)
    else:
        with pytest.raises(ImportError, match=f"no version {version}"):
            Model()._flash_attn_import_error(version)


@pytest.mark.parametrize(
    "name",
    [
        "kernels-community/flash-attn2",
        "kernels-community/vllm-flash-attn3",
        "kernels-community/flash-attn3",
        "varunneal/flash-attention-3",
    ],
)
def test_kernels_of_the_hub_are_torchs_copy(changes: dict[str, Change], name: str) -> None:
    """Others come from where they came from."""
    module = ModuleType("kernels")
    vars(module).update(get_kernel=lambda repo_id: SimpleNamespace(of=repo_id), has_kernel=lambda _: False)
    changes["kernels"](module)
    assert module.has_kernel(name)
    assert not module.has_kernel("someone/flash-attn4")
    assert callable(module.get_kernel(name).flash_attn_func)
    assert callable(module.get_kernel(name).flash_attn_interface.flash_attn_func)
    assert module.get_kernel("someone/else").of == "someone/else"


def test_a_kernel_that_a_program_goes_on_without_is_noted() -> None:
    """nanochat catches whatever is raised, and takes another path."""
    imports, guesses, module = Imports(), Guesses(), ModuleType("kernels")

    def nothing_here(repo_id: str) -> None:
        raise FileNotFoundError(repo_id)

    vars(module).update(get_kernel=nothing_here, has_kernel=nothing_here)
    install(cast("Any", imports), guesses)
    imports.changes["kernels"](module)
    with pytest.raises(FileNotFoundError):
        module.get_kernel("someone/else")
    assert [(each.name, each.origin) for each in guesses.listed()] == [
        ("a kernel from the Hub", "someone/else")
    ]


@pytest.mark.parametrize(("release", "changed"), [("4.42.4", False), ("4.43.0", True)])
def test_models_that_import_the_package_themselves_do_not_find_it(
    monkeypatch: pytest.MonkeyPatch, release: str, changed: bool
) -> None:
    """Told that it is there, Llama of Transformers 4.41 stopped at its own import."""
    monkeypatch.setattr(transformers_4, "version", lambda _: release)
    imports = Imports()
    install(cast("Any", imports), Guesses())
    assert bool(imports.changes) is changed
