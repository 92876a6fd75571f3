"""Files of its own that a program imports, configs that it loads, and classes that it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.api.checks import check_job, command_job
from planner.api.files import CheckOptions
from planner.configs.launchers.fsdp_keys import Beside
from planner.errors import InputFileError, NotModelledError
from planner.intake.given.config_file import read_config_file
from planner.intake.given.request import from_flags
from tests.planner.configs.programs.test_program import TRAINER, TRL, job, program, read, refusal

SETTINGS = 'MODEL = "mistralai/Mistral-7B-v0.1"\nRANK, LENGTH = 64, 2048\n'
LOADS = """import yaml
def settings(path="configs/job.yaml"):
    with open(path) as file:
        return yaml.safe_load(file)
cfg = settings()
"""
CONFIG = "model:\n  name: mistralai/Mistral-7B-v0.1\nlora: {r: 64}\n"
TRAINS, RANKED = "        self.trainer.train()", "        self.rank = rank\n"
IN_A_CLASS = """
class Job:
    kernel = "sdpa"

    def __init__(self, rank):
        self.rank = rank
        self.setup()

    def setup(self):
        self.model = load(MODEL, kernel=self.kernel)

    @property
    def adapters(self):
        return LoraConfig(r=self.rank)

    def train(self, args, data):
        self.trainer = SFTTrainer(model=self.model, args=args, train_dataset=data, peft_config=self.adapters)
        self.trainer.train()
"""


def in_a_class(job_class: str, start: str = "Job(64).train(args, data)") -> str:
    """TRL's program with its trainer in a class."""
    before, trains = TRL.index("def main"), TRL.index("    trainer = SFT")
    last = TRL[trains:].index('if __name__ == "__main__"') + trains
    body = TRL[before:trains].replace("    model = load", "    unused = 0  # ")
    return TRL[:before] + job_class + "\n\n" + body + f"    {start}\n\n\n" + TRL[last:]


def beside(folder: Path, **files: str) -> None:
    """Files in the folder of a program; ``__`` in a name is a folder."""
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    "line",
    [
        "from settings import MODEL, RANK",
        "from settings import *",
        "from own.settings import MODEL, RANK",
        "from own import settings\nMODEL, RANK = settings.MODEL, settings.RANK",
    ],
)
def test_names_of_its_own_files_are_known(line: str, tmp_path: Path) -> None:
    """By name, all of them, and by their module."""
    beside(tmp_path, settings_dot_py=SETTINGS, own__settings_dot_py=SETTINGS)
    text = TRL.replace('MODEL = "mistralai/Mistral-7B-v0.1"', line).replace("r=64", "r=RANK")
    assert text != TRL
    assert job(program(tmp_path, text)) == job(program(tmp_path, TRL))


def test_a_function_of_another_file_sees_the_names_of_that_file(tmp_path: Path) -> None:
    """Its defaults and constants, not the program's of the same name."""
    made = f"from peft import LoraConfig\n{SETTINGS}\ndef adapters(r=RANK):\n    return LoraConfig(r=r)\n"
    beside(tmp_path, helpers_dot_py=made)
    text = f"from helpers import adapters\nRANK = 8\n{TRL}".replace("LoraConfig(r=64)", "adapters()")
    assert job(program(tmp_path, text)) == job(program(tmp_path, TRL))


def test_what_another_file_does_to_the_model_counts(tmp_path: Path) -> None:
    """What is not known is refused with the line of that file."""
    beside(tmp_path, helpers_dot_py="def change(model):\n    model.half()\n    return model\n")
    text = TRAINER.replace("trainer = T", "from helpers import change\nmodel = change(model)\ntrainer = T")
    assert "helpers.py:line 2: model.half()" in refusal(tmp_path, text)


def test_a_program_whose_trainer_is_in_another_file(tmp_path: Path) -> None:
    """Behind ``main``; lengths at which that file cuts samples are found, too."""
    name = 'if __name__ == "__main__":\n    main()\n'
    assert name in TRL
    beside(tmp_path, training_dot_py=TRL.replace(name, ""))
    path = program(tmp_path, "from training import main\nmain()\n")
    assert job(path) == job(program(tmp_path, TRL))


@pytest.mark.parametrize(
    "line",
    [
        LOADS,
        "import json\ncfg = json.load(open('configs/job.json'))\n",
        "from omegaconf import OmegaConf\ncfg = OmegaConf.load('configs/job.yaml')\n",
        (
            "import yaml\nfrom pathlib import Path\n"
            "cfg = yaml.safe_load((Path(__file__).parent / 'configs' / 'job.yaml').read_text())\n"
        ),
    ],
)
def test_values_of_a_config_that_the_program_loads_count(line: str, tmp_path: Path) -> None:
    """YAML and JSON, by the folder of the program; the answer names the file."""
    as_json = '{"model": {"name": "mistralai/Mistral-7B-v0.1"}, "lora": {"r": 64}}'
    beside(tmp_path, configs__job_dot_yaml=CONFIG, configs__job_dot_json=as_json)
    text = line + TRL.replace('"mistralai/Mistral-7B-v0.1"', 'cfg["model"]["name"]')
    text = text.replace("r=64", 'r=cfg["lora"].get("r", 8)')
    asked = job(program(tmp_path, TRL))
    path = program(tmp_path, text)
    assert job(path) == asked
    assert any(each.endswith(": values of this config count") for each in read(path).notes)


def test_a_config_that_is_not_there_leaves_its_values_open(tmp_path: Path) -> None:
    """They are asked for; a table's attribute is its item."""
    text = LOADS + TRL.replace('"mistralai/Mistral-7B-v0.1"', 'cfg["model"]["name"]')
    assert "cfg['model']['name']" in refusal(tmp_path, text)
    beside(tmp_path, configs__job_dot_yaml=CONFIG)
    dotted = LOADS + TRL.replace('"mistralai/Mistral-7B-v0.1"', "cfg.model.name")
    assert job(program(tmp_path, dotted)) == job(program(tmp_path, TRL))


@pytest.mark.parametrize(
    "job_class",
    [
        IN_A_CLASS,
        IN_A_CLASS.replace("class Job:", "class Base:") + "\n\nclass Job(Base):\n"
        "    def __init__(self, rank):\n        super().__init__(rank)\n",
        IN_A_CLASS.replace("    kernel =", "    @staticmethod\n    def of(rank):\n"
                           "        return Job(rank)\n\n    kernel ="),
    ],
)  # fmt: skip
def test_a_class_of_the_program_may_train(job_class: str, tmp_path: Path) -> None:
    """Its methods, properties and bases are followed."""
    asked = job(program(tmp_path, TRL.replace("flash_attention_2", "sdpa")))
    start = "Job.of(64).train(args, data)" if "def of" in job_class else "Job(64).train(args, data)"
    assert job(program(tmp_path, in_a_class(job_class, start))) == asked


@pytest.mark.parametrize(
    ("before", "line", "said"),
    [
        ("        self.setup()", "if newest():\n            self.setup()", "whether this is done"),
        (TRAINS, "if newest():\n            self.model.half()", "whether this is done"),
        (TRAINS, "outside(self)", "what this does"),
        (TRAINS, "outside(self.model)", "what this does"),
    ],
)
def test_what_a_class_may_do_to_its_model_is_refused(
    before: str, line: str, said: str, tmp_path: Path
) -> None:
    """In branches that are not known, and handed to others with or without its instance."""
    assert before in IN_A_CLASS
    after = f"        {line}\n" + (before if before == TRAINS else "")
    assert said in refusal(tmp_path, in_a_class(IN_A_CLASS.replace(before, after)))


@pytest.mark.parametrize(
    "change",
    [
        (RANKED, f"{RANKED}        if newest():\n            self.more()\n"),
        (RANKED, f"{RANKED}        for name, value in rows():\n            setattr(self, name, value)\n"),
        ("LoraConfig(r=self.rank)", "LoraConfig(r=best(self.rank))"),
        ("LoraConfig(r=self.rank)", "LoraConfig(r=RANK)"),
    ],
)
def test_what_may_have_changed_is_asked_for(change: tuple[str, str], tmp_path: Path) -> None:
    """By a method, by ``setattr``, by a function that hands back one of two values, by a global name."""
    more = "    def more(self):\n        self.rank = 8\n\n    @property"
    text = IN_A_CLASS.replace(*change).replace("    @property", more)
    assert text.count("more") == 1 + ("more()" in change[1])
    best = "def best(rank):\n    if newest():\n        return 128\n    return rank\n\n\n"
    names = "RANK = 8\n\n\ndef choose():\n    global RANK\n    RANK = 64\n\n\nif newest():\n    choose()\n"
    assert "lora_r" in refusal(tmp_path, in_a_class(f"{best}{names}{text}"))


def test_a_loop_over_known_values_is_gone_through(tmp_path: Path) -> None:
    """Settings that a table says, one after the other."""
    sets = "        for name, value in {'rank': 64}.items():\n            setattr(self, name, value)\n"
    text = IN_A_CLASS.replace("        self.rank = rank\n", sets)
    asked = job(program(tmp_path, TRL.replace("flash_attention_2", "sdpa")))
    assert job(program(tmp_path, in_a_class(text))) == asked


ALPACA = """import os
import sys
saved = model.state_dict
model.state_dict = (lambda self, *_, **__: parts(self, saved())).__get__(model, type(model))
if torch.__version__ >= "2" and sys.platform != "win32":
    model = torch.compile(model)
trainer.train()"""
LAUNCHED = "world = int(os.environ.get('WORLD_SIZE', 1))\nif world != 1:\n    model.half()\n"


def test_what_alpaca_lora_does_behind_its_trainer(tmp_path: Path) -> None:
    """What is saved, and a compiled model that the trainer does not have; one that it has is refused."""
    text = TRAINER.replace("trainer.train()", ALPACA)
    assert job(program(tmp_path, text)) == job(program(tmp_path, TRAINER))
    before = TRAINER.replace("trainer = T", "model = torch.compile(model)\ntrainer = T")
    assert "compiled models" in refusal(tmp_path, before)


def test_one_gpu_has_one_process(tmp_path: Path) -> None:
    """Variables of launchers have their defaults there, and are not known beside several GPUs."""
    path = program(tmp_path, TRAINER.replace("trainer = T", f"import os\n{LAUNCHED}trainer = T"))
    assert read_config_file(path, beside=Beside(gpu="rtx4090", gpus=1)).request.get("method") == "lora"
    with pytest.raises(NotModelledError, match="whether this is done"):
        read_config_file(path, beside=Beside(gpu="rtx4090"))


def test_a_class_that_was_imported_is_something(tmp_path: Path) -> None:
    """As where a library that is not there would leave nothing."""
    text = TRAINER.replace("trainer = T", "if Trainer is None:\n    model.half()\ntrainer = T")
    assert job(program(tmp_path, text)) == job(program(tmp_path, TRAINER))


def test_how_long_a_run_takes_is_not_asked_for(tmp_path: Path) -> None:
    """Epochs that follow from the data."""
    path = program(tmp_path, TRL.replace("packing=True", "packing=True, num_train_epochs=3 if rows() else 1"))
    assert any("num_train_epochs" in each for each in read(path).notes)
    assert job(path) == job(program(tmp_path, TRL))


@pytest.mark.parametrize(("text", "stack"), [(TRL, "trl@0"), (TRAINER, "hf-trainer@4")])
def test_a_tokenizer_of_the_trainer_tells_its_age(text: str, stack: str, tmp_path: Path) -> None:
    """Today's trainers take it as ``processing_class``: the older ones do not checkpoint by themselves."""
    given = text.replace("args=args, train", "tokenizer=tokenizer, args=args, train")
    assert given != text
    assert read(program(tmp_path, given)).request.get("stack") == stack
    today = given.replace("tokenizer=", "processing_class=")
    assert read(program(tmp_path, today)).request.get("stack") != stack


@pytest.mark.parametrize(("gpu", "batch"), [("a100-80-sxm", 4), ("rtx4090", 1)])
def test_the_memory_of_the_card_settles_what_the_program_asks_of_it(
    gpu: str, batch: int, tmp_path: Path
) -> None:
    """As ``torch.cuda.get_device_properties`` tells it; of a card that is not known it is asked for."""
    asks = "memory = torch.cuda.get_device_properties(0).total_memory / 1e9\n"
    sizes = TRL.replace("def load", f"{asks}SIZE = 4 if memory >= 40 else 1\ndef load", 1)
    path = program(tmp_path, sizes.replace("train_batch_size=2", "train_batch_size=SIZE"))
    assert read(path, gpu).request.get("batch") == batch
    with pytest.raises(InputFileError, match="per_device_train_batch_size"):
        read(path, "")


def test_a_folder_of_windows_is_known_by_its_name(tmp_path: Path) -> None:
    """Its last part tells the model, as that of any other folder."""
    text = TRL.replace('"mistralai/Mistral-7B-v0.1"', r'r"C:\models\Mistral-7B-v0.1"')
    assert read(program(tmp_path, text)).request.get("model") == "mistral-7b-v0.1"


def test_configs_are_looked_for_as_modules_are(tmp_path: Path) -> None:
    """Up to three folders above the program's, however its own path is given, and no further."""
    folder = tmp_path / "repository" / "src" / "train" / "sft"
    folder.mkdir(parents=True)
    size = "per_device_train_batch_size=2"
    assert size in TRL
    path = program(folder, "import json\n" + TRL.replace(size, "**json.load(open('conf/size.json'))"))
    for place, found in ((tmp_path / "repository", True), (tmp_path, False)):
        config = place / "conf" / "size.json"
        config.parent.mkdir()
        config.write_text('{"per_device_train_batch_size": 2}', encoding="utf-8")
        if found:
            assert job(path) == job(program(tmp_path, TRL))
        else:
            with pytest.raises(NotModelledError, match="not all arguments of the trainer"):
                read(path)
        config.unlink()


@pytest.mark.parametrize(("name", "refused"), [("SeeingGRPOTrainer", True), ("LoggingSFTTrainer", False)])
def test_a_trainer_of_its_own_that_generates_is_not_read_by_names(
    name: str, tmp_path: Path, *, refused: bool
) -> None:
    """How much it generates they do not tell, whatever name the program has for it."""
    beside(
        tmp_path, own=f"from trl import Trainer\nclass {name}(Trainer):\n    def compute_loss(self): pass\n"
    )
    (tmp_path / "own").rename(tmp_path / "own.py")
    text = f"from own import {name}\ntrainer_cls = {name}\ntrainer = trainer_cls(model=a)\ntrainer.train()\n"
    words = (
        f"python {program(tmp_path, text)} --model_name_or_path Qwen/Qwen2.5-0.5B --bf16 --max_length 512 "
        "--num_train_epochs 1 --per_device_train_batch_size 1 --dataset_name a --use_peft"
    )
    found = check_job(command_job(words, CheckOptions(tool=None)), from_flags({"gpu": "rtx4090"}))
    assert ("is not known" in found.failure) is refused, found.failure
