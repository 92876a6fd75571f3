"""The answer of a search as sections: what fits, the recipes of each way of training,
the commands to copy, what was tried.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator

from planner.report.prediction.advice import lever_choices
from planner.report.prediction.subject import EXIT_CODES, rests_on_unknown_host
from planner.report.render.layout import Column, Commands, Grid, Note, Row, Section, Tone
from planner.report.render.numbers import chance_text, gib, percent, rate, whole_percent
from planner.report.search.table import USD_PER_THOUSAND, Shown, place_text, recipe_grid
from planner.searching.recipes.answer import FoundRecipes, OtherStack, Quantity, RecipeGroup
from planner.searching.recipes.attempt import Tried, state_of
from planner.searching.recipes.solve import pace, size_of
from planner.units import format_count, plain_number
from planner.words import words

_COMMAND_WIDTH = 78
_MOST_LISTED = 8
# Settings that change what is trained; what was taken for them without being given is printed.
_UNSAID = words("seq lora_rank lora_targets precision load_dtype padding tokens_per_sample grad_accum stack")
_HEADS: dict[str, tuple[str, Tone]] = {
    "fits": ("FITS", "good"),
    "does_not_fit": ("NOTHING FITS", "bad"),
    "uncertain": ("UNCERTAIN", "warn"),
    "host_memory_short": ("HOST RAM TOO SMALL", "bad"),
    "no_verdict": ("NO VERDICT", "warn"),
}


def search_sections(answer: FoundRecipes) -> tuple[Section, ...]:
    """All sections of one search, in reading order, empty ones left out."""
    numbered = _numbered(answer)
    rows = [each for group in numbered for each in group]
    sections = (
        _head(answer, [each.tried for each in rows]),
        *(
            _group(answer, group, shown)
            for group, shown in zip(answer.groups, numbered, strict=True)
            if not group.refused
        ),
        _refused(answer),
        _commands(rows),
        _levers(answer),
        _tried(answer, [each.tried for each in rows]),
        _warnings(rows),
    )
    return tuple(section for section in sections if section.blocks)


def rows_of(group: RecipeGroup) -> tuple[Tried, ...]:
    """The recipes of a group that are shown: those that were chosen, or the nearest miss."""
    return group.rows if group.nearest is None else (group.nearest,)


def exit_code(answer: FoundRecipes) -> int:
    """Exit code of the best recipe."""
    return int(EXIT_CODES[answer.verdict])


def _numbered(answer: FoundRecipes) -> list[list[Shown]]:
    count = 0
    found: list[list[Shown]] = []
    for group in answer.groups:
        # As in the headline, what needs no host RAM is first.
        rows = sorted(rows_of(group), key=lambda tried: answer.solved is not None and tried.offloads)
        found.append([Shown(count + index, tried) for index, tried in enumerate(rows, 1)])
        count += len(rows)
    return found


def _head(answer: FoundRecipes, rows: list[Tried]) -> Section:
    word, tone = _HEADS[answer.verdict]
    if answer.n_fit and all(map(_rests_on_host, (tried for group in answer.groups for tried in group.rows))):
        word, tone = "FITS IF HOST RAM SUFFICES", "warn"
    sure = f"a chance to fit of at least {100 * answer.confidence:g} %"
    if all(tried.prediction.fits_probability is None for tried in rows):
        sure = "a point estimate below the limit" if answer.verdict != "no_verdict" else "a limit to judge by"
    if answer.verdict == "host_memory_short":
        sure += " and the host RAM that they need"
    counted = f"{answer.n_fit:,} of {answer.n_tried:,} recipes that were tried have {sure}"
    model = rows[0].scenario.model
    cards = dict.fromkeys(place_text(tried.scenario.hardware) for tried in rows)
    about = f"{model.id} ({format_count(model.param_count)} parameters) on {', '.join(cards)}"
    if number := _only_number(answer):
        counted, about = number, f"{about}; {counted}"
    notes = [Note(f"{word}: {counted}", tone), Note(about)]
    notes += (
        [Note(_other_stack(answer, answer.other_stack), "strong")] if answer.other_stack is not None else []
    )
    notes += [Note(text, "warn") for text in answer.notes]
    run = rows[0].scenario.run
    if run.usd_per_gpu_hour is not None and run.n_samples is None:
        notes.append(Note(f"{USD_PER_THOUSAND}: US dollars for a thousand samples.", "dim"))
    return Section("", tuple(notes))


def _only_number(answer: FoundRecipes) -> str:
    """The number that was asked for, where there is one way of training to ask it of."""
    if answer.solved is None or len(answer.groups) != 1 or not answer.groups[0].n_fit:
        return ""
    (note,) = _solved(answer, answer.groups[0])
    return note.text


def _other_stack(answer: FoundRecipes, other: OtherStack) -> str:
    """What the best stack that was not asked for would do, as it is by default, beside what was found."""
    tried, found = other.tried, other.found
    recipe = f"--stack {tried.scenario.stack.id} --method {tried.flags['method']}"
    if answer.solved is not None:
        size = size_of(answer.solved)
        here = "nothing fits" if found is None else f"{plain_number(size(found))} fits"
        more = f"fits {answer.solved} {plain_number(size(tried))}"
        return f"Other software, with its defaults: {recipe} {more}; here {here} without offload."
    pace_text = (
        ""
        if tried.prediction.time is None
        else f" trains {rate(tried.prediction.time.samples_per_s)} samples/s"
    )
    was = (
        ""
        if found is None or found.prediction.time is None
        else f" instead of {rate(found.prediction.time.samples_per_s)}"
    )
    batch = f"micro-batch {plain_number(tried.scenario.recipe.batch.micro_batch)}"
    uses = f"{gib(tried.prediction.memory.driver_peak_bytes)} GiB"
    fits = "" if found is not None else " fits and" if pace_text else " fits"
    return f"Other software: {recipe}{fits}{pace_text}{was} ({batch}, {uses})."


def _group(answer: FoundRecipes, group: RecipeGroup, shown: list[Shown]) -> Section:
    if group.nearest is not None:
        judged = group.nearest.prediction.verdict != "no_verdict"
        title = f"none of {group.n_tried:,} fits" if judged else f"no verdict on {group.n_tried:,}"
        blocks: tuple[Note | Grid, ...] = (
            Note(_miss(group.nearest, answer.confidence)),
            recipe_grid(answer, shown),
        )
        return Section(f"{group.title}: {title}", blocks)
    host = () if answer.solved is not None else _host(group)
    number = () if _only_number(answer) else _solved(answer, group)
    blocks = (*number, *host, recipe_grid(answer, shown))
    return Section(f"{group.title}: {group.n_fit:,} of {group.n_tried:,} fit", blocks)


def _rests_on_host(tried: Tried) -> bool:
    return rests_on_unknown_host(tried.scenario, tried.prediction)


def _host(group: RecipeGroup) -> tuple[Note, ...]:
    """What has to be true of a host of which nobody told how much RAM it has."""
    needs = sorted(
        float(each.prediction.host.required_per_node_bytes) for each in group.rows if _rests_on_host(each)
    )
    if not needs:
        return ()
    sizes = " to ".join(dict.fromkeys(map(gib, (needs[0], needs[-1]))))
    text = f"Offload needs {sizes} GiB of RAM on a node; --host-memory says how much it has."
    return (Note(text, "warn"),)


def _refused(answer: FoundRecipes) -> Section:
    """Ways of training of which every recipe breaks a rule, by the rule."""
    found: dict[str, list[str]] = {}
    for group in answer.groups:
        if group.refused:
            found.setdefault(group.refused, []).append(group.title)
    notes = tuple(Note(f"{'; '.join(titles)}: {message}") for message, titles in found.items())
    return Section("Refused", notes)


_SOLVED: dict[Quantity, str] = {"batch": "largest micro-batch", "seq": "longest sequence"}


def _solved(answer: FoundRecipes, group: RecipeGroup) -> tuple[Note, ...]:
    """The number that was asked for, with its chance, and how it is with the next one."""
    if answer.solved is None:
        return ()
    if answer.solved == "gpus":
        return (Note(_fewest(group), "strong"),)
    size, first = size_of(answer.solved), group.rows[0]
    text = f"{_SOLVED[answer.solved]}: {plain_number(size(first))}{_chance(first)}"
    if first.offloads:
        plain = next((each for each in group.rows if not each.offloads and each.place == first.place), None)
        without = "none without offload" if plain is None else f"{plain_number(size(plain))}{_chance(plain)}"
        offloaded = f"with offload {plain_number(size(first))}{_chance(first)}, {_host_text(first)}"
        text = f"{_SOLVED[answer.solved]}: {without}; {offloaded}"
    if group.above is not None:
        text += (
            f". {plain_number(size(group.above))} would need {gib(group.above.need_bytes)} "
            f"GiB{_chance(group.above)}"
        )
    elif answer.solved == "seq" and size(first) == first.scenario.model.max_position_tokens:
        text += ". The model was made for no more; --beyond-context goes on"
    fastest = max(group.rows, key=pace)
    faster = (
        f" The fastest of what fits: {plain_number(size(fastest))}." if size(fastest) != size(first) else ""
    )
    return (Note(f"{text}.{faster}", "strong"),)


def _host_text(tried: Tried) -> str:
    return f"which needs {gib(tried.prediction.host.required_per_node_bytes)} GiB of host RAM in a node"


def _fewest(group: RecipeGroup) -> str:
    """The fewest GPUs, first those that need no host RAM beyond the usual."""
    first = group.rows[0]
    count = str(first.scenario.hardware.world_size)
    if not first.scenario.recipe.offloads_something:
        return f"fewest GPUs: {count}{_chance(first)}."
    plain = next((tried for tried in group.rows if not tried.scenario.recipe.offloads_something), None)
    without = (
        "none of the counts that were tried without offload"
        if plain is None
        else f"{plain.scenario.hardware.world_size}{_chance(plain)}"
    )
    return f"fewest GPUs: {without}; with offload {count}{_chance(first)}, {_host_text(first)}."


def _chance(tried: Tried) -> str:
    chance = tried.prediction.fits_probability
    return "" if chance is None else f" (chance {_edge_text(chance)})"


def _edge_text(chance: float) -> str:
    """A chance at the edge of what was asked for, which whole per cent would not tell apart, rounded down."""
    return percent(math.floor(1000 * chance) / 1000) if 0.01 < chance < 0.99 else chance_text(chance)


def _miss(nearest: Tried, confidence: float) -> str:
    memory = nearest.prediction.memory
    host = nearest.prediction.host
    chance = nearest.prediction.fits_probability
    need, limit = nearest.need_bytes, memory.limit_bytes
    state = state_of(nearest.prediction, confidence)
    if limit is None or state == "no_verdict":
        cuda = nearest.scenario.hardware.gpu.is_cuda
        why = "The card's limit is not known: say --gpu-memory." if cuda else "This is no CUDA device."
        return f"{why} The recipe that holds least needs {gib(need)} GiB{'' if cuda else ' on a CUDA card'}."
    if state == "host_memory_short":
        node, has = float(host.required_per_node_bytes), float(host.available_bytes or 0)
        return (
            f"The nearest needs {gib(node)} GiB of host RAM on a node, {gib(node - has)} GiB "
            "more than it has."
        )
    if state == "uncertain":
        sure = "" if chance is None else f"; the chance to fit is {_edge_text(chance)}"
        return f"The nearest needs {gib(need)} of the card's {gib(limit)} GiB{sure}."
    times = need / max(limit, 1)
    more = f"{whole_percent(times - 1)} more than" if times < 2 else f"{times:,.1f} times"
    return (
        f"The nearest needs {gib(need)} GiB, {gib(need - limit)} GiB too much: {more} the "
        f"card's {gib(limit)} GiB."
    )


def _commands(rows: list[Shown]) -> Section:
    lines = [
        line for each in rows for line in (f"# {each.number}", *wrapped(["plan", *each.tried.arguments]))
    ]
    return Section("The commands", (Commands(tuple(lines)),)) if lines else Section("", ())


def wrapped(words: list[str]) -> Iterator[str]:
    """A command in lines that a shell reads as one; a flag and its value stay together."""
    pieces: list[str] = []
    for word in map(shlex.quote, words):
        if pieces and pieces[-1].startswith("--") and " " not in pieces[-1] and not word.startswith("--"):
            pieces[-1] += f" {word}"
        else:
            pieces.append(word)
    line = pieces[0]
    for piece in pieces[1:]:
        if len(line) + len(piece) + 3 > _COMMAND_WIDTH:
            yield f"{line} \\"
            line = f"  {piece}"
        else:
            line += f" {piece}"
    yield line


def _levers(answer: FoundRecipes) -> Section:
    if answer.n_fit or answer.verdict == "no_verdict":
        return Section("", ())
    if not answer.levers:
        return Section(
            "What would make the nearest fit",
            (Note("None of the changes that were tried, alone or together, and no card of the catalog."),),
        )
    return Section("What would make the nearest fit", (lever_choices("", answer.levers, answer.verdict),))


def _tried(answer: FoundRecipes, rows: list[Tried]) -> Section:
    grid = Grid(
        (Column(""), Column("")),
        tuple(Row((name, _values_text(values))) for name, values in answer.tried),
    )
    found: dict[str, dict[str, None]] = {}
    for each in (each for tried in rows for each in tried.scenario.assumptions):
        if each.name in _UNSAID and each.is_assumed:
            # Nobody gave how long samples are, so they are as long as the longest.
            value = "length" if each.name == "tokens_per_sample" else each.value
            found.setdefault(each.name, {})[value] = None
    kept = [f"{name}={' or '.join(found[name])}" for name in _UNSAID if name in found]
    blocks: list[Grid | Note] = [grid] if grid.rows else []
    blocks += [Note(f"Defaults, not varied: {', '.join(kept)}.", "dim")] if kept else []
    if answer.n_refused:
        blocks.append(
            Note(f"{answer.n_refused:,} combinations that no library runs were left out (plan rules).", "dim")
        )
    return Section("What was tried", tuple(blocks))


def _values_text(values: tuple[str, ...]) -> str:
    """Numbers in order; of as many as a search for the largest tries, the first and the last."""
    if not all(value.isdecimal() for value in values):
        return ", ".join(values)
    ordered = sorted(values, key=int)
    return f"{ordered[0]} to {ordered[-1]}" if len(ordered) > _MOST_LISTED else ", ".join(ordered)


def _warnings(rows: list[Shown]) -> Section:
    """What the intake warns about, each with the numbers of the recipes,
    where it is not about all of them.
    """
    found: dict[str, list[str]] = {}
    for each in rows:
        for text in each.tried.warnings:
            found.setdefault(text, []).append(str(each.number))
    notes = []
    for text, numbers in found.items():
        about = "" if len(numbers) == len(rows) else f" about {', '.join(numbers)}"
        notes.append(Note(f"Warning{about}: {text}", "warn"))
    return Section("", tuple(notes))
