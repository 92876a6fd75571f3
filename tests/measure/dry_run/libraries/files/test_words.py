"""The tokenizer of words: how it divides a text."""

from __future__ import annotations

import pytest

from measure.dry_run.libraries.files.words import tokenizer_of_words
from tests.extras import import_or_skip

import_or_skip("tokenizers")
import_or_skip("transformers")


@pytest.mark.parametrize(
    ("text", "n_tokens"),
    [
        ("two words", 2),
        ("übergrößte Wörter", 2),
        # Han, Hiragana and Katakana, Hangul, Thai.
        ("今天天气很好", 6),
        ("テストです", 5),
        ("안녕하세요", 5),
        ("สวัสดี", 6),
        ("二 words 和 2 numbers", 5),
        ("GPU显存", 3),
        ("a <|im_end|>\n<s>.", 4),
        ("<｜end▁of▁sentence｜> <|end-of-text|></think>", 3),
        ("a<b and c>d", 7),
    ],
)
def test_a_sign_is_a_token_where_no_spaces_divide_words(text: str, n_tokens: int) -> None:
    """Or a row of Chinese would be one token long, and take next to no memory."""
    ids = tokenizer_of_words("right")(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == n_tokens
