"""A here-document that a script reads into a variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.configs.launchers.command_line import started
from planner.configs.launchers.shell_texts import with_documents
from planner.errors import NotModelledError, UsageError

SCRIPT = Path("run.sh")
BODY = "train.py \\\n   --max_steps 5 \\\n   --output_dir $OUT\n"


def test_a_document_is_the_words_of_its_variable() -> None:
    """A line behind a backslash goes on, and variables of the shell are put in."""
    for read in ("read -r -d ''", 'IFS= read -d "" -r', "read -rd ''"):
        text = f"OUT=here\n{read} job <<EOF\n{BODY}EOF\ntorchrun --nproc_per_node 2 $job\n"
        job = started(SCRIPT, text)
        assert (job.script, job.arguments) == ("train.py", {"max_steps": 5, "output_dir": "here"})


@pytest.mark.parametrize(
    "start",
    [
        "read -r job <<EOF",
        "read -r -d '' job <<'EOF'",
        "read -r -d '' job <<< EOF",
        "sbatch <<EOF",
        "cat > a <<EOF",
    ],
)
def test_what_is_no_whole_document_stays(start: str) -> None:
    """One line of it, one whose backslashes stay, a text in one line, and what goes to another program."""
    text = f"{start}\n{BODY}EOF"
    assert with_documents(text) == text


@pytest.mark.parametrize("body", ['--name "a b"\n', "--name $(date)\n", "--name `date`\n"])
def test_quotes_and_commands_are_not_put_in(body: str) -> None:
    """They would be read again."""
    text = f"read -r -d '' job <<EOF\n{body}EOF"
    assert with_documents(text) == text


def test_what_only_a_variable_says_is_no_job() -> None:
    """It may hold any arguments, so that nothing would be known of the job."""
    for text in ("deepspeed --module $job", "torchrun ${job}", "read job\naccelerate launch $job"):
        with pytest.raises(UsageError, match="depends on more than this text"):
            started(SCRIPT, text)


def test_a_document_with_another_program_is_refused_for_it() -> None:
    """OpenRLHF's own examples are written so."""
    text = "read -r -d '' job <<EOF\nopenrlhf.cli.train_sft \\\n  --pretrain a\nEOF\ndeepspeed --module $job"
    with pytest.raises(NotModelledError, match="OpenRLHF"):
        started(SCRIPT, text)


@pytest.mark.parametrize(
    "text",
    [
        "cat <<'EOF'\nDon't say --max_steps.\nEOF",
        "cat <<EOF\nUsage: torchrun other.py --max_steps 9\nEOF",
        "python - <<EOF\nprint('torchrun other.py --max_steps 9')\nEOF",
        "cat > notes.txt <<EOF\nIt isn't one.\nEOF",
        "# cat <<EOF",
    ],
)
def test_text_that_no_shell_runs_is_left_out(text: str) -> None:
    """Printed, another language's, or with a quote that nothing closes."""
    job = started(SCRIPT, f"{text}\ntorchrun --nproc_per_node 2 train.py --max_steps 5\n")
    assert job.arguments == {"max_steps": 5}
