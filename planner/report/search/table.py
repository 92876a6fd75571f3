"""One table of recipes, with the columns that tell them apart."""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.hardware import Hardware
from planner.domain.recipes.optimizers import OPTIMIZER_FACTS
from planner.domain.scenario import Scenario
from planner.report.render.layout import Column, Grid, Row
from planner.report.render.numbers import chance_text, gib, rate
from planner.searching.recipes.answer import FoundRecipes
from planner.searching.recipes.attempt import Tried
from planner.units import KILO, format_seconds, plain_number

USD_PER_THOUSAND = "USD/1000"
"""Title of the column of costs where the length of the run is not given."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A recipe with the number that table and commands know it by."""

    number: int
    tried: Tried


def recipe_grid(answer: FoundRecipes, shown: list[Shown]) -> Grid:
    """The recipes of one way of training.
    Columns that say the same of every recipe of the search are left out.
    """
    varied = {name for name, _ in answer.tried}
    first = shown[0].tried.scenario
    host = first.hardware.host.memory_bytes is not None or any(
        _moves_state(each.tried.scenario) for each in shown
    )
    lengths = answer.solved == "seq"
    columns = {
        "number": Column("#", "right"),
        "place": Column("GPUs", whole=True) if "GPUs" in varied else None,
        "length": Column("length", "right") if lengths else None,
        "batch": Column("batch", whole=True),
        "recipe": Column("recipe"),
        "pace": Column("tokens/s" if lengths else "samples/s", "right"),
        "time": Column("step" if first.run.n_samples is None else "run", "right", wide_only=True),
        "peak": Column("peak GiB", "right"),
        "chance": Column("chance", "right"),
        "host": Column("host GiB", "right", wide_only=True) if host else None,
        "usd": _usd_column(first),
    }
    kept = {name: column for name, column in columns.items() if column is not None}
    cells = [(each, _cells(each, lengths)) for each in shown]
    return Grid(tuple(kept.values()), tuple(Row(tuple(each[name] for name in kept)) for _, each in cells))


def place_text(hardware: Hardware) -> str:
    """``h100-sxm:8``, or ``4 x h100-sxm:8`` for four nodes."""
    nodes = f"{hardware.nodes} x " if hardware.nodes > 1 else ""
    return f"{nodes}{hardware.gpu.id}:{hardware.gpus_per_node}"


def recipe_text(scenario: Scenario) -> str:
    """What of a recipe a search varies, in a few words."""
    recipe, defaults = scenario.recipe, scenario.stack.defaults_over(scenario.recipe.numerics.quantization)
    parts: list[str] = [recipe.sharding.name] if recipe.sharding.communicates else []
    # Lines may end between words alone.
    parts += [] if recipe.offload == "none" else [f"offload {recipe.offload.replace('+', ' + ')}"]
    parts.append("checkpointing" if recipe.gradient_checkpointing else "no checkpointing")
    parts += [] if recipe.loss == "hf" else [f"{recipe.loss} loss"]
    parts += [] if recipe.attention == defaults.attention else [recipe.attention]
    parts += [] if recipe.optimizer == defaults.optimizer else [recipe.optimizer]
    return ", ".join(parts)


def _moves_state(scenario: Scenario) -> bool:
    return scenario.recipe.offloads_something or OPTIMIZER_FACTS[scenario.recipe.optimizer].paged


def _usd_column(scenario: Scenario) -> Column | None:
    if scenario.run.usd_per_gpu_hour is None:
        return None
    return Column("USD" if scenario.run.n_samples is not None else USD_PER_THOUSAND, "right")


def _cells(shown: Shown, lengths: bool) -> dict[str, str]:
    tried = shown.tried
    prediction, batch, time = tried.prediction, tried.scenario.recipe.batch, tried.prediction.time
    accum = "" if batch.grad_accum == 1 else f" x {plain_number(batch.grad_accum)}"
    pace = None if time is None else time.tokens_per_s if lengths else time.samples_per_s
    chance = prediction.fits_probability
    return {
        "number": str(shown.number),
        "place": place_text(tried.scenario.hardware),
        "length": plain_number(batch.seq_len),
        "batch": f"{plain_number(batch.micro_batch)}{accum}",
        "recipe": recipe_text(tried.scenario),
        "pace": "unknown" if pace is None else rate(pace),
        "time": _time_text(tried),
        "peak": gib(prediction.memory.driver_peak_bytes),
        "chance": "unknown" if chance is None else chance_text(chance),
        "host": gib(prediction.host.required_per_node_bytes),
        "usd": _usd_text(tried),
    }


def _time_text(tried: Tried) -> str:
    time = tried.prediction.time
    seconds = (
        None if time is None else time.step_s if tried.scenario.run.n_samples is None else time.run_time_s
    )
    return "unknown" if seconds is None else format_seconds(float(seconds))


def _usd_text(tried: Tried) -> str:
    """Cost of the run, or of a thousand samples where its length is not given."""
    time, each = tried.prediction.time, tried.sample_usd
    whole = None if time is None or time.cost_usd is None else float(time.cost_usd)
    usd = whole if tried.scenario.run.n_samples is not None else None if each is None else KILO * each
    return "unknown" if usd is None else f"{usd:,.2f}"
