"""Tokenizers and data sets that are not there, where the user allowed others to stand in for them."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

from measure.dry_run.guesses import LET_STAND_IN, Guesses, not_here
from measure.dry_run.libraries.files.processors import image_tokens
from measure.dry_run.libraries.files.words import N_WORDS, tokenizer_of_words
from measure.dry_run.libraries.importing import Change, OnImport
from measure.dry_run.messages import DATA_SET, TOKENIZER
from planner.catalog.encoders import encoder_config
from planner.catalog.models import ModelEntry, entry_named_in, model_entry
from planner.errors import UnknownNameError
from planner.files.reading import read_text
from planner.files.structured import json_value

# What a tokenizer without files ends with; the third where Transformers 4.57 hands no path to an old class.
_NO_FILES = OSError, ValueError, TypeError
# One of bytes has so many.
_FEWEST_WORDS = 256
# Nobody knows into which parts a data set that is not there is divided: each of these has all rows.
_SPLITS = ("train", "validation", "test")


def install(imports: OnImport, guesses: Guesses, rows: str, *, allowed: bool) -> None:
    """Change Transformers and Datasets when the program imports them.

    ``rows``: a file that stands in for data sets, or none.  ``allowed``: whether another tokenizer may stand
    in.  Transformers 5 makes one without words where no file is there, in a folder too, and all rows are then
    empty: that is refused in any case.
    """
    imports.add(
        "transformers.models.auto.tokenization_auto", _tokenizers(guesses, "AutoTokenizer", allowed=allowed)
    )
    imports.add(
        "transformers.tokenization_utils_base",
        _tokenizers(guesses, "PreTrainedTokenizerBase", allowed=allowed),
    )
    # The program may change its folder.
    rows = rows and str(Path(rows).resolve())
    imports.add("tiktoken.load", _vocabularies(guesses, allowed=allowed))
    imports.add("tiktoken.core", _encodings(guesses))
    imports.add("timm.models._builder", _image_weights(guesses))
    imports.add("datasets.load", _data_sets(guesses, rows))
    if rows:
        imports.add("evaluate.loading", _metrics(guesses))


def _tokenizers(guesses: Guesses, name_of_class: str, *, allowed: bool) -> Change:
    def change(module: ModuleType) -> None:
        base = getattr(module, name_of_class)
        load = base.from_pretrained.__func__

        def from_pretrained(cls: Any, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
            name = pretrained_model_name_or_path
            try:
                found = load(cls, name, *args, **kwargs)
            except _NO_FILES as error:
                if not allowed and Path(str(name)).is_dir():
                    # Of a folder it says itself what is missing.
                    raise
                if not allowed:
                    guesses.lack_data()
                    raise _with_way_out(error, f"the tokenizer of {name}") from error
            else:
                if _knows_words(found, Path(str(name))):
                    return found
            if not allowed:
                guesses.lack_data()
                guesses.refuse(
                    f"is not here; {LET_STAND_IN}",
                    f"tokenizer of {name}",
                )
                raise OSError(f"there is no tokenizer of {name} here")
            guesses.assume(TOKENIZER, f"one of {N_WORDS:,} words, each a token", str(name))
            return _of_words(str(name), **kwargs)

        base.from_pretrained = classmethod(from_pretrained)

    return change


def _of_words(name: str, padding_side: str = "right", model_max_length: int = 0, **_: Any) -> Any:
    made = tokenizer_of_words(padding_side, image_tokens(name), _n_tokens(name))
    if not _takes_types(name):
        made.model_input_names = ["input_ids", "attention_mask"]
    if model_max_length:
        made.model_max_length = model_max_length
    return made


class _Bytes(dict[bytes, int]):
    """The shortest tokens of a vocabulary of tiktoken that is not here."""


def _vocabularies(guesses: Guesses, *, allowed: bool) -> Change:
    def change(module: ModuleType) -> None:
        def or_bytes(load: Any) -> Any:
            def ranks(*args: Any, **kwargs: Any) -> Any:
                try:
                    return load(*args, **kwargs)
                except OSError as error:
                    if not allowed:
                        guesses.lack_data()
                        raise _with_way_out(error, "a vocabulary of tiktoken") from error
                    return _Bytes({bytes([each]): each for each in range(256)})

            return ranks

        for name in ("load_tiktoken_bpe", "data_gym_to_mergeable_bpe_ranks"):
            setattr(module, name, or_bytes(getattr(module, name)))

    return change


def _encodings(guesses: Guesses) -> Change:
    """Its other tokens, which no text has, end before the first one with a meaning of its own
    (tiktoken 0.14 tiktoken_ext/openai_public.py).
    """

    def change(module: ModuleType) -> None:
        make = module.Encoding.__init__

        def init(self: Any, name: str, *, mergeable_ranks: Any, special_tokens: Any, **kwargs: Any) -> None:
            if isinstance(mergeable_ranks, _Bytes):
                guesses.assume(TOKENIZER, "each byte a token", name)
                others = range(len(mergeable_ranks), min(special_tokens.values()))
                mergeable_ranks = {**mergeable_ranks, **{b"\xff%d" % each: each for each in others}}
            make(self, name, mergeable_ranks=mergeable_ranks, special_tokens=special_tokens, **kwargs)

        module.Encoding.__init__ = init

    return change


def _with_way_out(error: Exception, what: str) -> Exception:
    """An error of the kind that the program may catch, with what to do."""
    kind = next(each for each in _NO_FILES if isinstance(error, each))
    return not_here(kind, f"{what} cannot be loaded here: {LET_STAND_IN}")


def _knows_words(found: Any, folder: Path) -> bool:
    """Whether text becomes tokens.  A tokenizer of one's own, in a folder, may know few words."""
    if folder.is_dir():
        return bool(set(found.get_vocab()) - set(found.all_special_tokens))
    return len(found) >= _FEWEST_WORDS


def _takes_types(name: str) -> bool:
    """Whether a model takes types of tokens: BERT does, DistilBERT and decoders do not.  Of a folder nobody
    says it.
    """
    fields = encoder_config(name)
    if fields is None:
        return Path(name).is_dir()
    return hasattr(sys.modules["transformers"].AutoConfig.for_model(fields["model_type"]), "type_vocab_size")


def _n_tokens(name: str) -> int:
    """Rows of the embedding of a model in a folder or in the catalog; 0 for another."""
    config = Path(name) / "config.json"
    if config.is_file():
        fields = json_value(config, read_text(config))
        return int(fields.get("text_config", fields).get("vocab_size") or 0)
    if (fields := encoder_config(name)) is not None:
        # Those that say none have the default of their class.
        return int(fields.get("vocab_size") or 0)
    try:
        found: ModelEntry | None = model_entry(name)
    except UnknownNameError:
        found = entry_named_in(name)
    return 0 if found is None else int(found.config_fields().get("vocab_size") or 0)


def _data_sets(guesses: Guesses, rows: str) -> Change:
    def change(module: ModuleType) -> None:
        load = module.load_dataset

        def load_dataset(path: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return load(path, *args, **kwargs)
            except (OSError, ValueError) as error:
                if not rows and isinstance(error, OSError):
                    guesses.lack_data()
                    raise _with_way_out(error, f"data set {path}") from error
                if not rows:
                    raise
                guesses.assume(DATA_SET, f"the rows of {rows}", str(kwargs.get("data_files") or path))
                asked = {"split": _split(kwargs.get("split")), "streaming": kwargs.get("streaming", False)}
                found = load("json", data_files=dict.fromkeys(_SPLITS, rows), **asked)
                return found if asked["split"] else _with_any_split(found)

        module.load_dataset = load_dataset  # type: ignore[attr-defined]

    return change


def _with_any_split(parts: Any) -> Any:
    """The parts of a data set, of which one of another name (``train_sft``) is the first."""

    class Parts(type(parts)):  # type: ignore[misc]
        def __missing__(self, name: str) -> Any:
            return self[_SPLITS[0]]

    return Parts(parts)


def _image_weights(guesses: Guesses) -> Change:
    """timm makes a model with weights before it loads others into them (1.0.31 models/_builder.py)."""

    def change(module: ModuleType) -> None:
        load = module.load_pretrained

        def load_pretrained(model: Any, *args: Any, **kwargs: Any) -> None:
            try:
                load(model, *args, **kwargs)
            except OSError:
                guesses.assume("weights of a checkpoint", "those that timm begins with", type(model).__name__)

        module.load_pretrained = load_pretrained  # type: ignore[attr-defined]

    return change


def _metrics(guesses: Guesses) -> Change:
    """A metric of the package evaluate is code of the Hub, which computes on the host."""

    def change(module: ModuleType) -> None:
        load = module.load

        def load_metric(path: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return load(path, *args, **kwargs)
            except OSError:
                guesses.assume("a metric that is not here", "always 0", str(path))
                return _NoMetric()

        module.load = load_metric  # type: ignore[attr-defined]

    return change


class _NoMetric:
    """What programs call of a metric; every number that they look for is 0."""

    def add(self, **_: Any) -> None:
        """One prediction."""

    add_batch = add

    def compute(self, **_: Any) -> dict[str, float]:
        """Numbers by name."""
        return defaultdict(float)


def _split(asked: Any) -> str | None:
    """A part of the rows as ``load_dataset`` names it (``train[:5%]``); one of another name is all rows."""
    if asked is None:
        return None
    name, bracket, rest = str(asked).partition("[")
    return f"{name if name in _SPLITS else _SPLITS[0]}{bracket}{rest}"
