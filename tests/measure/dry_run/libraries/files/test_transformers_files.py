"""Checkpoints without files: their dtype, and where old and new versions of Transformers load them."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from measure.dry_run.guesses import Guesses, missing_behind
from measure.dry_run.libraries import transformers_4
from measure.dry_run.libraries.files.transformers_files import Checkpoints, _architectures
from measure.dry_run.libraries.files.words import tokenizer_of_words
from tests.extras import import_or_skip

torch = import_or_skip("torch")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "torch.float16"}, "float16"),
        ({"text_config": {"dtype": "bfloat16"}}, "bfloat16"),
        ({"text_config": {}}, "float32"),
    ],
)
def test_models_of_several_parts_say_their_dtype_for_the_text(fields: dict[str, Any], name: str) -> None:
    """Qwen3.5 says it there alone; one that says nothing holds fp32."""
    checkpoints = Checkpoints(Guesses())
    checkpoints._note_dtype("m", fields)
    assert checkpoints.dtype_of("m") == getattr(torch, name)


def test_a_config_that_is_not_here_is_known_behind_other_errors() -> None:
    """Unsloth raises a RuntimeError of its own behind it; a folder that is here says what it lacks."""

    class PreTrainedConfig:
        @classmethod
        def _get_config_dict(cls, _name: str) -> Any:
            raise OSError("no such file")

    module: Any = ModuleType("configuration_utils")
    module.PreTrainedConfig = PreTrainedConfig
    Checkpoints(Guesses())._read_configurations(module)
    with pytest.raises(OSError, match=r"config.json of nobody/nothing .*--checkpoint") as caught:
        PreTrainedConfig._get_config_dict("nobody/nothing")
    own = RuntimeError("failed to load")
    own.__cause__ = caught.value
    assert missing_behind(own) is caught.value
    with pytest.raises(OSError, match="no such file"):
        PreTrainedConfig._get_config_dict(str(Path(__file__).parent))


@pytest.mark.parametrize(
    ("kind", "sees", "found"),
    [
        ("qwen2", False, "Qwen2ForCausalLM"),
        ("qwen2_vl", True, "Qwen2VLForConditionalGeneration"),
        ("qwen3_5", True, "Qwen3_5ForConditionalGeneration"),
        ("unknown", True, None),
    ],
)
def test_a_checkpoint_names_its_class(kind: str, *, sees: bool, found: str | None) -> None:
    """TRL loads the class that ``config.json`` names, which is the whole model where it sees."""
    import_or_skip("transformers")
    fields = {"model_type": kind, **({"vision_config": {}} if sees else {})}
    assert _architectures(fields) == ({} if found is None else {"architectures": [found]})


def old_transformers(loaded: list[Any]) -> ModuleType:
    """What Transformers 4.46 loads by: it notes what it is given."""

    class PreTrainedModel:
        @classmethod
        def _load_pretrained_model(cls, model: Any, state_dict: Any, loaded_keys: Any, file: Any) -> None:
            loaded.append((state_dict or module.load_state_dict(file), loaded_keys))

    module: Any = ModuleType("modeling_utils")
    module.PreTrainedModel = PreTrainedModel
    module.cached_file = lambda name, filename: f"{name}/{filename}"
    module.load_state_dict = lambda file: file
    return module  # type: ignore[no-any-return]


@pytest.mark.parametrize("low_memory", [False, True])
def test_old_transformers_load_what_the_model_has(*, low_memory: bool) -> None:
    """Asked before the model is there, it gets the dtype alone; then all names, at once or from the file."""
    loaded: list[Any] = []
    module: Any = old_transformers(loaded)
    content = {"a": torch.empty(2), "b": torch.empty(3)}
    transformers_4.load_models(module, lambda _: torch.bfloat16, lambda *_: content)
    assert module.cached_file("m", "config.json") == "m/config.json"
    file = module.cached_file("m", "model.safetensors")
    first = module.load_state_dict(file)
    assert first["weight"].dtype == torch.bfloat16
    module.PreTrainedModel._load_pretrained_model(None, None if low_memory else first, ["weight"], file)
    assert loaded == [(content, ["a", "b"])]
    assert list(module.load_state_dict(file)) == ["weight"]


@pytest.mark.parametrize(("kind", "ending"), [(classmethod, ".bin"), (staticmethod, ".safetensors")])
def test_newer_transformers_load_what_the_model_has(
    kind: Any, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function of the class from 4.50 to 4.57, where a file of safetensors would be opened;
    of nothing since 5.
    """
    loaded: list[Any] = []
    content = {"a": torch.empty(2)}

    def load(*args: Any) -> None:
        loaded.append(args[-3:])

    module: Any = ModuleType("modeling_utils")
    module.PreTrainedModel = type("PreTrainedModel", (), {"_load_pretrained_model": kind(load)})
    module.load_state_dict, module._get_resolved_checkpoint_files = str, None
    checkpoints = Checkpoints(Guesses())
    monkeypatch.setattr(checkpoints, "_content", lambda *_: content)
    checkpoints._load_models(module)
    files, shards = module._get_resolved_checkpoint_files(pretrained_model_name_or_path="m")
    assert (files[0].endswith(ending), shards) == (True, None)
    assert module.load_state_dict(files[0])["weight"].dtype == torch.float32
    module.PreTrainedModel._load_pretrained_model("model", None, files)
    module.PreTrainedModel._load_pretrained_model("model", {"b": 1}, None)
    assert loaded == [("model", content, None), ("model", {"b": 1}, None)]


def test_the_tokenizer_that_stands_in_has_almost_as_many_words_as_the_embedding() -> None:
    """A program that cuts the embedding to its size takes little off; one that adds some adds none."""
    import_or_skip("tokenizers")
    import_or_skip("transformers")
    assert 2000 - 100 < len(tokenizer_of_words("right", n_tokens=2000)) < 2000
    assert 1000 < len(tokenizer_of_words("right")) < 1100


def test_a_class_that_spells_with_the_words_of_the_file_drops_no_text(tmp_path: Path) -> None:
    """Qwen2Tokenizer of Transformers 5 is taken for the folder, whatever class that names."""
    import_or_skip("tokenizers")
    qwen2 = import_or_skip("transformers").Qwen2Tokenizer
    tokenizer_of_words("right", n_tokens=2000).save_pretrained(tmp_path)
    assert len(qwen2.from_pretrained(tmp_path)("w1 is known")["input_ids"]) >= len("w1isknown")
