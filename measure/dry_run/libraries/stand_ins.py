"""Tokenizers and data sets that are not there, where the user allowed others to stand in for them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from measure.dry_run.guesses import Guesses
from measure.dry_run.libraries.importing import Change, OnImport

_SPECIAL = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
_N_WORDS = 1000
# One of bytes has so many.
_FEWEST_WORDS = 256
_TEMPLATE = "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} </s>{% endfor %}"


def install(imports: OnImport, guesses: Guesses, rows: str, *, allowed: bool) -> None:
    """Change Transformers and Datasets when the program imports them.

    ``rows``: a file that stands in for data sets, or none.  ``allowed``: whether another tokenizer may stand
    in.  Transformers 5 makes one without words where no file is there, and all rows are then empty: that is
    refused in any case.
    """
    imports.add("transformers.models.auto.tokenization_auto", _tokenizers(guesses, allowed=allowed))
    if rows:
        imports.add("datasets.load", _data_sets(guesses, rows))


def _tokenizers(guesses: Guesses, *, allowed: bool) -> Change:
    def change(module: ModuleType) -> None:
        load = module.AutoTokenizer.from_pretrained

        def from_pretrained(name: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                found = load(name, *args, **kwargs)
            except (OSError, ValueError):
                if not allowed:
                    raise
            else:
                if Path(str(name)).is_dir() or len(found) >= _FEWEST_WORDS:
                    return found
            if not allowed:
                guesses.refuse(
                    "is not in the Hub's cache; download it, or let one stand in with --data",
                    f"tokenizer of {name}",
                )
                raise OSError(f"there is no tokenizer of {name} here")
            guesses.assume("tokenizer", f"one of {_N_WORDS:,} words, each a token", str(name))
            return _tokenizer_of_words(kwargs.get("padding_side", "right"))

        module.AutoTokenizer.from_pretrained = staticmethod(from_pretrained)

    return change


def _data_sets(guesses: Guesses, rows: str) -> Change:
    def change(module: ModuleType) -> None:
        load = module.load_dataset

        def load_dataset(path: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return load(path, *args, **kwargs)
            except (OSError, ValueError):
                guesses.assume("data set", f"the rows of {rows}", str(path))
                found = load("json", data_files=rows)
                return found["train"] if kwargs.get("split") else found

        module.load_dataset = load_dataset  # type: ignore[attr-defined]

    return change


def _tokenizer_of_words(padding_side: str) -> Any:
    """Made of the classes that the program itself has loaded; known words are w0, w1, ..."""
    transformers, tokenizers = sys.modules["transformers"], sys.modules["tokenizers"]
    words = [*_SPECIAL.values(), *(f"w{number}" for number in range(_N_WORDS))]
    vocabulary = {word: number for number, word in enumerate(words)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=_SPECIAL["unk_token"]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, padding_side=padding_side, **_SPECIAL
    )
    made.chat_template = _TEMPLATE
    return made
