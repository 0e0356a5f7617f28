"""``python3 agent.pyz -- COMMAND [ARGUMENTS]``: run a training command under the agent."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from tpujob_agent import processes
from tpujob_agent.agent import Agent
from tpujob_agent.command import parse
from tpujob_agent.log import log
from tpujob_agent.settings import Settings, StartError

#: sysexits.h's EX_USAGE: the pod is set up wrongly, and trying again will not help.
USAGE_ERROR = 64


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent; returns its exit code."""
    processes.hide_memory()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["--"]:
        del arguments[0]
    try:
        program = parse(arguments)
        settings = Settings.from_env(os.environ)
        settings.run_dir.mkdir(parents=True, exist_ok=True)
        (settings.run_dir / "trainer.pid").unlink(missing_ok=True)  # of a killed agent
    except (StartError, OSError) as error:
        log(str(error))
        return USAGE_ERROR
    processes.adopt_orphans()
    return Agent(settings, program).run()


if __name__ == "__main__":
    sys.exit(main())
