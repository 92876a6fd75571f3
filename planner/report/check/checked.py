"""What is known of one config file after it was checked: what every format of ``plan check`` prints."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from planner.configs.writing.edits import Edit
from planner.domain.prediction import Verdict
from planner.domain.recipes.sharding import DDP
from planner.domain.scenario import Scenario
from planner.errors import ExitCode
from planner.report.bounds.bounded import Bounded
from planner.report.check.traced import Traced
from planner.report.prediction.subject import Subject, exit_code_of
from planner.searching.levers import Lever
from planner.units import plain_number

# Several jobs: the first of these that any of them has is the code of all.
_WORST_FIRST = (
    ExitCode.INTERNAL_ERROR,
    ExitCode.USAGE,
    ExitCode.NOT_MODELLED,
    ExitCode.GPU_MEMORY_SHORT,
    ExitCode.HOST_MEMORY_SHORT,
    ExitCode.UNCERTAIN,
    ExitCode.FITS,
)
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Fix:
    """One lever for the files of a job.

    ``edits``: the keys that ask for it, none where the files cannot say it; then its flags do.  ``after``:
    the answer that was read of the files with these keys.  ``saves_bytes``: fewer bytes that one GPU then
    needs at least.
    """

    lever: Lever
    saves_bytes: int
    edits: tuple[Edit, ...] = ()
    after: Subject | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict with the change."""
        return self.lever.verdict if self.after is None else self.after.prediction.verdict

    @property
    def fits_probability(self) -> float | None:
        """The chance to fit with the change."""
        return self.lever.fits_probability if self.after is None else self.after.prediction.fits_probability

    @property
    def fits(self) -> bool:
        """Whether the job fits with the change."""
        return self.verdict == "fits"


@dataclass(frozen=True, slots=True)
class AssumedSetting:
    """A setting that no file says and that decides much: what was taken, and the flags that say otherwise."""

    setting: str
    value: str
    text: str
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """Files that were written, the config first, and what was then read of them."""

    files: tuple[str, ...]
    after: Checked


@dataclass(frozen=True, slots=True)
class Checked:
    """One config and its answer: ``subject``, or else ``failure`` with its exit code.

    ``tool``: what the file is for (empty where that was not told).  ``flags``: the same job in words of
    ``plan``.  ``remarks``: place and text of each key that is not counted as it stands.  ``ignored``: unknown
    keys, as ``file:key``.  ``accelerate``: the launch file that it was read with, where several were given.
    ``launch_file``: the one that was read in any case.  ``candidates``: those that could be meant where none
    was read.  ``command``: the check itself.  ``launch``: what starts the job.  ``fixes``: the first levers,
    ``None`` where nobody looked.  ``remedy``: changes that together make it fit.  ``traced``: the dry run by
    the file's own tool, where it was asked for.  ``details``: how to ask for all of it, where that is not by
    ``--config``.  ``bounds``: of an architecture that is not modelled; ``failure`` then says them.
    ``trains``: false where the failure is that the file does other work.
    """

    config: str
    tool: str = ""
    subject: Subject | None = None
    failure: str = ""
    failure_code: ExitCode = ExitCode.FITS
    trains: bool = True
    flags: str = ""
    remarks: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    accelerate: str = ""
    launch_file: str = ""
    candidates: tuple[str, ...] = ()
    command: str = ""
    launch: str = ""
    fixes: tuple[Fix, ...] | None = None
    remedy: tuple[Fix, ...] = ()
    written: Written | None = None
    details: str = ""
    traced: Traced | None = None
    bounds: Bounded | None = None

    @property
    def exit_code(self) -> ExitCode:
        """What this config alone would end with; the written file's code where one was written.

        Where nothing is predicted because something is not modelled,
        a dry run that has an answer gives the code.
        """
        open_ = self.failure_code == ExitCode.NOT_MODELLED or self.bounds is not None
        if self.traced is not None and self.traced.answered and open_:
            return self.traced.code
        if self.written is not None:
            return self.written.after.exit_code
        return self.failure_code if self.subject is None else exit_code_of(self.subject.prediction)

    @property
    def answered(self) -> Checked | None:
        """Itself where there is an answer."""
        return None if self.subject is None else self

    @property
    def assumed(self) -> tuple[AssumedSetting, ...]:
        """Plain DDP and full samples, where nothing says them."""
        return () if self.subject is None else tuple(_assumed(self, self.subject))

    @property
    def name(self) -> str:
        """The config, with its launch file where several were given."""
        return f"{self.config} + {self.accelerate}" if self.accelerate else self.config


def worst_exit_code(checked: Sequence[Checked], allowed: Collection[ExitCode] = ()) -> ExitCode:
    """The exit code of several jobs: the worst of theirs, where those ``allowed`` count as fitting."""
    return min(
        (ExitCode.FITS if each.exit_code in allowed else each.exit_code for each in checked),
        key=_WORST_FIRST.index,
    )


def _assumed(checked: Checked, subject: Subject) -> Iterator[AssumedSetting]:
    scenario = subject.scenario
    assumed = {each.name for each in scenario.assumptions if each.is_assumed}
    recipe, batch = scenario.recipe, scenario.recipe.batch
    plain = recipe.sharding == DDP and scenario.hardware.world_size > 1 and "sharding" in assumed
    if plain and not checked.launch_file:
        text = "nothing says how the model is sharded, so each GPU is counted with a whole copy (DDP)"
        named = [
            f"--{'deepspeed' if name.endswith('.json') else 'accelerate'} {name}"
            for name in checked.candidates
        ]
        yield AssumedSetting(
            "sharding", "ddp", text, (*(named[:_MOST_NAMED] or ["--accelerate FILE"]), "--sharding NAME")
        )
    if batch.padding != "packed" and "tokens_per_sample" in assumed:
        length = plain_number(batch.seq_len)
        text = f"every sample is counted with {int(batch.seq_len):,} tokens"
        ways: tuple[str, ...] = ("--tokens-per-sample N",)
        if batch.padding == "longest" and scenario.stack.piles_up and not scenario.segments_grow:
            text += ", while lengths that vary leave blocks in the cache, up to the whole card"
            ways = ("--data FILE", *ways)
        yield AssumedSetting("tokens_per_sample", length, text, ways)
    yield from _assumed_images(scenario)


def _assumed_images(scenario: Scenario) -> Iterator[AssumedSetting]:
    """Images, of which a file mostly says nothing: the data decide."""
    images, entry = scenario.recipe.batch.images, scenario.assumption("images_per_sample")
    if images is not None and entry is not None and (entry.is_assumed or entry.note):
        number = plain_number(images.per_sample)
        what = (
            f"{number} image{'' if images.per_sample == 1 else 's'} of {images.width}x{images.height} pixels"
        )
        text = f"every sample is counted with {what}, {images.per_sample * images.tokens:,} of its tokens"
        yield AssumedSetting("images_per_sample", number, text, ("--images-per-sample N", "--image-size WxH"))
