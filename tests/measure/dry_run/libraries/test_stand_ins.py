"""Data sets that are not there: rows of the user stand in for each part that a program asks for.
Tokenizers that are not there: another stands in where the user allowed it.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from measure.dry_run.guesses import Guesses, missing_behind
from measure.dry_run.libraries.stand_ins import (
    _data_sets,
    _encodings,
    _image_weights,
    _metrics,
    _n_tokens,
    _takes_types,
    _tokenizers,
    _vocabularies,
    _with_any_split,
)


def test_each_part_of_a_data_set_has_the_rows() -> None:
    """All parts where none is named, a slice of a named one, and the whole for a name that nobody knows."""
    asked: list[Any] = []

    def load_dataset(path: str, *_: Any, data_files: Any = None, **kwargs: Any) -> str:
        if path != "json":
            raise OSError(path)
        asked.append((sorted(data_files), kwargs["split"]))
        return "rows"

    module: Any = ModuleType("load")
    module.load_dataset = load_dataset
    guesses = Guesses()
    _data_sets(guesses, "rows.jsonl")(module)
    for split in (None, "train[:5%]", "test", "train_sft"):
        assert module.load_dataset("of-the-hub", split=split) == "rows"
    parts = ["test", "train", "validation"]
    assert asked == [(parts, None), (parts, "train[:5%]"), (parts, "test"), (parts, "train")]
    assert guesses.listed()[0].name == "data set"


def test_a_part_of_any_name_has_the_rows() -> None:
    """A program loads all parts, and takes one whose name only the Hub knows."""
    parts = _with_any_split({"train": ["a row"], "test": ["another"]})
    assert parts["train_sft"] == ["a row"]
    assert parts["test"] == ["another"]
    assert list(parts) == ["train", "test"]


def test_a_data_set_without_rows_is_told_with_the_way_out() -> None:
    """The program may catch it, and look elsewhere; whoever runs it learns what is missing."""
    module: Any = ModuleType("load")

    def load_dataset(path: str) -> str:
        raise OSError(path)

    module.load_dataset = load_dataset
    guesses = Guesses()
    _data_sets(guesses, "")(module)
    with pytest.raises(OSError, match="data set of-the-hub cannot be loaded here") as caught:
        module.load_dataset("of-the-hub")
    assert missing_behind(caught.value) is caught.value
    assert guesses.lacks_data


def test_how_often_something_was_assumed_is_said_in_words() -> None:
    """Once, or a number of times."""
    guesses = Guesses()
    for place in ("here", "there", "there"):
        guesses.assume("config.json", "none", place)
    assert {each.origin: each.note for each in guesses.listed()} == {"here": "once", "there": "2 times"}


def _loading(known: list[str], guesses: Guesses, *, allowed: bool) -> Any:
    """A class that reads a tokenizer which knows these words, and has an end of text."""

    class Auto:
        @classmethod
        def from_pretrained(cls, _name: str) -> Any:
            return SimpleNamespace(
                get_vocab=lambda: dict.fromkeys(["</s>", *known], 0), all_special_tokens=["</s>"]
            )

    module: Any = ModuleType("auto")
    module.AutoTokenizer = Auto
    _tokenizers(guesses, "AutoTokenizer", allowed=allowed)(module)
    return Auto.from_pretrained


def test_a_folder_without_words_has_no_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers makes an empty one of it, with which all rows are empty: it is refused, or another stands
    in.  A short one of the user's own is left alone.
    """
    (tmp_path / "config.json").write_text('{"vocab_size": 5000}', encoding="utf-8")
    made: list[int] = []
    monkeypatch.setattr(
        "measure.dry_run.libraries.stand_ins.tokenizer_of_words", lambda _side, _images, n: made.append(n)
    )
    monkeypatch.setattr("measure.dry_run.libraries.stand_ins.image_tokens", lambda _: {})
    guesses = Guesses()
    with pytest.raises(OSError, match="there is no tokenizer"):
        _loading([], guesses, allowed=False)(str(tmp_path))
    assert len(guesses.refusals) == 1
    _loading([], guesses, allowed=True)(str(tmp_path))
    assert made == [5000] == [_n_tokens(str(tmp_path))]
    assert "a" in _loading(["a"], guesses, allowed=False)(str(tmp_path)).get_vocab()


@pytest.mark.parametrize("kind", [OSError, ValueError])
def test_a_tokenizer_that_cannot_be_loaded_is_told_with_the_way_out(kind: type[Exception]) -> None:
    """A program that catches the error still does; a folder says itself what is missing."""

    class Auto:
        @classmethod
        def from_pretrained(cls, _name: str) -> Any:
            raise kind("no file")

    module: Any = ModuleType("auto")
    module.AutoTokenizer = Auto
    _tokenizers(Guesses(), "AutoTokenizer", allowed=False)(module)
    with pytest.raises(kind, match=r"someone/model.*--data"):
        Auto.from_pretrained("someone/model")
    with pytest.raises(kind, match="no file"):
        Auto.from_pretrained(str(Path(__file__).parent))


@pytest.mark.parametrize("kind", [OSError, ValueError, TypeError])
def test_a_tokenizer_that_is_not_here_is_known_behind_other_errors(kind: type[Exception]) -> None:
    """The program may catch its kind, and raise one of its own: a refusal, and no fault of the program."""

    class Auto:
        @classmethod
        def from_pretrained(cls, _name: str) -> Any:
            raise kind("no such file")

    module: Any = ModuleType("auto")
    module.AutoTokenizer = Auto
    _tokenizers(Guesses(), "AutoTokenizer", allowed=False)(module)
    with pytest.raises(kind) as caught:
        module.AutoTokenizer.from_pretrained("some/model")
    own = RuntimeError("failed to load")
    own.__cause__ = caught.value
    assert "tokenizer of some/model" in str(missing_behind(own))
    assert missing_behind(RuntimeError("of its own")) is None


def test_a_metric_that_is_not_here_is_always_zero() -> None:
    """One that is here stays; what takes its place is said."""

    def load(path: str, *_: Any) -> str:
        if path != "of-my-own":
            raise FileNotFoundError(path)
        return path

    module: Any = ModuleType("loading")
    module.load = load
    guesses = Guesses()
    _metrics(guesses)(module)
    assert module.load("of-my-own") == "of-my-own"
    metric = module.load("glue", "mrpc")
    metric.add_batch(predictions=[1], references=[1])
    assert metric.compute()["accuracy"] == 0
    assert [each.origin for each in guesses.listed()] == ["glue"]


def test_timm_keeps_what_it_begins_with_where_no_weights_are_here() -> None:
    """The model has the same tensors, and the report says so."""
    guesses = Guesses()

    def load_pretrained(_: object) -> None:
        raise FileNotFoundError("no file in the cache")

    module: Any = SimpleNamespace(load_pretrained=load_pretrained)
    _image_weights(guesses)(module)
    module.load_pretrained(object())
    assert [each.name for each in guesses.listed()] == ["weights of a checkpoint"]


@pytest.mark.parametrize("allowed", [True, False])
def test_a_vocabulary_of_tiktoken_that_is_not_here(*, allowed: bool) -> None:
    """Bytes stand in, in a vocabulary of the same size, or the way out is told."""

    class Encoding:
        def __init__(self, _: str, **kwargs: Any) -> None:
            self.ranks = kwargs["mergeable_ranks"]

    def load_tiktoken_bpe(path: str) -> Any:
        raise ConnectionRefusedError(path)

    module: Any = ModuleType("tiktoken")
    module.Encoding, module.load_tiktoken_bpe = Encoding, load_tiktoken_bpe
    module.data_gym_to_mergeable_bpe_ranks = load_tiktoken_bpe
    guesses = Guesses()
    _vocabularies(guesses, allowed=allowed)(module)
    _encodings(guesses)(module)
    if not allowed:
        with pytest.raises(OSError, match="a vocabulary of tiktoken cannot be loaded here"):
            module.load_tiktoken_bpe("r50k_base.tiktoken")
        assert guesses.lacks_data
        return
    ranks = module.data_gym_to_mergeable_bpe_ranks("vocab.bpe")
    made = module.Encoding("gpt2", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})
    assert sorted(made.ranks.values()) == list(range(50256))
    assert made.ranks[b"a"] == ord("a")
    assert [each.value for each in guesses.listed()] == ["each byte a token"]


@pytest.mark.parametrize(
    ("name", "takes"),
    [
        ("bert-base-uncased", True),
        ("roberta-base", True),
        ("distilbert-base-uncased", False),
        ("Qwen/Qwen2.5-0.5B", False),
    ],
)
def test_types_of_tokens_are_for_models_that_take_them(name: str, *, takes: bool) -> None:
    """sentence-transformers hands the model all that the tokenizer returns."""
    pytest.importorskip("transformers")
    assert _takes_types(name) == takes
