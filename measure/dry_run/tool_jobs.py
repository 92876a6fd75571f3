"""A training file -> the command line of its tool, with rows of a known length in place of its data sets."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from planner.configs.launchers.command_line import started
from planner.configs.read import TOOLS, Tool, recognise
from planner.configs.tools.llama_factory.llama_factory_vision import sees_images
from planner.configs.yaml_or_json import Document, read_document
from planner.errors import NotModelledError, UsageError

FOLDER = "dry_run_stand_ins"
"""Where files that stand in for others lie, in the folder that the program sees."""
MICRO_STEPS = 2
"""To accumulate gradients over: the second finds what all later ones find."""
_ACCUMULATION = "gradient_accumulation_steps"
_WORDS = 1000
# As many rows as the steps of a dry run take, and never so few that a tool splits them to nothing.
_FEWEST_ROWS, _ROWS_PER_STEP = 32, 2
# Files, splits and places that lead to data, reports and copies elsewhere,
# and what depends on how an evaluation ends.
_EVALUATION = (
    "eval_strategy",
    "evaluation_strategy",
    "eval_steps",
    "eval_delay",
    "load_best_model_at_end",
    "metric_for_best_model",
)
_COPIES = ("push_to_hub", "hub_model_id", "resume_from_checkpoint")
_LEFT_OUT = {
    "llama-factory": (*_EVALUATION, *_COPIES, "eval_dataset", "val_size", "tokenized_path", "max_samples",
    "media_dir",
                      "streaming", "mix_strategy"),
    "trl": (*_EVALUATION, *_COPIES, "dataset_config", "dataset_name", "dataset_train_split",
    "dataset_test_split", "datasets",
            "dataset_mixture", "dataset_mixer", "dataset_splits", "dataset_configs"),
    "axolotl": (*_EVALUATION, *_COPIES, "evals_per_epoch", "val_set_size", "test_datasets",
    "early_stopping_patience",
                "dataset_prepared_path", "push_dataset_to_hub", "hub_strategy", "do_bench_eval",
                "bench_dataset", "datasets",
                "pretraining_dataset", "shuffle_merged_datasets", "dataset_processes", "dataset_num_proc"),
}  # fmt: skip
_REPORTS = (
    "wandb_",
    "use_wandb",
    "mlflow_",
    "use_mlflow",
    "comet_",
    "use_comet",
    "use_tensorboard",
    "trackio_",
    "use_trackio",
)
_LIMITS = {
    "llama-factory": ("cutoff_len", 2048),
    "trl": ("max_length", 1024),
    "axolotl": ("sequence_len", 2048),
}
_OLDER_LIMITS = {"llama-factory": (), "trl": ("max_seq_length",), "axolotl": ()}
_TRL_TASKS = ("sft", "dpo", "kto", "reward")
_PAIRS, _MARKED = ("dpo", "rm", "reward"), ("kto",)
# Keys of images that --check has no rows for.
_SEES = {"llama-factory": (), "trl": (), "axolotl": ("processor_type", "image_size")}
_PIXELS, _DEFAULT_PIXELS = ("image_max_pixels", "image_resolution"), 768 * 768
_PICTURE = "picture.pbm"
# Of each command made here, the program and its subcommand or script stand before the file.
_WORDS_OF_TOOL = 2
# The first evaluation of a run comes after many steps; the second step is like all that follow.
_AFTER_STEPS = 2
_EVALUATED = {"eval_strategy": "steps", "eval_steps": _AFTER_STEPS}
# The first and the last token, and one more where prompt and answer meet.
_ADDED_TOKENS = 4
_ROWS, _HELD_OUT = "rows", "held_out"


@dataclass(frozen=True, slots=True)
class ToolJob:
    """``files`` by name below the folder that the program sees; ``n_tokens``: of each row.

    ``n_micro_steps``: what the file accumulates over, where the dry run does over fewer; 0 where it does as
    the file says.  ``variables``: that the tool reads.  ``left_out``: key of what the dry run leaves out of
    an evaluation, because it would generate text; empty for nothing.  ``evaluates``: whether there is one.
    """

    command: tuple[str, ...]
    files: Mapping[str, str]
    n_tokens: int
    n_micro_steps: int = 0
    variables: Mapping[str, str] = field(default_factory=dict)
    left_out: str = ""
    evaluates: bool = False


@dataclass(frozen=True, slots=True)
class _Asked:
    """A file without what leads to data: its fields, and the rows that it gets; ``n_held_out``:
    0 where it does not evaluate.
    """

    path: Path
    fields: dict[str, Any]
    n_tokens: int
    n_rows: int
    n_held_out: int
    n_micro_steps: int
    of_handbook: bool

    def rows(self, count: int, columns: tuple[str, ...], prompt_share: int = 2, spared: int = 0) -> str:
        """Rows of words, of which the tool cuts off what is too much.

        The prompt is one part in ``prompt_share``.  ``spared`` words are left out,
        where a tool adds tokens and does not cut.
        """
        return _rows(max(self.n_tokens - spared, 1), count, columns, self.n_tokens // prompt_share)


def tool_job(path: Path, n_tokens: int | None = None, n_cards: int = 1) -> ToolJob:
    """The job of ``path`` as its own tool runs it.  ``n_tokens``: of each row;
    ``None`` for as many as the file lets through.

    Raises:
        InputFileError: the file cannot be read, or no tool can be told.
        NotModelledError: a tool that is not started yet, or a kind of training whose rows are not known.
        UsageError: the kind of training is not given.
    """
    document = read_document(path)
    return _job_of(document, recognise(document), n_tokens, n_cards)


def tool_job_of_command(words: Sequence[str], n_cards: int = 1) -> ToolJob:
    """The same of a command line that starts such a tool, whose launcher stays as it is.

    Raises:
        UsageError: no training is started, or its arguments cannot be read.
        InputFileError, NotModelledError: as :func:`tool_job`.
    """
    command = started(Path("the command"), shlex.join(words))
    # TRL's files do not say their trainer: the script's name does, and not the folder that it is in.
    document = Document(Path("/", Path(command.script).name), command.arguments)
    tool = TOOLS[command.tool] if command.tool else recognise(document)
    job = _job_of(document, tool, None, n_cards)
    start = command.words[: command.words.index(command.script) + 1]
    return replace(job, command=(*start, *job.command[_WORDS_OF_TOOL:]))


def _job_of(document: Document, tool: Tool, n_tokens: int | None, n_cards: int) -> ToolJob:
    path = document.path
    if tool.name not in _LIMITS:
        raise NotModelledError(
            f"a file of {tool.title} is not started by itself yet: give the whole command, measure trace "
            "--gpu 4090 -- COMMAND"
        )
    seen = next((key for key in _SEES[tool.name] if document.table.get(key)), None)
    if seen is not None:
        raise NotModelledError(
            f"{path} trains on images ({seen}), and --check lays rows of text: give the whole "
            "command after --"
        )
    asked = _asked(path, dict(document.table), tool.name, n_tokens, n_cards)
    return _MAKERS[tool.name](asked)


def _asked(path: Path, table: dict[str, Any], tool: str, n_tokens: int | None, n_cards: int) -> _Asked:
    fields = {
        key: value
        for key, value in table.items()
        if key not in _LEFT_OUT[tool] and not key.startswith(_REPORTS)
    }
    key, default = _LIMITS[tool]
    key = next((each for each in _OLDER_LIMITS[tool] if each in fields), key)
    length = n_tokens or _whole(fields.get(key), default)
    if n_tokens is not None and key in fields:
        fields[key] = max(n_tokens, _whole(fields[key], default))
    of_axolotl = tool == "axolotl"
    batch = _whole(
        fields.get("micro_batch_size" if of_axolotl else "per_device_train_batch_size"),
        1 if of_axolotl else 8,
    )
    evaluated = _whole(
        fields.get("eval_batch_size" if of_axolotl else "per_device_eval_batch_size"),
        batch if of_axolotl else 8,
    )
    accumulated, left_out = _whole(fields.get(_ACCUMULATION), 1), 0
    # A file of DeepSpeed may say it as well, and both have to agree.
    if accumulated > MICRO_STEPS and not fields.get("deepspeed"):
        fields[_ACCUMULATION], left_out, accumulated = MICRO_STEPS, accumulated, MICRO_STEPS
    count = batch * accumulated * _ROWS_PER_STEP * 2
    held_out = max(2 * evaluated, 8) * n_cards if _evaluates(table, tool) else 0
    rows = max(_FEWEST_ROWS, count) * n_cards
    return _Asked(
        path, fields, length, rows, held_out, left_out, isinstance(table.get("dataset_mixer"), dict)
    )


def _evaluates(table: Mapping[str, Any], tool: str) -> bool:
    """Whether the file evaluates while it trains; it then does so after the second step of a dry run."""
    strategy = table.get("eval_strategy") or table.get("evaluation_strategy") or "no"
    if tool == "axolotl":
        # Without rows there is nothing to evaluate,
        # and without steps or a strategy it never happens (core/builders/base.py).
        when = table.get("eval_steps") or table.get("evals_per_epoch") or strategy != "no"
        return bool(table.get("val_set_size") or table.get("test_datasets")) and bool(when)
    # The Trainers of LLaMA-Factory evaluate behind the training, and need rows for it, where this says so.
    return strategy != "no" or (tool == "llama-factory" and bool(table.get("do_eval")))


def _whole(value: Any, default: int) -> int:
    return value if isinstance(value, int) and value > 0 else default


def _llama_factory(asked: _Asked) -> ToolJob:
    stage = str(asked.fields.get("stage", "sft"))
    columns, ranking = {"prompt": "prompt", "response": "completion"}, False
    if stage == "pt":
        columns = {"prompt": "text"}
    elif stage in _PAIRS:
        columns, ranking = {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}, True
    elif stage in _MARKED:
        columns |= {"kto_tag": "label"}
    elif stage != "sft":
        raise NotModelledError(
            f"stage {stage} of LLaMA-Factory generates text, which a dry run cannot follow"
        )
    side = _side_of_images(asked.fields)
    if side:
        columns |= {"images": "images"}
    kept = tuple(columns.values())
    changed: dict[str, Any] = {
        "dataset": _ROWS,
        "dataset_dir": FOLDER,
        "output_dir": "dry_run_output",
        "report_to": "none",
    }
    changed |= {"do_train": True, "preprocessing_num_workers": 1}
    files = {f"{FOLDER}/{_ROWS}.jsonl": asked.rows(asked.n_rows, kept)}
    if side:
        files[f"{FOLDER}/{_PICTURE}"] = f"P1\n{side} {side}\n" + ("0" * side + "\n") * side
    if asked.n_held_out:
        changed |= {**_EVALUATED, "eval_dataset": _HELD_OUT}
        files[f"{FOLDER}/{_HELD_OUT}.jsonl"] = asked.rows(asked.n_held_out, kept)
    described = {
        name: {"file_name": f"{name}.jsonl", "columns": columns, "ranking": ranking}
        for name in (_ROWS, _HELD_OUT)
    }
    files[f"{FOLDER}/dataset_info.json"] = json.dumps(described)
    job = _job(("llamafactory-cli", "train"), asked, changed, files)
    # Without this it refuses DeepSpeed on one card (llamafactory 0.9.5 hparams/parser.py).
    return replace(job, variables={"FORCE_TORCHRUN": "1"}) if asked.fields.get("deepspeed") else job


def _side_of_images(fields: Mapping[str, Any]) -> int:
    """Pixels of the side of a square image as large as the file lets through;
    0 for a file that says nothing of images, and whose template is not for them either.

    Source: llamafactory 0.9.5 hparams/model_args.py, whose default is 768 x 768.
    """
    if any(fields.get(key) for key in _PIXELS):
        return math.isqrt(
            next(_whole(fields.get(key), _DEFAULT_PIXELS) for key in _PIXELS if fields.get(key))
        )
    sees = sees_images(fields.get("template"), [str(fields.get("dataset"))])
    return math.isqrt(_DEFAULT_PIXELS) if sees else 0


def _tasks_named(path: Path, tasks: tuple[str, ...]) -> list[str]:
    where = "/".join(path.resolve().parts[-2:]).lower()
    return [task for task in tasks if task in where]


def _trl(asked: _Asked) -> ToolJob:
    if asked.of_handbook:
        return _handbook(asked)
    named = _tasks_named(asked.path, _TRL_TASKS)
    if len(named) != 1:
        raise UsageError(
            "the file does not say which trainer of TRL it is for; name it: measure trace --gpu CARD -- "
            f"trl {_TRL_TASKS[0]} --config {asked.path} (or {', '.join(_TRL_TASKS[1:])})"
        )
    changed: dict[str, Any] = {
        "dataset_name": f"{FOLDER}/{_ROWS}",
        "output_dir": "dry_run_output",
        "report_to": "none",
    }
    columns = _TRL_COLUMNS[named[0]]
    files = {f"{FOLDER}/{_ROWS}/train.jsonl": asked.rows(asked.n_rows, columns)}
    if asked.n_held_out:
        changed |= _EVALUATED
        files[f"{FOLDER}/{_ROWS}/test.jsonl"] = asked.rows(asked.n_held_out, columns)
    return _job(("trl", named[0], "--config"), asked, {**changed, "max_length": asked.n_tokens}, files)


def _handbook(asked: _Asked) -> ToolJob:
    """A file of alignment-handbook by the script of its own that its name says.

    Rows are dialogues.  The prompt is as long as the file lets it be; ORPO's script leaves longer ones out.
    Source: alignment-handbook at ae3f44f scripts/run_sft.py, run_cpt.py, run_dpo.py, run_orpo.py,
    src/alignment/decontaminate.py; trl 0.12.1 trainer/dpo_trainer.py, orpo_trainer.py (``tokenize_row``).
    """
    named = _tasks_named(asked.path, tuple(_HANDBOOK_KINDS))
    if len(named) != 1:
        raise UsageError(
            f"the file does not say which script of alignment-handbook it is for: give the whole command, "
            f"-- python scripts/run_sft.py {asked.path}"
        )
    script = _handbook_script(f"run_{named[0]}.py")
    half = asked.n_tokens // 2
    prompt, spared = _whole(asked.fields.get("max_prompt_length"), half), 0
    if named[0] == "orpo":
        prompt, spared = min(prompt, half) - _TOKENS_OF_TURNS, _TOKENS_OF_TURNS
    kind, length = _HANDBOOK_KINDS[named[0]], asked.n_tokens - spared
    changed: dict[str, Any] = {
        "dataset_mixer": {f"{FOLDER}/{_ROWS}": 1.0},
        "dataset_splits": ["train", "test"],
        "preprocessing_num_workers": 1,
        "output_dir": "dry_run_output",
        "report_to": "none",
        **(_EVALUATED if asked.n_held_out else {}),
    }
    files = {
        f"{FOLDER}/{_ROWS}/{name}.jsonl": _dialogues(_rows(length, count, kind, prompt))
        for name, count in (("train", asked.n_rows), ("test", asked.n_held_out or _FEWEST_ROWS))
    }
    files["openai_humaneval/test.jsonl"] = json.dumps(_NO_ROW)
    return _job(("python", script), asked, changed, files)


def _handbook_script(name: str) -> str:
    """Where a script of the handbook lies, which is installed from its repository."""
    found = find_spec("alignment")
    folder = Path(found.origin).parents[2] if found and found.origin else Path()
    if not (folder / "scripts" / name).is_file():
        raise UsageError(
            f"{name} of alignment-handbook is not here: install its repository with pip install --editable, "
            f"or give the whole command, -- python scripts/{name} FILE"
        )
    return str(folder / "scripts" / name)


def _dialogues(rows: str) -> str:
    """The same rows with each pair of prompt and answer as the messages of a dialogue."""
    lines = []
    for line in rows.splitlines():
        row = json.loads(line)
        answers = {key: row.pop(key) for key in ("completion", "chosen", "rejected") if key in row}
        question = {"role": "user", "content": row.get("prompt", "")}
        turns = {key: [question, {"role": "assistant", "content": text}] for key, text in answers.items()}
        lines.append({**row, **turns})
        if "completion" in turns:
            lines[-1] = {"messages": turns["completion"]}
    return "".join(json.dumps(each) + "\n" for each in lines)


def _axolotl(asked: _Asked) -> ToolJob:
    """Rows of text are cut into pieces, and preferences at their answers.

    Source: axolotl 0.19.0 prompt_strategies/completion.py, utils/data/rl.py.
    """
    kind = str(asked.fields.get("rl") or ("reward model" if asked.fields.get("reward_model") else ""))
    if asked.fields.get("process_reward_model") or kind not in _AXOLOTL_COLUMNS:
        raise NotModelledError(
            f"--check has no rows for what {asked.path} trains: give the whole command after --"
        )
    columns, form = _AXOLOTL_COLUMNS[kind], {"type": "completion"} if not kind else {}
    if kind == "reward model":
        form = {"type": "bradley_terry.chat_template"}

    def described(name: str) -> list[dict[str, str]]:
        return [{"path": f"{FOLDER}/{name}.jsonl", "ds_type": "json", "split": "train", **form}]

    changed: dict[str, Any] = {
        "datasets": described(_ROWS),
        "val_set_size": 0,
        "output_dir": "dry_run_output",
        "dataset_num_proc": 1,
        _AXOLOTL_GENERATES: False,
    }
    changed |= {
        "dataset_prepared_path": "dry_run_prepared",
        **({"excess_length_strategy": "truncate"} if kind else {}),
    }
    # A prompt is never cut, and a word may be several tokens.
    # ORPO cuts what is too long to less than half (trl 1.9.0).
    cut = 8, _ADDED_TOKENS if kind == "orpo" else 0
    files = {f"{FOLDER}/{_ROWS}.jsonl": asked.rows(asked.n_rows, columns, *cut)}
    if asked.n_held_out:
        changed |= {"test_datasets": described(_HELD_OUT), "eval_steps": _AFTER_STEPS}
        files[f"{FOLDER}/{_HELD_OUT}.jsonl"] = asked.rows(asked.n_held_out, columns, *cut)
    job = _job(("axolotl", "train"), asked, changed, files)
    generates = asked.n_held_out and asked.fields.get(_AXOLOTL_GENERATES)
    return replace(job, left_out=_AXOLOTL_GENERATES) if generates else job


def _job(
    command: tuple[str, ...], asked: _Asked, changed: Mapping[str, Any], files: Mapping[str, str]
) -> ToolJob:
    name = f"{FOLDER}/train.yaml"
    return ToolJob(
        (*command, name),
        # Not as JSON: readers of YAML 1.1 take its 5e-07 for a text.
        {**files, name: yaml.safe_dump({**asked.fields, **changed}, sort_keys=False, width=math.inf)},
        asked.n_tokens,
        asked.n_micro_steps,
        evaluates=asked.n_held_out > 0,
    )


_MAKERS: dict[str, Callable[[_Asked], ToolJob]] = {
    "llama-factory": _llama_factory,
    "trl": _trl,
    "axolotl": _axolotl,
}
_HANDBOOK_KINDS = {
    "sft": ("prompt", "completion"),
    "cpt": ("text",),
    "dpo": ("prompt", "chosen", "rejected"),
    "orpo": ("prompt", "chosen", "rejected"),
}
# The role and the marks around both turns of a dialogue, in words.
_TOKENS_OF_TURNS = 64
# A problem of HumanEval that is like no row: rows like one are left out.
_NO_ROW = {"prompt": 'def f():\n    """like no row"""', "canonical_solution": "return nothing"}
_AXOLOTL_COLUMNS = {
    "": ("text",),
    **dict.fromkeys(("dpo", "ipo", "simpo", "orpo"), ("prompt", "chosen", "rejected")),
    "kto": ("prompt", "completion", "label"),
    "reward model": ("system", "input", "chosen", "rejected"),
}
_AXOLOTL_GENERATES = "do_causal_lm_eval"
_TRL_COLUMNS = {
    "sft": ("text",),
    "dpo": ("prompt", "chosen", "rejected"),
    "reward": ("chosen", "rejected"),
    "kto": ("prompt", "completion", "label"),
}


def _rows(length: int, count: int, columns: tuple[str, ...], prompt: int) -> str:
    """Rows of at least ``length`` words, each with a prompt of ``prompt`` of them."""
    lines = []
    for number in range(count):
        words = [f"w{(number * 7 + each) % _WORDS}" for each in range(length)]
        prompted, rest = " ".join(words[:prompt]), " ".join(words[: length - prompt])
        if "images" in columns:
            prompted = f"<image>{prompted}"
        row: dict[str, Any] = {
            "text": " ".join(words),
            # All are good samples: the copies that KTO takes of these are the largest then.
            "label": True,
            "system": "",
            "images": [_PICTURE],
        }
        row |= dict.fromkeys(("prompt", "input"), prompted) | dict.fromkeys(
            ("completion", "chosen", "rejected"), rest
        )
        lines.append(json.dumps({key: row[key] for key in columns}))
    return "\n".join(lines) + "\n"
