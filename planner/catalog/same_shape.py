"""Copies and fine-tunes of a known model, told by their Hub id alone:
``NousResearch/Meta-Llama-3.1-8B-Instruct``.

An id counts as one of a known model only if it names the model's family, version and size, no second model or
size, and nothing that changes shapes or how weights are stored.  What is only likely, or fits two models, is
not taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from planner.catalog.index import CatalogIndex, fold_name
from planner.words import words

QUANTISED = re.compile(
    r"(?:^|[-_.])(gptq|bnb[-_]?4bit|bnb[-_]nf4|bnb|bitsandbytes|awq|aqlm|hqq|eetq|exl[23]|gguf|ggml|imatrix"
    r"|fp[468]|nvfp4\w*|w?mxfp[468]\w*|nf4|w[1-8]a(?:4|8|16)|w[1-8]g\d+|g(?:32|64|128)|int[48]"
    r"|[1-8](?:\.\d+)?-?bits?|\d+bpw|bpw\d+|[oi]?q[1-8](?:_\w+|f\d+\w*)?|1\.58|ternary|bitnet|dwq|mlc"
    r"|quip|e8p|auto[-_]?round|vptq|spqr|quarot|rtn|ptq|marlin|fbgemm|compressed[-_]tensors"
    r"|(?!dequant)\w*quant(?:s|ized)?|\w*qat)(?=$|[-_./])",
    re.IGNORECASE,
)
"""A word of an id that says that weights are stored quantised."""
_ASKED_AS = {"awq": "awq-int4", "gptq": "gptq-int4 or gptq-int8", "bnb": "nf4", "aqlm": "aqlm"}
_EIGHT = re.compile("int8|8-?bit|w8", re.IGNORECASE)

_WORD_WITH_VERSION = re.compile(r"([a-z]{3,})(\d+(?:\.\d+)*)")
_SIZE = re.compile(r"\d+(?:\.\d+)?[bm]|a\d+(?:\.\d+)?b|\d+x(?:\d+b?)?|\d+e")
# A learning rate, whose first half looks like a number of experts.
_RATE = re.compile(r"(?<=[-_])(?:\d\.)?\de-?\d{1,2}(?=$|[-_])", re.IGNORECASE)
_VERSION = re.compile(r"\d+(?:\.\d+)*")
_LATER = re.compile(r"v\d+(?:\.\d+)*")
# "Mistral-Small-3.1-24B" is not "mistral-small-24b".
_OTHER_VERSION = re.compile(r"\d+\.\d+")
_STORED: dict[str, Literal["fp32", "bf16", "fp16"]] = {
    "fp32": "fp32",
    "float32": "fp32",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
}
_IN_DTYPE = re.compile(rf"[-_.](?:{'|'.join(_STORED)})$", re.IGNORECASE)
# Said of a model whose own name says nothing: "gemma-2-9b-base" beside "gemma-2-9b-it".
_BASE = re.compile(r"[-_]base$", re.IGNORECASE)
# Sees or hears; has another head; is an adapter; has other layers, experts or attention; is a toy,
# or not for torch.
_OTHER_MODULES = frozenset({
    *("vl", "vlm", "vision", "llava", "omni", "audio", "speech", "voice", "video", "image", "ocr", "clip",
    "mm", "multimodal", "v", "siglip", "asr", "tts"),
    *("bunny", "cambrian", "cogvlm", "idefics", "mantis", "mplug", "owl", "ovis", "ultravox", "vila"),
    *("rm", "orm", "critic", "classifier", "classification"),
    *("retriever", "bge", "e5", "gme", "gte", "llm2vec"),
    *("lora", "qlora", "dora", "peft", "adapter", "adapters", "delta", "diff"),
    *("moe", "clown", "frankenmerge", "passthrough", "stacked", "upscaled", "expanded", "pro", "solar"),
    *("pruned", "prune", "sparse", "sheared", "shortened", "minitron", "slim", "layer"),
    *("layers", "depth", "width", "mamba", "hybrid", "linear", "rwkv"),
    *("h", "deep", "draft", "eagle", "eagle3", "medusa", "mla", "hydra", "speculator", "mtp"),
    *("tiny", "micro", "random", "dummy", "test", "debug", "mlx", "onnx", "openvino", "coreml", "llamafied",
    "llamafy"),
})  # fmt: skip
# Released in FP8 by their maker, which no word of the id says: so the cards of Ministral-3-*-Instruct-2512,
# beside which a -BF16 stands, and the config.json of Devstral-Small-2-24B-Instruct-2512 and of MiniMax-M2.
# The safetensors of Mistral-Medium-3.5-128B and Mistral-Small-4-119B-2603 hold matrices in F8_E4M3, and so do
# those of DeepSeek V3 and R1 (data/models/deepseek-v3.toml).
RELEASED_IN_FP8 = re.compile(
    r"(?:ministral-3|devstral-small-2)-\d+b-instruct-2512|minimax-m2(?:\.\d)?"
    r"|mistral-medium-3\.5-128b|mistral-small-4-119b-2603"
    r"|deepseek-v3(?:-base|-0324|\.1(?:-base|-terminus)?)?|deepseek-r1(?:-0528|-zero)?",
    re.IGNORECASE,
)
# Owners who publish a family with the modules of another one, or with a vocabulary of their own:
# https://huggingface.co/unsloth/Phi-3-mini-4k-instruct is a Mistral, hfl/chinese-llama-2-7b has 55,296 words,
# LinkSoul/Chinese-Llama-2-7b those of Llama 2.
_CONVERTED = frozenset({"unsloth/phi", "hfl/chinese"})
# Has another head: rewardmodel, prm800k, embeddings, reranker.
_OTHER_HEADS = ("reward", "prm", "embed", "rerank")
# Training for a language often enlarges the vocabulary; so do these makers and further training from scratch.
_OTHER_VOCABULARY = frozenset({
    *("vocab", "vocabulary", "extended", "tokenizer", "multilingual", "pretrain", "pretrained", "cpt", "unit",
    "units", "addtoken", "addtokens", "student", "teacher", "half", "sliced", "expand", "resize"),
    *("zh", "cn", "ja", "jp", "ko", "kor", "ar", "vi", "ru", "openbuddy", "ziya"),
})  # fmt: skip
_LANGUAGES = words(
    """
    chinese japan korea arabic hindi thai vietnam indonesia russia greek hebrew persian turkish polish dutch
    german french italian spanish portugu swedish finnish norwegian danish czech hungarian romanian bulgarian
    ukrain odia tamil telugu bengali malay filipino swahili
    """
)


@dataclass(frozen=True, slots=True)
class Kin:
    """The known models whose shape an id may have, the likeliest first,
    and the 16 or 32-bit dtype that the id itself names.

    Several models: the id does not say which, so that it counts only where all of them have the same shape.
    """

    model_ids: tuple[str, ...]
    stored: Literal["fp32", "bf16", "fp16"] | None


def kin_of(hub_id: str, index: CatalogIndex) -> Kin:
    """The models of ``index`` that ``hub_id`` may be a copy or a fine-tune of, as far as the id says;
    often none.

    A copy has the name of a known id under another owner, or that name and its dtype.  Any other id must hold
    the words of a catalog id: family, version and size, of which the first two stand together; or begin with
    the name of a known id.
    """
    if (known := index.find(hub_id)) is not None:
        return Kin((known,), None)
    owner, _, name = hub_id.partition("/")
    name = _RATE.sub("lr", name)
    words = words_of(index)(name)
    stored = {_STORED[word] for word in words if word in _STORED}
    converted = any(f"{owner.lower()}/{word}" in _CONVERTED for word in words)
    packed = QUANTISED.search(name) or QUANTISED.search(owner) or RELEASED_IN_FP8.fullmatch(name)
    if packed or converted or len(stored) > 1:
        return Kin((), None)
    plain = _IN_DTYPE.sub("", name)
    found = _copied(plain, index) or _copied(_BASE.sub("", plain), index) or _fine_tuned(words, index.ids)
    found = found or _begins_as(plain, index)
    return Kin(found, stored.pop() if stored else None)


def quantization_named(name: str) -> str:
    """What ``--quantization`` may say of a packed checkpoint of that name, whose groups and modules that were
    left whole no name says; empty for a kind that it cannot say.
    """
    found = QUANTISED.search(name)
    asked = _ASKED_AS.get(re.split("[-_4]", found[1].lower())[0], "") if found else ""
    return "" if asked in ("nf4", "awq-int4") and _EIGHT.search(name) else asked


def words_of(index: CatalogIndex) -> Callable[[str], tuple[str, ...]]:
    """What splits a name into words: ``Llama-3_1-8B`` into ``llama``, ``3.1`` and ``8b``."""
    return partial(_words, families=_families(index.ids))


def names_other_modules(name: str, index: CatalogIndex) -> bool:
    """Whether a word of ``name`` says that a model sees, hears or has another head than a known one."""
    return any(map(_is_other, words_of(index)(name)))


def _is_other(word: str) -> bool:
    return word in _OTHER_MODULES or word.startswith(_OTHER_HEADS)


def _copied(name: str, index: CatalogIndex) -> tuple[str, ...]:
    """Models known under ``name``, whoever the owner, of which those that an owner converted are no copy;
    a name without a number says too little.
    """
    folded = fold_name(name)
    if not re.search(r"\d", folded):
        return ()
    owned = (each for each in index.aliases.items() if not each[0].startswith(tuple(_CONVERTED)))
    return tuple({model_id: None for alias, model_id in owned if alias.rpartition("/")[2] == folded})


def _begins_as(name: str, index: CatalogIndex) -> tuple[str, ...]:
    """Models known under the longest beginning of ``name``, where nothing after it would change them or
    is a version: ``vicuna-7b-v1.5-my-data``.
    """
    families, ends = _families(index.ids), [found.start() for found in re.finditer("[-_]", name)]
    for end in reversed(ends):
        if found := _copied(name[:end], index):
            rest = _words(name[end:], families)
            other = any(_changes(word, families) or _LATER.fullmatch(word) for word in rest)
            other = other or RELEASED_IN_FP8.fullmatch(name[:end]) is not None
            return () if other or not rest or _VERSION.fullmatch(rest[0]) else found
    return ()


def _fine_tuned(words: Sequence[str], ids: Sequence[str]) -> tuple[str, ...]:
    """Models whose words ``words`` hold, with nothing beside that would change them.

    Of two the one that says more.  A known model that says still more than ``words`` (``gemma-2-9b-it``)
    may be meant, too.
    """
    families = _families(ids)
    bases = {model_id: _words(model_id, families) for model_id in ids}
    named = {
        each: base
        for each, base in bases.items()
        # A model that sees or ranks is meant only where the id says so.
        if any(map(_SIZE.fullmatch, base)) and not any(map(_is_other, {*base}.difference(words)))
    }
    found: dict[str, tuple[str, ...]] = {}
    for model_id, base in named.items():
        rest = _without(words, base)
        if rest is not None and not any(_changes(word, families) for word in rest):
            found[model_id] = base
    found = {
        each: base
        for each, base in found.items()
        if not any(set(base) < set(other) for other in found.values())
    }
    siblings = {
        each: None
        for each, base in named.items()
        for less in found.values()
        if _says_more(base, less) or _may_be_meant(base, less, words)
    }
    return (*found, *siblings)


def _says_more(base: Sequence[str], less: Sequence[str]) -> bool:
    """Whether ``base`` is ``less`` with further words, of the same family and version."""
    return base[:2] == less[:2] and set(base) > set(less)


def _may_be_meant(base: Sequence[str], less: Sequence[str], words: Sequence[str]) -> bool:
    """Whether ``base`` is a later version of ``less``, which has none, and ``words`` begin with another name.

    Those who name a model after themselves leave versions out: ``OpenR1-Qwen-7B`` is a Qwen2.5.
    """
    if words[0] == less[0] or any(map(_VERSION.fullmatch, less)):
        return False
    version = base[1:2] if base[:1] == less[:1] and base[2:] == less[1:] else ()
    return any(map(_VERSION.fullmatch, version))


def _changes(word: str, families: frozenset[str]) -> bool:
    """Whether ``word`` beside the name of a base says that shapes are not the base's."""
    if _SIZE.fullmatch(word) or word in families | _OTHER_MODULES | _OTHER_VOCABULARY:
        return True
    return word.startswith((*_OTHER_HEADS, *_LANGUAGES))


def _without(words: Sequence[str], base: Sequence[str]) -> list[str] | None:
    """``words`` less those of ``base``: the first two of it together,
    then the others in their order, with no other version between; ``None`` without one.
    """
    for start in range(len(words) - len(base) + 1):
        if list(words[start : start + 2]) != list(base[:2]):
            continue
        rest, wanted = list(words[:start]), list(base[2:])
        for word in words[start + 2 :]:
            if wanted and word == wanted[0]:
                wanted.pop(0)
            elif wanted and _OTHER_VERSION.fullmatch(word):
                break
            else:
                rest.append(word)
        if not wanted:
            return rest
    return None


def _families(ids: Iterable[str]) -> frozenset[str]:
    """The first word of each catalog id: ``llama``, ``qwen``, ``phi``."""
    return frozenset(_parted(re.split(r"[-_]", model_id.lower(), maxsplit=1)[0])[0] for model_id in ids)


def _words(name: str, families: frozenset[str]) -> tuple[str, ...]:
    """``Llama3.1-8B`` and ``Llama-3_1-8B`` -> ``llama``, ``3.1``, ``8b``."""
    words = [part for word in re.split(r"[-_\s]+", name.lower()) if word for part in _parted(word)]
    joined: list[str] = []
    for word in words:
        after_version = len(joined) > 1 and joined[-2] in families and _VERSION.fullmatch(joined[-1])
        if after_version and re.fullmatch(r"\d", word):
            joined[-1] += f".{word}"
        else:
            joined.append(word)
    return tuple(joined)


def _parted(word: str) -> tuple[str, ...]:
    """``llama3`` -> ``llama``, ``3``."""
    found = _WORD_WITH_VERSION.fullmatch(word)
    return (found[1], found[2]) if found else (word,)
