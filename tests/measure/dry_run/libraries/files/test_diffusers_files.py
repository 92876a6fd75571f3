"""Models of diffusers without their weights; the library itself is not needed."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

from measure.dry_run.guesses import Guesses, missing_behind
from measure.dry_run.libraries.files.diffusers_files import install
from measure.dry_run.libraries.importing import Change


class Config:
    """As diffusers' ``ConfigMixin``: reads a folder, and says nothing else of what is not there."""

    config_name = "config.json"

    @classmethod
    def load_config(cls, pretrained_model_name_or_path: str, **others: Any) -> Any:
        """The configuration, and what it does not take."""
        if not Path(pretrained_model_name_or_path).exists():
            raise OSError("no such file")
        return {"width": 3}, others


class Model(torch.nn.Linear, Config):
    """As diffusers' ``ModelMixin``."""

    _keep_in_fp32_modules: Any = None

    @classmethod
    def from_config(cls, config: dict[str, int], **_: Any) -> Model:
        """A model of one matrix."""
        with torch.device("meta"):
            return cls(config["width"], config["width"])

    @classmethod
    def from_pretrained(cls, name: str, **_: Any) -> str:
        """What reads weights."""
        return f"the weights of {name}"

    def register_to_config(self, **said: Any) -> None:
        """Keep what the configuration says."""
        self.said = said


@pytest.fixture
def guesses(monkeypatch: pytest.MonkeyPatch) -> Guesses:
    """What was assumed; both classes are changed as if diffusers had been imported."""
    changes: dict[str, Change] = {}
    found = Guesses()
    install(cast("Any", SimpleNamespace(add=changes.__setitem__)), found)
    monkeypatch.setattr(Config, "load_config", Config.__dict__["load_config"])
    monkeypatch.setattr(Model, "from_pretrained", Model.__dict__["from_pretrained"])
    module = ModuleType("diffusers")
    vars(module).update(
        ConfigMixin=Config, ModelMixin=Model, accelerate=SimpleNamespace(init_empty_weights=nullcontext)
    )
    for change in changes.values():
        change(module)
    return found


def test_a_folder_needs_no_weights(guesses: Guesses, tmp_path: Path) -> None:
    """Its tensors lie on the host, in the dtype that the program asks for."""
    made = Model.from_pretrained(str(tmp_path), torch_dtype=torch.float16, subfolder="unet")
    assert (made.weight.device.type, made.weight.dtype, made.training) == ("cpu", torch.float16, False)
    assert [(each.value, each.origin) for each in guesses.listed()] == [("none, in float16", str(tmp_path))]


@pytest.mark.parametrize("asked", [{"device_map": "balanced"}, {"quantization_config": object()}])
def test_what_loads_otherwise_reads_its_files(
    guesses: Guesses, tmp_path: Path, asked: dict[str, Any]
) -> None:
    """Nothing is guessed of it."""
    assert Model.from_pretrained(str(tmp_path), **asked) == f"the weights of {tmp_path}"
    assert not guesses.listed()


@pytest.mark.usefixtures("guesses")
def test_a_configuration_that_is_not_here_is_no_error_of_the_program() -> None:
    """It is named with the way out."""
    with pytest.raises(OSError, match=r"config\.json of someone/else is not in the Hub's cache") as caught:
        Model.from_pretrained("someone/else")
    assert missing_behind(caught.value) is not None
