"""Lengths of the samples of a data set, and what bad files get."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.errors import InputFileError, UsageError
from planner.intake.given.data_file import read_data
from tests.extras import needs
from tests.files import written


def counted(tmp_path: Path, text: str) -> list[tuple[int, int]]:
    """(tokens, sequences) of a file with this text."""
    file = written(tmp_path, text, "data")
    table = read_data(file).lengths
    return [(round(tokens), count) for tokens, count in zip(table.tokens, table.counts, strict=True)]


@pytest.mark.parametrize(
    "text",
    [
        "10\n2000\n\n10\n",
        "id,tokens\na,10\nb,2000\nc,10\n",
        '{"input_ids": [0,1,2,3,4,5,6,7,8,9]}\n{"length": 2000}\n{"n_tokens": 10}\n',
    ],
)
def test_counts_are_read_from_lines_columns_and_rows(tmp_path: Path, text: str) -> None:
    """Three forms of the same counts."""
    assert counted(tmp_path, text) == [(10, 2), (2000, 1)]


def test_lengths_within_a_hundredth_share_a_row_that_keeps_their_mean(tmp_path: Path) -> None:
    """Rows are as wide as 1 % of their length; the longest has its own."""
    assert counted(tmp_path, "10000\n10010\n10020\n5\n") == [(5, 1), (10005, 2), (10020, 1)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no samples in it"),
        ("0\n0\n", "no samples in it"),
        ("12\n-3\n", r"data:2: not a token count"),
        ("12\n99999999999999999999\n", r"data:2: not a token count"),
        ("a,b\n1,2\n", "neither JSONL nor a column of token counts, called tokens"),
        ('{"length": 3}\n{"length": true}\n', r"data:2: not a token count"),
        ('{"length": 3}\n[1]\n', r"data:2: a row that is no object"),
        ('{"length": 3}\n{"length": \n', r"data:2: not JSON on one line"),
        ('{"image": 3}\n', r"data:1: a row without text or tokens"),
        ("[" * 100_000, "neither JSONL nor a column"),
    ],
)
def test_bad_files_end_in_a_sentence_that_names_the_line(tmp_path: Path, text: str, says: str) -> None:
    """Nothing else of the file is repeated."""
    with pytest.raises(InputFileError, match=says):
        counted(tmp_path, text)


def test_text_without_a_tokenizer_says_what_to_add(tmp_path: Path) -> None:
    """Text has no count of its own."""
    with pytest.raises(UsageError, match="add --tokenizer FOLDER"):
        counted(tmp_path, '{"text": "three words here"}\n')


@needs("tokenizers")
def test_text_is_counted_by_the_tokenizer_of_a_folder(tmp_path: Path) -> None:
    """Words of a tokenizer that knows words; a chosen and a rejected answer are two sequences."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.enable_truncation(2)
    made.save(str(tmp_path / "tokenizer.json"))
    rows = [
        {"text": "one two three"},
        {"messages": [{"role": "user", "content": "one two "}, {"role": "assistant", "content": "three"}]},
        {"prompt": "one two ", "chosen": "three four five", "rejected": "three"},
    ]
    file = written(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "rows.jsonl")
    read = read_data(file, tmp_path)
    assert (read.lengths.tokens, read.lengths.counts) == ((3.0, 5.0), (3, 1))
    assert "chat template" in read.remark


@needs("tokenizers")
def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    """JSON of another kind."""
    (tmp_path / "tokenizer.json").write_text('{"a": 1}', encoding="utf-8")
    (tmp_path / "rows.jsonl").write_text('{"text": "one"}\n', encoding="utf-8")
    with pytest.raises(InputFileError, match=r"tokenizer\.json: not a tokenizer"):
        read_data(tmp_path / "rows.jsonl", tmp_path)
