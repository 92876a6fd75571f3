"""A tokenizer of words, which stands in for one that is not there."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

N_WORDS = 1000
# For tokens that the program adds: those of the real tokenizer are among its rows already.
_ROOM = 64
_SPECIAL = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
# Those of encoders.
_OF_ENCODERS = {"cls_token": "<cls>", "sep_token": "<sep>", "mask_token": "<mask>"}
# Scripts whose words have no spaces between them: a sign is a token, or a whole row would be one.
_WITHOUT_SPACES = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
# A token with a meaning of its own, such as <|im_end|>, is one, as it is in the tokenizer that is not there.
_PIECES = r"<[^\s<>]+>|\w+|[^\w\s]+"
# The content of a message is a text, or a list of texts and images.
_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} "
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }} {% elif part['type'] == 'image' %}IMAGE{% endif %}"
    "{% endfor %}{% endif %} </s>{% endfor %}"
)


def tokenizer_of_words(
    padding_side: str, numbers: Mapping[str, int] | None = None, n_tokens: int = 0, image: str = ""
) -> Any:
    """Made of the classes that the program itself has loaded; known words are w0, w1, ...

    ``numbers``: of tokens with a meaning of their own.  ``n_tokens``: rows of the model's embedding; the
    tokenizer has almost as many, because some programs cut the embedding to its size.  ``image``: what the
    template writes for one.
    """
    transformers, tokenizers = sys.modules["transformers"], sys.modules["tokenizers"]
    words = [*_SPECIAL.values(), *(f"w{number}" for number in range(N_WORDS)), *_OF_ENCODERS.values()]
    # Without holes, which Transformers warns of one by one.
    taken = set((numbers or {}).values())
    n_words = max(max(taken, default=0) + 1, n_tokens - _ROOM)
    # Some classes of Transformers 5, such as Qwen2Tokenizer, spell a text with the words of its file, and
    # drop what they cannot spell.
    signs = [sign(byte) for byte in range(256)]
    words += [*signs, *(f"unused{number}" for number in range(len(words) + len(signs), n_words))][
        : max(0, n_words - len(words))
    ]
    vocabulary = {word: number for number, word in enumerate(words) if number not in taken} | dict(
        numbers or {}
    )
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=_SPECIAL["unk_token"]))
    split = tokenizers.pre_tokenizers
    by_sign = split.Split(tokenizers.Regex(_WITHOUT_SPACES), "isolated")
    by_piece = split.Split(tokenizers.Regex(_PIECES), "removed", invert=True)
    backend.pre_tokenizer = split.Sequence([by_sign, by_piece])
    if numbers:
        backend.add_special_tokens(list(numbers))
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, padding_side=padding_side, **_SPECIAL, **_OF_ENCODERS
    )
    made.chat_template = _TEMPLATE.replace("IMAGE", image)
    return made


def sign(byte: int) -> str:
    """How GPT-2 writes a byte in its lists: itself where it prints, else a letter beyond them all.

    Source: openai/gpt-2 src/encoder.py ``bytes_to_unicode``.
    """
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in printed:
        return chr(byte)
    return chr(256 + sum(other not in printed for other in range(byte)))
