"""What the name of a model that nothing knows may have meant.

All entries are read for it: the index has no name as it is spelled.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import takewhile
from operator import eq, itemgetter

from planner.catalog.index import CatalogIndex
from planner.catalog.location import data_dir
from planner.catalog.refused_models import DRY_RUN, what_is
from planner.catalog.same_shape import (
    QUANTISED,
    RELEASED_IN_FP8,
    kin_of,
    names_other_modules,
    quantization_named,
    words_of,
)
from planner.errors import UnknownNameError, name_pattern
from planner.files.structured import read_toml

_MAX_NAME_CHARS = 200
_MOST = 3
_LETTERS, _ALIKE = re.compile(r"[a-z]*"), 0.75
_TYPING_ERROR, _FAR = 0.85, 0.4


def unknown_model(name: str, index: CatalogIndex, sizes: Iterable[str] = ()) -> UnknownNameError:
    """Says which known models may have been meant by ``name``: first those that it names as its base, then
    those whose names it begins, then those whose names share most words with it.
    """
    name = name[:_MAX_NAME_CHARS]
    begun = sorted(filter(name_pattern(name).match, index.ids), key=lambda each: (len(each), each))
    names = {each: entry_id for each, entry_id in _names(index.ids).items() if "/" not in each}
    names |= {each: each for each in sizes}
    chosen = {entry_id: entry_id for entry_id in (*kin_of(f"/{name}", index).model_ids, *begun)}
    for each in _sorted(name, names, index):
        chosen.setdefault(names[each], each)
    way_out = "give a Hub id (owner/name) or the path of a config.json"
    hint = f"plan models lists them; or {way_out}" if chosen else f"no known name is near it: {way_out}"
    return UnknownNameError("model", name, chosen.values(), hint, ordered=True)


def refusal_of(hub_id: str, index: CatalogIndex) -> str:
    """Why there is no prediction of ``hub_id`` whatever its ``config.json`` says, and what there is instead;
    "" where that is not known.
    """
    if what := what_is(hub_id):
        return f"model '{hub_id}' is {what}, of which there is no prediction; {DRY_RUN}"
    name = hub_id.partition("/")[2]
    if not RELEASED_IN_FP8.fullmatch(name):
        return ""
    twin = re.compile(rf"[^/]+/{re.escape(name)}(-BF16)?", re.IGNORECASE)
    wide = sorted(filter(twin.fullmatch, _names(index.ids)))
    way_out = f"; give {wide[0]}, whose weights are not" if wide else f"; {DRY_RUN}"
    return f"model '{hub_id}' is stored in fp8, of which there is no prediction{way_out}"


def way_out_of(hub_id: str, index: CatalogIndex) -> str:
    """What could be given instead of ``hub_id``, which could not be read: the model that was packed, or known
    ids that differ by a typing error; "" where there are none.
    """
    owner, _, name = hub_id.partition("/")
    if (unpacked := QUANTISED.sub("", name)) != name:
        bases = kin_of(f"{owner}/{unpacked}", index).model_ids
        asked = quantization_named(name)
        flag = f", with --quantization {asked}" if asked and asked != "aqlm" else ""
        return f"; or give {_entry(bases[0])['hub_id']}, the model that was packed{flag}" if bases else ""
    if names_other_modules(name, index):
        return ""
    ids = {each: entry_id for each, entry_id in _names(index.ids).items() if "/" in each}
    likeness = _likeness_to(hub_id)
    near = [each for each in _sorted(name, ids, index) if likeness(each) >= _TYPING_ERROR][:_MOST]
    return f"; nearest known: {', '.join(near)}" if near else ""


def _sorted(name: str, names: Iterable[str], index: CatalogIndex) -> list[str]:
    """``names`` whose family is spelled as that of ``name``, or nearly so: those with most of its words
    first, then those that begin with them, then by their letters.
    """
    split, likeness = words_of(index), _likeness_to(name)
    words, of_family = split(name), _likeness_to(_family(name))
    common = Counter(words)

    def rank(each: str) -> tuple[int, int, float]:
        bare = each.rpartition("/")[2]
        other = split(bare)
        begun = len(list(takewhile(bool, map(eq, words, other))))
        return -(common & Counter(other)).total(), -begun, -likeness(bare)

    alike = ((rank(each), each) for each in names if of_family(_family(each)) >= _ALIKE)
    return [each for key, each in sorted(alike, key=itemgetter(0)) if key < (0, 0, -_FAR)]


def _likeness_to(name: str) -> Callable[[str], float]:
    def likeness(other: str) -> float:
        return SequenceMatcher(None, name.lower(), other.lower()).ratio()

    return likeness


def _family(name: str) -> str:
    """The letters that ``name`` begins with, without its owner: of a bare size none."""
    found = _LETTERS.match(name.rpartition("/")[2].lower())
    return found[0] if found else ""


@lru_cache(maxsize=1)
def _names(ids: tuple[str, ...]) -> Mapping[str, str]:
    """Every name of the models as it is spelled, and its id."""
    return {name: entry_id for entry_id in ids for name in (entry_id, *_entry(entry_id).get("aliases", ()))}


def _entry(entry_id: str) -> Mapping[str, list[str]]:
    return read_toml(data_dir() / "models" / f"{entry_id}.toml")
