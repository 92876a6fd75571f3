"""Processors of models that see or hear, of which no file is here."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from measure.dry_run.guesses import Guesses, NotHereError
from measure.dry_run.libraries.files.processors import _preprocessors
from tests.extras import import_or_skip

import_or_skip("torch")
_NAME = "nobody/nothing"
_HERE = {"local_files_only": True}


def changed(monkeypatch: pytest.MonkeyPatch, base: str, read: str, config: Any, *, allowed: bool) -> Any:
    """A class of Transformers whose file is not here, and the model's configuration is."""
    transformers: Any = import_or_skip("transformers")
    known = SimpleNamespace(from_pretrained=lambda _name: config)
    monkeypatch.setattr(transformers, "AutoConfig", known, raising=False)
    made: Any = type(base, (getattr(transformers, base),), {})
    module: Any = ModuleType("transformers.processors")
    setattr(module, base, made)
    _preprocessors(Guesses(), base, read, allowed=allowed)(module)
    return made


def test_images_have_the_side_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is the default of the class."""
    config = SimpleNamespace(model_type="vit", image_size=96)
    made = changed(monkeypatch, "ImageProcessingMixin", "get_image_processor_dict", config, allowed=True)
    fields, _ = made.get_image_processor_dict(_NAME, **_HERE)
    assert fields["size"] == fields["crop_size"] == {"height": 96, "width": 96}


def test_whisper_has_as_many_bands_as_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its large versions have more than the class."""
    config = SimpleNamespace(model_type="whisper", num_mel_bins=128)
    made = changed(
        monkeypatch, "SequenceFeatureExtractor", "get_feature_extractor_dict", config, allowed=True
    )
    fields, _ = made.get_feature_extractor_dict(_NAME, **_HERE)
    assert fields["feature_size"] == 128


@pytest.mark.parametrize(
    ("base", "read"),
    [
        ("ImageProcessingMixin", "get_image_processor_dict"),
        ("SequenceFeatureExtractor", "get_feature_extractor_dict"),
    ],
)
def test_what_is_for_the_search_of_the_file_is_no_field(
    monkeypatch: pytest.MonkeyPatch, base: str, read: str
) -> None:
    """As Transformers itself leaves it out; what the program says of the processor stays."""
    config = SimpleNamespace(model_type="vit", image_size=96)
    made = changed(monkeypatch, base, read, config, allowed=True)
    search = {"revision": "main", "token": None, "cache_dir": None, "subfolder": "processor"}
    _, left = getattr(made, read)(_NAME, do_normalize=False, **search, **_HERE)
    assert left == {"do_normalize": False}


def test_without_leave_nothing_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to do about it."""
    config = SimpleNamespace(model_type="vit", image_size=96)
    made = changed(monkeypatch, "ImageProcessingMixin", "get_image_processor_dict", config, allowed=False)
    with pytest.raises(NotHereError, match=r"--data FILE or --lengths"):
        made.get_image_processor_dict(_NAME, **_HERE)
