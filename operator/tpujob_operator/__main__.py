"""``python -m tpujob_operator``: runs the operator until it is told to stop."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time

from tpujob_operator.settings import Settings, SettingsError

#: Exit status of a replica that is not the leader any more: it starts again as a standby.
LOST_LEASE = 3
#: The API server takes objects of 10,000 levels, and Kopf copies each with two calls a level.
_MOST_CALLS = 50_000


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's time, level, logger, message and traceback."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up_logging(log_format: str) -> None:
    """Log to standard error; Kopf only when something is wrong."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if log_format == "json" else text)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("kopf").setLevel(logging.WARNING)


def main() -> int:
    """Entry point; returns the exit status."""
    try:
        settings = Settings.from_env(os.environ)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    set_up_logging(settings.log_format)
    sys.setrecursionlimit(_MOST_CALLS)
    # Imported late, so that a wrong setting is reported without the wait for all libraries.
    from tpujob_operator.shell.lease import LostLeaseError  # noqa: PLC0415
    from tpujob_operator.shell.operator import Operator  # noqa: PLC0415

    try:
        asyncio.run(_run(Operator, settings))
    except LostLeaseError as error:
        logging.getLogger(__name__).error("the operator ends, another one acts: %s", error)  # noqa: TRY400 - no defect
        return LOST_LEASE
    except SettingsError as error:
        logging.getLogger(__name__).error("%s", error)  # noqa: TRY400 - it says what to do
        return 2
    except Exception:
        logging.getLogger(__name__).exception("the operator has failed and ends")
        return 1
    return 0


async def _run(operator: type, settings: Settings) -> None:
    await operator(settings).run()


if __name__ == "__main__":
    sys.exit(main())
