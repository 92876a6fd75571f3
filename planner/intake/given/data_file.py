"""Files of training samples: how many tokens each has.

A column of counts always works.  Text is counted with a ``tokenizer.json``,
which needs the package ``tokenizers``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from planner.domain.recipes.sample_lengths import SampleLengths
from planner.errors import InputFileError, UsageError, how_to_install
from planner.files.malformed import MalformedError
from planner.files.reading import Bounds, decoded, read_lines, read_text
from planner.files.structured import csv_cells, parse_json
from planner.intake.given.fields import MAX_SEQ_TOKENS
from planner.units import GIB, MIB

BOUNDS = Bounds(n_bytes=4 * GIB, line_bytes=16 * MIB, n_lines=20_000_000)
"""The most that is read of a data set."""
COUNT_COLUMNS = ("tokens", "n_tokens", "num_tokens", "token_count", "length", "lengths")
"""Names of a column of counts."""
_MAX_TOKENIZER_BYTES = 64 * MIB
_ENCODED_AT_ONCE = 1_000
_COUNT_DIGITS = 10
# What a sample is made of, in its order.
_TEXTS = ("system", "messages", "conversations", "text", "instruction", "input", "prompt", "question",
    "completion", "output",
          "response", "answer")  # fmt: skip
_WITHOUT_TEMPLATE = "tokens of a chat template and special tokens are not counted"


@dataclass(frozen=True, slots=True)
class ReadData:
    """Lengths of a data set, and a remark on how they were counted."""

    lengths: SampleLengths
    remark: str


def read_data(path: Path, tokenizer: Path | None = None) -> ReadData:
    """Lengths of the samples of a file, in tokens.

    Read are a number on each line, CSV with a column of :data:`COUNT_COLUMNS` (or one column), and JSONL
    whose rows have such a column, ``input_ids``, or text: ``text``, ``messages``, ``prompt`` and
    ``completion``, ``instruction`` and ``output``...  A row with ``chosen`` and ``rejected`` is two
    sequences.  Rows of no tokens are left out.

    Raises:
        InputFileError: not such a file, or no sample in it; names the line.
        UsageError: text without a tokenizer, or without the package that runs it.
    """
    lines = ((number, line) for number, line in enumerate(read_lines(path, BOUNDS), 1) if line.strip())
    first = next(lines, None)
    if first is None:
        raise InputFileError(path, "no samples in it")
    is_json = first[1].lstrip().startswith(b"{")
    samples = _json_samples(path, chain([first], lines)) if is_json else _column(path, chain([first], lines))
    counter = _Counter(path, tokenizer)
    table = SampleLengths.of(length for length in counter.count(samples) if length > 0)
    if not table.n_sequences:
        raise InputFileError(path, "no samples in it")
    remark = f"; {_WITHOUT_TEMPLATE}" if counter.met_text else ""
    return ReadData(table, f"{table.n_sequences:,} sequences{remark}")


class _Counter:
    """Counts of samples that are counts already or text; ``met_text`` once there was one."""

    def __init__(self, path: Path, tokenizer: Path | None) -> None:
        self.path, self.tokenizer, self.met_text = path, tokenizer, False
        self._encode: Callable[[list[str]], list[int]] | None = None

    def count(self, samples: Iterable[int | str]) -> Iterator[int]:
        """Tokens of each sample; texts are encoded some at a time."""
        left = iter(samples)
        while part := list(islice(left, _ENCODED_AT_ONCE)):
            texts = [each for each in part if isinstance(each, str)]
            if texts:
                self.met_text = True
                self._encode = self._encode or _encoder(self.path, self.tokenizer)
                yield from self._encode(texts)
            yield from (each for each in part if isinstance(each, int))


def _encoder(path: Path, tokenizer: Path | None) -> Callable[[list[str]], list[int]]:
    if tokenizer is None:
        raise UsageError(
            f"{path} holds text: add --tokenizer FOLDER, where the model's tokenizer.json is, or give a "
            "token count on each line"
        )
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UsageError(
            f"counting tokens of text needs the package tokenizers: {how_to_install('data')}"
        ) from None
    file = tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer
    try:
        made = Tokenizer.from_str(read_text(file, _MAX_TOKENIZER_BYTES))
    except InputFileError:
        raise
    except Exception:  # noqa: BLE001 - the package raises Exception itself
        raise InputFileError(file, "not a tokenizer.json that the package tokenizers reads") from None
    made.no_truncation()
    made.no_padding()

    def encode(texts: list[str]) -> list[int]:
        return [len(each.ids) for each in made.encode_batch_fast(texts, add_special_tokens=False)]

    return encode


def _column(path: Path, lines: Iterator[tuple[int, bytes]]) -> Iterator[int]:
    """Counts of a file with one number a line, or of CSV with a header."""
    first = next(lines)
    head = csv_cells(decoded(path, first[1]))
    place = 0
    if head[0].isdigit():
        lines = chain([first], lines)
    else:
        names = [name.lower() for name in head]
        found = [names.index(name) for name in COUNT_COLUMNS if name in names]
        if not found:
            raise InputFileError(
                path, f"neither JSONL nor a column of token counts, called {COUNT_COLUMNS[0]}", first[0]
            )
        place = found[0]
    for number, line in lines:
        cells = csv_cells(decoded(path, line))
        yield _count_of(path, number, cells[place] if place < len(cells) else "")


def _count_of(path: Path, number: int, value: object) -> int:
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < _COUNT_DIGITS:
        text = int(text)
    if isinstance(text, bool) or not isinstance(text, int) or not 0 <= text <= MAX_SEQ_TOKENS:
        raise InputFileError(path, f"not a token count from 0 to {MAX_SEQ_TOKENS:,}", number)
    return text


def _json_samples(path: Path, lines: Iterator[tuple[int, bytes]]) -> Iterator[int | str]:
    for number, line in lines:
        try:
            row = parse_json(decoded(path, line))
        except MalformedError as error:
            raise InputFileError(path, f"not JSON on one line: {error.problem}", number) from None
        if not isinstance(row, Mapping):
            raise InputFileError(path, "a row that is no object", number)
        yield from _sequences(path, number, row)


def _sequences(path: Path, number: int, row: Mapping[str, Any]) -> Iterator[int | str]:
    """The sequences of one row: one, or a chosen and a rejected one."""
    column = next((name for name in COUNT_COLUMNS if name in row), None)
    if column is not None:
        yield _count_of(path, number, row[column])
    elif isinstance(row.get("input_ids"), Sequence):
        yield len(row["input_ids"])
    elif "chosen" in row and "rejected" in row:
        prompt = _text_of(row.get("prompt"))
        for answer in ("chosen", "rejected"):
            text = _text_of(row[answer])
            # Conversations of a pair repeat the prompt, single answers do not.
            yield text if not isinstance(row[answer], str) else prompt + text
    else:
        texts = [_text_of(row[name]) for name in _TEXTS if name in row]
        if not any(texts):
            raise InputFileError(
                path, f"a row without text or tokens; known are {', '.join(('input_ids', *_TEXTS))}", number
            )
        yield "".join(texts)


def _text_of(value: object) -> str:
    """A text, or those of a list of messages."""
    if isinstance(value, str):
        return value
    if not isinstance(value, Sequence):
        return ""
    messages = (message for message in value if isinstance(message, Mapping))
    return "".join(str(message.get("content") or message.get("value") or "") for message in messages)
