"""What would make the job of a config file fit, in the file's own keys:
each change is read again before it is offered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from planner.api.calibration_choice import calibration_for
from planner.api.files import CheckOptions, answer_file
from planner.configs.programs.source import SUFFIXES as PROGRAMS
from planner.configs.writing.edits import Edit, applied
from planner.configs.writing.sharding_keys import Files
from planner.configs.writing.text import trial_text
from planner.configs.writing.translate import OWN_TOOL, edits_for
from planner.configs.yaml_or_json import Document, read_document
from planner.domain.origin import split_place
from planner.domain.scenario import Scenario
from planner.errors import InputFileError, PlannerError
from planner.files.reading import read_text, reading_instead
from planner.files.structured import read_toml
from planner.intake.given.config_file import ConfigFile, read_config_file
from planner.intake.given.fields import REQUEST_FIELDS
from planner.intake.given.request import TRIED, ScenarioRequest, merge
from planner.report.check.checked import Checked, Fix
from planner.report.prediction.subject import Subject, rests_on_unknown_host
from planner.searching.levers import Lever, levers
from planner.searching.moves import KINDS, LeverKind
from planner.searching.variants import with_flags

MAX_FIXES = 4
# Changes one on top of the other where none alone is enough.
MAX_ROUNDS = 4
_GENTLE: tuple[LeverKind, ...] = ("free", "time", "money")


@dataclass(frozen=True, slots=True)
class FileJob:
    """One config with all that is given about it, so that it can be asked again after a change of its files.

    ``tried``: what neither files nor flags say, as the answer took it.
    """

    config: str
    given: ScenarioRequest
    options: CheckOptions
    files: Files
    tried: ScenarioRequest

    def asked_with(self, edits: Sequence[Edit]) -> Checked:
        """The answer as if the files had ``edits``.

        Raises:
            PlannerError: they then say something that cannot be read or is not modelled.
        """
        texts = {
            document.path.resolve(): trial_text(document, read_text(document.path), own)
            for document in self.files.documents
            if (own := [edit for edit in edits if edit.file == document.path])
        }
        with reading_instead(texts):
            read = read_config_file(self.config, self.options.tool, self.options.beside)
            read = replace(read, request=merge(self.tried, read.request))
            return answer_file(self.config, read, self.given, self.options, why=False)

    def levers(self, subject: Subject, *, alone: bool = False) -> tuple[Lever, ...]:
        """What could be changed about the job, the cheapest first; ``alone``:
        single changes on the same cards.
        """
        return levers(
            subject.scenario, calibration_for(subject.scenario, self.options.calibration).model, alone=alone
        )


def file_job(config: str, read: ConfigFile, given: ScenarioRequest, options: CheckOptions) -> FileJob:
    """The job of a config that was ``read``, with the files that its values came from.

    Raises:
        InputFileError: one of them cannot be read again.
    """
    path = Path(config)
    if path.suffix in PROGRAMS:
        # A program has no keys that could be changed for its owner.
        document = Document(path, {})
    else:
        document = Document(path, read_toml(path)) if read.tool_name == OWN_TOOL else read_document(path)
    files = Files(read.tool_name, document)
    beside = [Path(name) for name in (read.launch, options.accelerate, options.deepspeed) if name is not None]
    for other in (*_other_files(read, path), *beside):
        try:
            document = read_document(other)
        except InputFileError:
            continue
        if "distributed_type" in document.table:
            files = replace(files, accelerate=document)
        elif "zero_optimization" in document.table:
            files = replace(files, deepspeed=document)
    tried = {name: each for name, each in read.request.values.items() if each.origin == TRIED}
    return FileJob(config, given, options, files, ScenarioRequest(tried))


def _other_files(read: ConfigFile, config: Path) -> Iterator[Path]:
    """Files beside the config that values or remarks came from, by the places that these name."""
    origins = [given.origin for given in read.request.values.values()] + [
        remark.origin for remark in read.remarks
    ]
    for name in dict.fromkeys(file for file, place in map(split_place, origins) if place):
        path = Path(name)
        if path.suffix in (".json", ".yaml", ".yml") and path != config and path.is_file():
            yield path


def with_fixes(job: FileJob, checked: Checked) -> Checked:
    """``checked`` with the first levers in the file's own keys, and with what ``--write`` would write."""
    subject = checked.subject
    if subject is None or subject.prediction.verdict in ("fits", "no_verdict"):
        return checked
    found = job.levers(subject)
    fitting = [each for each in found if each.fits]
    fixes = [fix_of(job, subject, lever) for lever in fitting]
    chosen = _first(fixes)
    others = [lever for lever in found if not lever.fits][: MAX_FIXES - len(chosen)]
    chosen += [fix_of(job, subject, lever) for lever in others]
    order = {id(lever): place for place, lever in enumerate(found)}
    chosen.sort(key=lambda fix: order[id(fix.lever)])
    return replace(checked, fixes=tuple(chosen), remedy=_remedy(job, subject, fixes))


def _first(fixes: Sequence[Fix]) -> list[Fix]:
    """The first few: of those that no file can say only the first,
    so that bigger cards do not crowd out the rest.
    """
    by_flags = [fix for fix in fixes if not fix.edits][:1]
    return [fix for fix in fixes if fix.edits or fix in by_flags][:MAX_FIXES]


def fix_of(job: FileJob, subject: Subject, lever: Lever, before: Sequence[Edit] = ()) -> Fix:
    """A lever as keys of the job's files on top of ``before``; without keys where the files cannot say it."""
    changes = {
        (name := flag.replace("-", "_")): None if value is None else REQUEST_FIELDS[name].parse(value)
        for flag, value in lever.flags.items()
    }
    plain = Fix(lever, saves_bytes=lever.saves_bytes)
    try:
        edits = edits_for(_with(job.files, before), changes)
        if not edits:
            return plain
        checked = job.asked_with((*before, *edits))
    except PlannerError:
        return plain
    after = checked.subject
    if after is None or not _means(after.scenario, subject.scenario, lever):
        return plain
    saved = float(subject.prediction.memory.must_have_bytes) - float(after.prediction.memory.must_have_bytes)
    return Fix(lever, saves_bytes=max(0, round(saved)), edits=edits, after=after)


def _means(read: Scenario, asked: Scenario, lever: Lever) -> bool:
    """Whether what was read of the changed files is what the lever's flags ask for:
    a flag may win over the file, for one.
    """
    names = {flag.replace("-", "_") for flag in lever.flags if flag != "stack"}
    names |= {"quantization"} if "method" in names else set()
    wanted, found = _values(with_flags(asked, lever.flags)), _values(read)
    stack = lever.flags.get("stack")
    return all(wanted.get(name) == found.get(name) for name in names) and stack in (None, read.stack.id)


def _values(scenario: Scenario) -> dict[str, str]:
    # Methods have several names, such as qlora for lora over nf4.
    return {each.name: each.value for each in scenario.assumptions} | {"method": scenario.recipe.method}


def _with(files: Files, edits: Sequence[Edit]) -> Files:
    """The files as if they had ``edits``."""

    def changed(document: Document | None) -> Document | None:
        own = [edit for edit in edits if document is not None and edit.file == document.path]
        return (
            document if document is None or not own else replace(document, table=applied(document.table, own))
        )

    config = changed(files.config)
    return Files(files.tool, config or files.config, changed(files.deepspeed), changed(files.accelerate))


def _remedy(job: FileJob, subject: Subject, fixes: Iterable[Fix]) -> tuple[Fix, ...]:
    """Changes of the files that make the job fit, none if none does.

    One change that leaves the training as it is, else several on top of each other; only then one that
    changes the training, else several of any kind.
    """
    enough = sorted((fix for fix in fixes if fix.fits and fix.edits), key=_doubts)
    if enough and enough[0].lever.kind != "training":
        return (enough[0],)
    return _together(job, subject, _GENTLE) or tuple(enough[:1]) or _together(job, subject, KINDS)


def _together(job: FileJob, subject: Subject, kinds: Collection[LeverKind]) -> tuple[Fix, ...]:
    """Changes on top of each other until the job fits; empty where it never does."""
    edits: tuple[Edit, ...] = ()
    taken: list[Fix] = []
    for _ in range(MAX_ROUNDS):
        fix = _next(job, subject, edits, kinds)
        if fix is None or fix.after is None:
            return ()
        taken.append(fix)
        edits, subject = (*edits, *fix.edits), fix.after
        if fix.fits:
            return tuple(taken)
    return ()


def _doubts(fix: Fix) -> tuple[bool, bool]:
    """What is surer to help comes first: the same training,
    and no host RAM of which nobody said how much there is.
    """
    after = fix.after
    return fix.lever.kind == "training", after is None or rests_on_unknown_host(
        after.scenario, after.prediction
    )


def _next(
    job: FileJob, subject: Subject, before: tuple[Edit, ...], kinds: Collection[LeverKind]
) -> Fix | None:
    """What makes the job fit on top of ``before``,
    else the first lever that the files can say and that saves something.
    """
    levers_left = [lever for lever in job.levers(subject, alone=True) if lever.kind in kinds]
    for fits in (True, False):
        for lever in levers_left:
            fix = fix_of(job, subject, lever, before) if lever.fits == fits else None
            if fix is not None and fix.edits and (fix.fits or (not fits and fix.saves_bytes > 0)):
                return fix
    return None
