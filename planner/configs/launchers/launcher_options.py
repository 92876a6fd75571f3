"""Options of launchers by name.

Sources: accelerate 1.15.0 commands/launch.py; torch 2.13.0 distributed/run.py; deepspeed 0.19.8
launcher/runner.py.
"""

from __future__ import annotations

from planner.configs.shared.key_tables import names_in


def names_of(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


ACCELERATE_SWITCHES = frozenset(names_in("accelerate.toml", "switches"))
# With those of torch.distributed.launch (torch 2.13.0 distributed/launch.py parse_args).
TORCHRUN_SWITCHES = names_of("standalone m module no_python run_path virtual_local_rank use_env")
DEEPSPEED_SWITCHES = frozenset(names_in("deepspeed.toml", "switches"))
DEEPSPEED_OPTIONS = frozenset(names_in("deepspeed.toml", "options"))
