"""Compiles the replay's loop when the package is built, where a C compiler is there;
the package works without it, slower.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE, LIBRARY = "planner/allocator/replay.c", "planner/allocator/replay.native"


class ReplayHook(BuildHookInterface[Any]):
    """Adds the compiled loop to the wheel, which is one for this kind of machine then."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say what became of it."""
        del version
        root = Path(self.root)
        compiler = shlex.split(os.environ.get("CC", "cc"))
        command = [*compiler, "-O2", "-shared", "-fPIC", "-o", str(root / LIBRARY), str(root / SOURCE)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(
                f"no C compiler that works ({error}): replays take Python twenty times as long"
            )
            return
        build_data["artifacts"].append(LIBRARY)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
