"""The answer of a search as sections: what fits, the recipes of each way of training, the commands to copy, what was tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.domain.hardware import Hardware
from planner.domain.scenario import Scenario
from planner.report.layout import Column, Commands, Grid, Note, Row, Section, Tone
from planner.report.numbers import gib, plain_number, rate, whole_percent
from planner.report.subject import EXIT_CODES
from planner.search.attempt import Tried, words_of
from planner.search.choose import Answer, Group
from planner.units import KILO, format_count, format_seconds

_COMMAND_WIDTH = 98
# Settings that change what is trained; what was taken for them without being said is printed.
_UNSAID = ("seq", "lora_rank", "lora_targets", "precision", "load_dtype", "padding", "tokens_per_sample", "grad_accum", "stack")
_HEADS: dict[str, tuple[str, Tone]] = {
    "fits": ("FITS", "good"),
    "does_not_fit": ("NOTHING FITS", "bad"),
    "uncertain": ("UNCERTAIN", "warn"),
    "host_memory_short": ("HOST RAM TOO SMALL", "bad"),
    "no_verdict": ("NO VERDICT", "warn"),
}


@dataclass(frozen=True, slots=True)
class Shown:
    """A recipe with the number that table and commands know it by."""

    number: int
    tried: Tried


def search_sections(answer: Answer) -> tuple[Section, ...]:
    """All sections of one search, in reading order, empty ones left out."""
    numbered = _numbered(answer)
    rows = [each for group in numbered for each in group]
    sections = (
        _head(answer, [each.tried for each in rows]),
        *(_group(answer, group, shown) for group, shown in zip(answer.groups, numbered, strict=True)),
        _commands(rows),
        _changes(answer),
        _tried(answer, [each.tried for each in rows]),
        _warnings([each.tried for each in rows]),
    )
    return tuple(section for section in sections if section.blocks)


def rows_of(group: Group) -> tuple[Tried, ...]:
    """The recipes of a group that are shown: those that were chosen, or the nearest miss."""
    return group.rows if group.nearest is None else (group.nearest,)


def exit_code(answer: Answer) -> int:
    """Exit code of the best recipe."""
    return int(EXIT_CODES[answer.verdict])


def command(tried: Tried, config: str | None = None) -> str:
    """The whole command that predicts this recipe, on one line."""
    return " ".join(["plan", *(f"--config {_quoted(config)}" for _ in (1,) if config), tried.flags_text])


def _quoted(text: str | None) -> str:
    import shlex

    return shlex.quote(text or "")


def _numbered(answer: Answer) -> list[list[Shown]]:
    count = 0
    found: list[list[Shown]] = []
    for group in answer.groups:
        rows = rows_of(group)
        found.append([Shown(count + index, tried) for index, tried in enumerate(rows, 1)])
        count += len(rows)
    return found


def _head(answer: Answer, rows: list[Tried]) -> Section:
    word, tone = _HEADS[answer.verdict]
    sure = f"P(fits) of at least {whole_percent(answer.confidence)}"
    if all(tried.prediction.fits_probability is None for tried in rows):
        sure = "a point estimate below the limit" if answer.verdict != "no_verdict" else "a limit that is known"
    notes = [Note(f"{word}: {answer.n_fit:,} of {answer.n_tried:,} recipes that were tried have {sure}", tone)]
    model = rows[0].scenario.model
    cards = dict.fromkeys(_place(tried.scenario.hardware) for tried in rows)
    notes.append(Note(f"{model.id} ({format_count(model.param_count)} parameters) on {', '.join(cards)}"))
    notes += [Note(text, "warn") for text in answer.notes]
    return Section("", tuple(notes))


def _place(hardware: Hardware) -> str:
    nodes = f"{hardware.nodes} x " if hardware.nodes > 1 else ""
    return f"{nodes}{hardware.gpu.id}:{hardware.gpus_per_node}"


def _group(answer: Answer, group: Group, shown: list[Shown]) -> Section:
    if group.refused:
        return Section(group.title, (Note(f"Refused: {group.refused}"),))
    if group.nearest is not None:
        return Section(f"{group.title}: none of {group.n_tried:,} fits", (Note(_miss(group.nearest)), _grid(answer, shown)))
    return Section(f"{group.title}: {group.n_fit:,} of {group.n_tried:,} fit", (_grid(answer, shown),))


def _miss(nearest: Tried) -> str:
    memory, host, chance = nearest.prediction.memory, nearest.prediction.host, nearest.prediction.fits_probability
    need, limit = nearest.need_bytes, memory.limit_bytes
    if limit is None:
        return f"The card's limit is not known: say --gpu-memory. The recipe that holds least needs {gib(need)} GiB."
    if need > limit:
        over = f"{gib(need - limit)} GiB ({whole_percent(need / max(limit, 1) - 1)}) more than the card's {gib(limit)} GiB"
        return f"The nearest needs {gib(need)} GiB at once, {over}."
    if nearest.prediction.verdict == "host_memory_short":
        node, has = float(host.required_per_node_bytes), float(host.available_bytes or 0)
        return f"The nearest needs {gib(node)} GiB of host RAM on a node, {gib(node - has)} GiB more than it has."
    sure = "" if chance is None else f"; P(fits) is only {whole_percent(chance)}"
    return f"The nearest needs {gib(need)} of the card's {gib(limit)} GiB at once{sure}."


def _grid(answer: Answer, shown: list[Shown]) -> Grid:
    several_places = any(name == "GPUs" for name, _ in answer.tried)
    run = shown[0].tried.scenario.run
    columns = [Column("#", "right")]
    columns += [Column("GPUs", whole=True)] if several_places else []
    columns += [Column("batch", whole=True), Column("recipe"), Column("samples/s", "right")]
    columns += [Column("step" if run.n_samples is None else "run", "right"), Column("peak GiB", "right")]
    columns += [Column("P(fits)", "right"), Column("host GiB", "right")]
    if run.usd_per_gpu_hour is not None:
        columns.append(Column("USD" if run.n_samples is not None else "USD/1000", "right"))
    return Grid(tuple(columns), tuple(_row(each, several_places) for each in shown))


def _row(shown: Shown, several_places: bool) -> Row:
    tried = shown.tried
    scenario, prediction, batch = tried.scenario, tried.prediction, tried.scenario.recipe.batch
    time, chance = prediction.time, prediction.fits_probability
    accum = "" if batch.grad_accum == 1 else f" x {plain_number(batch.grad_accum)}"
    cells = [str(shown.number)]
    cells += [_place(scenario.hardware)] if several_places else []
    cells += [f"{plain_number(batch.micro_batch)}{accum}", recipe_text(scenario)]
    cells.append("unknown" if time is None else rate(time.samples_per_s))
    seconds = None if time is None else time.step_s if scenario.run.n_samples is None else time.run_time_s
    cells.append("unknown" if seconds is None else format_seconds(float(seconds)))
    cells.append(gib(prediction.memory.driver_peak_bytes))
    cells.append("unknown" if chance is None else whole_percent(chance))
    cells.append(gib(prediction.host.required_per_node_bytes))
    if scenario.run.usd_per_gpu_hour is not None:
        whole = None if time is None else time.cost_usd
        each = tried.sample_usd
        usd = whole if scenario.run.n_samples is not None else None if each is None else KILO * each
        cells.append("unknown" if usd is None else f"{float(usd):,.2f}")
    return Row(tuple(cells))


def recipe_text(scenario: Scenario) -> str:
    """What of a recipe a search varies, in a few words."""
    recipe, defaults = scenario.recipe, scenario.stack.defaults_over(scenario.recipe.numerics.quantization)
    parts = [] if recipe.sharding == "none" else [recipe.sharding]
    parts += [] if recipe.offload == "none" else [f"offload {recipe.offload}"]
    parts.append("checkpointing" if recipe.gradient_checkpointing else "no checkpointing")
    parts += [] if recipe.loss == "hf" else [f"{recipe.loss} loss"]
    parts += [] if recipe.attention == defaults.attention else [recipe.attention]
    parts += [] if recipe.optimizer == defaults.optimizer else [recipe.optimizer]
    return ", ".join(parts)


def _commands(rows: list[Shown]) -> Section:
    lines = [line for each in rows for line in (f"# {each.number}", *wrapped(["plan", *words_of(each.tried.flags)]))]
    return Section("The commands", (Commands(tuple(lines)),)) if lines else Section("", ())


def wrapped(words: list[str]) -> Iterator[str]:
    """A command in lines that a shell reads as one; a flag and its value stay together."""
    import shlex

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


def _changes(answer: Answer) -> Section:
    if answer.n_fit or answer.verdict == "no_verdict":
        return Section("", ())
    if not answer.changes:
        return Section("What would make the nearest fit", (Note("No change of it that is modelled, and no card of the catalog."),))
    columns = (Column("change"), Column("flags"), Column("step time"))
    rows = tuple(
        Row((each.description, each.flags, "unknown" if each.step_time_ratio is None else f"x {each.step_time_ratio:.2f}"))
        for each in answer.changes
    )
    return Section("What would make the nearest fit", (Grid(columns, rows),))


def _tried(answer: Answer, rows: list[Tried]) -> Section:
    grid = Grid((Column(""), Column("")), tuple(Row((name, ", ".join(values))) for name, values in answer.tried))
    found: dict[str, dict[str, None]] = {}
    for each in (each for tried in rows for each in tried.scenario.assumptions):
        if each.name in _UNSAID and each.origin.startswith(("assumed", "default:")):
            found.setdefault(each.name, {})[each.value] = None
    kept = [f"{name}={' or '.join(found[name])}" for name in _UNSAID if name in found]
    blocks: list[Grid | Note] = [grid] if grid.rows else []
    blocks += [Note(f"Not said and not varied: {', '.join(kept)}.", "dim")] if kept else []
    if answer.n_refused:
        blocks.append(Note(f"{answer.n_refused:,} combinations that no library runs were left out (plan rules).", "dim"))
    return Section("What was tried", tuple(blocks))


def _warnings(rows: list[Tried]) -> Section:
    texts = dict.fromkeys(text for tried in rows for text in (*tried.scenario.warnings, *tried.prediction.warnings))
    return Section("", tuple(Note(f"Warning: {text}", "warn") for text in texts))
