"""The generated parts of README and docs:
what stands between ``<!-- generated: KEY -->`` and ``<!-- end -->``.

``KEY`` is a command (``plan --model ...``), a command of whose report only some sections are shown
(``plan ... | sections A; B``), ``code above`` (the output of the Python block before it), or the name of a
table (``accuracy``, ``accuracy-summary``, ``longest``, ``other-accuracy``, ``held-out``, ``aims``,
``verdicts``, ``misses``...).
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from planner.catalog.location import data_dir
from planner.cli.main import main
from planner.units import GIB
from tests.accuracy.goals import percent_text
from tests.accuracy.longest import longest_table, stored_answers
from tests.accuracy.misses import Evidence, stored_misses
from tests.accuracy.other_tools import stored_other_tools
from tests.accuracy.published import CORE_PATTERN
from tests.accuracy.stored import stored_accuracy
from tests.docs.interval_tables import kinds_table, reliability_table, worth_table

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "against_libraries"))
WIDTH = 80
GENERATED = re.compile(r"(<!-- generated: (?P<key>.+?) -->\n)(?P<body>.*?)(<!-- end -->)", re.DOTALL)
CODE_BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_SECTIONS = " | sections "
_CUT_MARK = "[...]"

# What the examples call ./config.json: the shape of an 8B Llama 3.
EXAMPLE_CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
# What the examples call job.toml.
EXAMPLE_JOB = """\
# job.toml
model = "7b"
method = "qlora"
gpu = "4090"
seq = 1024
"""
# What the examples call train.yaml.
EXAMPLE_TRAIN = """\
# train.yaml, for LLaMA-Factory
model_name_or_path: meta-llama/Llama-3.1-8B
stage: sft
finetuning_type: lora
quantization_bit: 4
lora_rank: 16
dataset: notes
template: llama3
cutoff_len: 4096
packing: true
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
bf16: true
enable_liger_kernel: true
lerning_rate: 1.0e-4
output_dir: out
"""
DOCUMENTS = {
    "001_df5137ba138920bd": "Baichuan2, ChatGLM3, BLOOM on 3090 to H800",
    "002_2c959ab425c28846": "Qwen 1.8B to 72B on A100",
    "003_f83f083c0d8bebd6": "Llama 2 7B LoRA on one 3090",
    "004_7b2525496fac44af": "Qwen2.5 14B LoRA, four DeepSpeed stages",
}
_QUANTITIES = {"memory": "GPU memory", "throughput": "throughput", "host_memory": "host RAM"}


def pages() -> tuple[Path, ...]:
    """Every markdown file of the project that people read."""
    folders = ("", "docs", "planner", "data", "tests", "notebooks", "measure")
    found = [path for folder in folders for path in (ROOT / folder).glob("**/*.md" if folder else "*.md")]
    return tuple(
        sorted(
            {path for path in found if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)}
        )
    )


@dataclass(frozen=True)
class Answer:
    """What a command printed and the code it ended with."""

    code: int
    out: str
    err: str


@contextlib.contextmanager
def example_folder() -> Iterator[Path]:
    """A folder like the one in which the examples are typed: the data files, ``config.json``,
    ``job.toml`` and ``train.yaml``.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "job"
        folder.mkdir()
        (folder / "data").symlink_to(ROOT / "data", target_is_directory=True)
        (folder / "config.json").write_text(json.dumps(EXAMPLE_CONFIG), encoding="utf-8")
        (folder / "job.toml").write_text(EXAMPLE_JOB, encoding="utf-8")
        (folder / "train.yaml").write_text(EXAMPLE_TRAIN, encoding="utf-8")
        yield folder


@cache
def run_plan(command: str) -> Answer:
    """Run ``plan ...`` in this process, in :func:`example_folder`,
    as on a terminal of 80 columns without colours.
    """
    program, *arguments = shlex.split(command)
    if program != "plan":
        raise ValueError(f"not a plan command: {command}")
    out, err = io.StringIO(), io.StringIO()
    with (
        example_folder() as folder,
        _environment({"COLUMNS": str(WIDTH), "NO_COLOR": "1", "XDG_CONFIG_HOME": str(folder)}),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main(arguments)
    return Answer(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def updated(text: str) -> str:
    """A README's text with every generated part as it should be now."""

    def replace(match: re.Match[str]) -> str:
        return f"{match[1]}{generated(match['key'], text[: match.start()])}{match[4]}"

    return GENERATED.sub(replace, text)


def generated(key: str, before: str = "") -> str:
    """What belongs into the generated part ``key``; ``before`` is the text above it."""
    tables: dict[str, Callable[[], str]] = {
        "accuracy": accuracy_table,
        "other-accuracy": other_accuracy_table,
        "longest": longest_sequences,
        "accuracy-summary": accuracy_summary,
        "held-out": held_out_tables,
        "aims": aims_table,
        "verdicts": verdicts_table,
        "readings": readings_table,
        "anchors": anchors_table,
        "interval-weights": interval_weights,
        "kinds": kinds_table,
        "reliability": reliability_table,
        "worth": worth_table,
        "misses": misses_table,
        "other-tools": other_tools_table,
        "differential": differential_table,
    }
    if key in tables:
        return f"\n{tables[key]()}\n"
    if key == "code above":
        return _fenced(run_python(last_python_block(before)))
    command, _, titles = key.partition(_SECTIONS)
    answer = run_plan(command)
    if not answer.out:
        raise ValueError(f"'{command}' printed nothing: {answer.err}")
    return _fenced(_only(answer.out, titles.split("; ")) if titles else answer.out)


def _fenced(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```\n"


def _only(text: str, titles: list[str]) -> str:
    """The head of a report and its sections that begin with one of ``titles``;
    a mark stands where something is left out.
    """
    head, *sections = _split_sections(text)
    kept = [any(section.startswith(title) for title in titles) for section in sections]
    if sum(kept) != len(titles):
        raise ValueError(f"not every one of {titles} is a section of the report")
    parts = [head]
    for section, keep in zip(sections, kept, strict=True):
        if keep or parts[-1] != _CUT_MARK:
            parts.append(section if keep else _CUT_MARK)
    return "\n\n".join(part.strip("\n") for part in parts)


def _split_sections(text: str) -> list[str]:
    """What stands before the first heading, then each section;
    a heading is a line with a line of hyphens below it.
    """
    lines = text.split("\n")
    starts = [
        number for number in range(len(lines) - 1) if lines[number + 1] and set(lines[number + 1]) == {"-"}
    ]
    edges = [0, *starts, len(lines)]
    return ["\n".join(lines[start:end]) for start, end in pairwise(edges)]


def last_python_block(text: str) -> str:
    """The last Python block of ``text``."""
    blocks = [match["text"] for match in CODE_BLOCK.finditer(text) if match["language"] == "python"]
    return blocks[-1]


def run_python(code: str) -> str:
    """What a Python block prints, run among the files of the examples."""
    out = io.StringIO()
    with example_folder() as folder, contextlib.chdir(folder), contextlib.redirect_stdout(out):
        exec(compile(code, "README", "exec"), {"__name__": "readme"})
    return out.getvalue()


@cache
def _scores(pattern: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        run_plan(f"plan validate data/published/{pattern} --calibration none --json").out
    )
    return document


def accuracy_table() -> str:
    """How wrong the predictions are on each of the four numbered documents, from ``plan validate``."""
    lines = [
        "| report | rows | GPU memory | throughput | host RAM | ran out: FITS | ran: DOES NOT FIT |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    scores = _scores(CORE_PATTERN)
    for score in (*scores["sources"], scores["overall"]):
        title = DOCUMENTS.get(score["source"], "**mean of the four**")
        name = "" if score["source"] == "overall" else f"`{score['source'][:3]}` "
        oom = score["oom"]
        errors = " | ".join(_error(score[quantity]) for quantity in _QUANTITIES)
        lines.append(
            f"| {name}{title} | {score['n_rows']} | {errors} | {oom['false_fit']} of {oom['n_oom']} | "
            f"{oom['false_oom']} of {oom['n_ok']} |"
        )
    return "\n".join(lines) + "\n"


def other_accuracy_table() -> str:
    """How wrong the predictions are on the other public sources, as ``data/accuracy.json`` has it."""
    lines = [
        "| source | not modelled | GPU memory | throughput | ran out: FITS | ran: DOES NOT FIT |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for source, each in stored_accuracy()["budget"]["documents"].items():
        if source not in DOCUMENTS:
            errors = (each.get(f"{name}_mape") for name in ("memory", "throughput"))
            memory, throughput = ("" if error is None else f"{100 * error:.1f} %" for error in errors)
            counts = " | ".join(str(each.get(name, "")) for name in ("false_fit", "false_oom"))
            lines.append(
                f"| `{source}` | {each.get('not_modelled', '')} | {memory} | {throughput} | {counts} |"
            )
    return "\n".join(lines) + "\n"


def held_out_tables() -> str:
    """Errors by source, method and GPU, as ``data/accuracy.json`` has them."""
    stored = stored_accuracy()
    facts = (
        f"Made on {stored['date']} from {stored['rows']} published rows of {stored['groups']} source "
        f"groups, with {stored['free_numbers']} fitted numbers. Errors are means of absolute values, "
        "rounded up at the second digit."
    )
    tables = (("documents", "source"), ("methods", "method"), ("gpus", "GPU"))
    return "\n\n".join((facts, *(_held_out(stored[part], title) for part, title in tables))) + "\n"


def aims_table() -> str:
    """The aims that are missed, as ``data/accuracy.json`` has them."""
    return f"{_missed(stored_accuracy()['goals'])}\n"


def verdicts_table() -> str:
    """Held-out verdicts beside what happened, by source."""
    return _verdict_counts(stored_accuracy()["documents"]) + "\n"


def readings_table() -> str:
    """Held-out errors under the other reading of what a source left open."""
    return _worst(stored_accuracy()["documents"]) + "\n"


def anchors_table() -> str:
    """Errors of time by source group, before and after one of its rows is known."""
    lines = ["| source group | timed rows | held out | one row known |", "|---|--:|--:|--:|"]
    lines += [
        f"| `{group}` | {gain['n']} | {_share(gain['before'])} | {_share(gain['after'])} |"
        for group, gain in stored_accuracy()["anchors"].items()
    ]
    return "\n".join(lines) + "\n"


def interval_weights() -> str:
    """How much each cause of scatter counts in the intervals that ship."""
    return _scale(stored_accuracy()["scale"]) + "\n"


# Lines of the README's short table: title, then the goals of four reports and of other sources that it shows.
_SUMMARY = (
    (
        "GPU memory, mean error",
        "seeds, peak memory, mean error",
        "other grade-A sources, peak memory, macro-average",
    ),
    (
        "time of a step, mean error",
        "seeds, throughput, mean error, without offload",
        "other grade-A sources, throughput, macro-average",
    ),
    (
        "GPU memory, median half-width of the 90 % interval",
        "seeds, memory, median half-width",
        "other sources, memory, median half-width",
    ),
    (
        "time, median half-width of the 90 % interval",
        "seeds, time, median half-width",
        "other sources, time, median half-width",
    ),
)


def accuracy_summary() -> str:
    """The held-out figures that matter most to a user, from ``data/accuracy.json``."""
    goals = {goal["title"]: goal for goal in stored_accuracy()["goals"] if goal["fit"] == "held out"}
    lines = ["| held out | four tuning reports | other sources |", "|---|--:|--:|"]
    lines += [
        f"| {title} | {_reached(goals[ours])} | {_reached(goals[others])} |"
        for title, ours, others in _SUMMARY
    ]
    verdicts = stored_accuracy()["documents"].values()
    counts = {
        key: sum(int(each.get(key, 0)) for each in verdicts)
        for key in ("ran_out", "false_fit", "ran", "false_oom")
    }
    inside = {kind: _reached(goals[f"{kind}, inside the 90 % interval"]) for kind in ("memory", "time")}
    inside_words = (
        f"The 90 % intervals contained {inside['memory']} of memory readings and {inside['time']} of times."
    )
    out_words = (
        f"Of {counts['ran_out']} jobs that ran out of memory {counts['false_fit']} were answered FITS;"
    )
    ran_words = f"of {counts['ran']} that ran {counts['false_oom']} were answered DOES NOT FIT."
    return "\n".join([*lines, "", f"{inside_words} {out_words} {ran_words}", ""])


def _scale(scale: dict[str, float]) -> str:
    """How much each cause of scatter counts in an interval."""
    rows = (
        ("activations of a pass", "1"),
        ("bytes counted tensor by tensor", f"{scale['counted']:g}"),
        ("passes of unknown length", f"{scale['unknown_lengths']:g}"),
        ("the order of the samples", f"{scale['order']:g}"),
        ("a fixed part of every peak", f"{scale['fixed_bytes'] / GIB:g} GiB"),
        ("waiting for host and links, in a step", f"{scale['machine']:g} more"),
    )
    lines = ["| cause of scatter | weight |", "|---|--:|"]
    return "\n".join([*lines, *(f"| {cause} | {weight} |" for cause, weight in rows)])


def _missed(stored: list[dict[str, Any]]) -> str:
    """In words, how many aims are met, and which are not."""
    judged = [goal for goal in stored if "met" in goal]
    missed = [goal for goal in judged if not goal["met"]]
    head = f"**{len(judged) - len(missed)} of {len(judged)} aims are met.** Not met:"
    lines = [
        f"- {_named(goal)} ({goal['fit']}): {_share(goal['reached'])}, aimed at {goal['target']}"
        for goal in missed
    ]
    return "\n".join([head, "", *lines])


def _named(goal: dict[str, Any]) -> str:
    """The title of an aim in the words of the page."""
    words = (
        ("seeds, ", "four reports, "),
        ("said to fit", "answered FITS"),
        ("said not to fit", "answered DOES NOT FIT"),
    )
    title = str(goal["title"])
    for word, shown in words:
        title = title.replace(word, shown)
    return title


def _reached(goal: dict[str, Any] | None) -> str:
    return "" if goal is None else _share(goal["reached"])


def _verdict_counts(documents: dict[str, dict[str, float]]) -> str:
    """Held-out verdicts on GPU memory by source, where there is a run that any was given on."""
    lines = [
        "| source, held out | ran | of these DOES NOT FIT | ran out of memory | of these FITS | UNCERTAIN |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, figures in documents.items():
        if figures.get("ran", 0) + figures.get("ran_out", 0):
            cells = (figures[key] for key in ("ran", "false_oom", "ran_out", "false_fit", "uncertain"))
            lines.append(f"| `{name}` | {' | '.join(f'{each:g}' for each in cells)} |")
    return "\n".join(lines)


def _worst(documents: dict[str, dict[str, float]]) -> str:
    """Held-out errors where what only the table settled is read the other way."""
    lines = [
        "| source | memory, held out | read the other way | time, held out | read the other way |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, figures in documents.items():
        if "worst_reading_memory_mape" in figures:
            pairs = [
                figures.get(f"{kind}_{of}_mape")
                for of in ("memory", "throughput")
                for kind in ("held_out", "worst_reading")
            ]
            lines.append(f"| `{name}` | " + " | ".join(map(_share, pairs)) + " |")
    return "\n".join(lines)


_DATE = re.compile(r"\b20[12]\d-[01]\d(?:-[0-3]\d)?\b")


def _dated(source: str) -> str:
    """When a source's figures were published, as the locators of its rows say; empty where they do not."""
    with (ROOT / "data" / "published" / f"{source}.csv").open(encoding="utf-8", newline="") as file:
        dates = sorted(date for row in csv.DictReader(file) for date in _DATE.findall(row["locator"]))
    months = [date[:7] for date in dates[:1] + dates[-1:]]
    return " to ".join(dict.fromkeys(months))


def _held_out(table: dict[str, dict[str, float]], title: str) -> str:
    dated = title == "source"
    errors = "rows | {} unfitted | in-sample | **held out** |"
    lines = [
        f"| {title} |{' dated |' if dated else ''} {errors.format('memory')} {errors.format('time')}",
        f"|---|{'---|' if dated else ''}--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, figures in table.items():
        cells = [f"`{name}`"]
        for quantity in ("memory", "throughput"):
            cells.append(str(figures.get(f"n_{quantity}", "")))
            cells += [
                _share(figures.get(f"{fit}_{quantity}_mape")) for fit in ("unfitted", "in_sample", "held_out")
            ]
        if any(cells[1:]):
            lines.append("| " + " | ".join([cells[0], *([_dated(name)] if dated else []), *cells[1:]]) + " |")
    return "\n".join(lines)


def _share(value: float | None) -> str:
    return "" if value is None else percent_text(value).replace("%", " %")


def _error(summary: dict[str, Any] | None) -> str:
    if summary is None:
        return ""
    return f"{summary['mape']:.1%} ({summary['median_signed']:+.1%})".replace("%", " %")


def differential_table() -> str:
    """The program against the trace,
    as ``make differential`` found it for all cells of the differential matrix.
    """
    return (data_dir() / "differential" / "summary.md").read_text(encoding="utf-8")


def other_tools_table() -> str:
    """GPU memory errors of other estimators on the rows of the numbered documents that they speak of,
    and ours on these rows.
    """
    lines = [
        "| estimator | rows | its error (median) | ours, unfitted | asked about |",
        "|---|--:|--:|--:|---|",
    ]
    lines += [
        f"| {tool.name} | {tool.n_rows} | {tool.mape:.0%} ({tool.median_signed:+.0%}) | "
        f"{tool.ours_mape:.1%} | {tool.applies_to} |"
        for tool in stored_other_tools()
    ]
    return "\n".join(lines).replace("%", " %") + "\n"


def longest_sequences() -> str:
    """Longest sequences that Unsloth publishes beside ours, by the calibration that ships."""
    return longest_table(stored_answers())


def misses_table() -> str:
    """How many rows are predicted badly, and how many of these have a mechanism, tested or suspected."""
    stored = stored_misses()
    lines = [
        "| quantity | rows compared | far off | mechanism tested | mechanism suspected | unexplained |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for quantity, title in _QUANTITIES.items():
        found = stored_accuracy()["misses"][quantity]
        counts: Counter[Evidence] = Counter(none=len(found["unlisted"]))
        for group in stored.get(quantity, ()):
            counts[group.evidence] += len(set(group.rows) - set(found["recovered"]))
        evidence = " | ".join(str(counts[each]) for each in get_args(Evidence))
        lines.append(f"| {title} | {found['compared']} | {found['far_off']} | {evidence} |")
    return "\n".join(lines) + "\n"
