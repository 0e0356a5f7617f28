"""What a running job has to say of itself beside its status."""

from __future__ import annotations

import json

from faults import diary
from faults.diary import Line
from faults.scene import LEADER, Place, Scene
from tpujob_agent.protocol import HTTP_PORT, LOSSES_PATH, Env
from tpujob_operator.api.podtemplate import AGENT_DIR

#: A pod's variables, and its agent's own code, open the coordinator's HTTP side.
_LOSSES = f"""
import os, sys, time, urllib.request as web
sys.path.insert(0, "{AGENT_DIR}/agent.pyz")
from tpujob_agent import signing
host = os.environ["{Env.COORDINATOR}"].partition(":")[0]
token, now_ms = os.environ["{Env.TOKEN}"], time.time_ns() // 1_000_000
signed = signing.sign(token, "GET", "{LOSSES_PATH}", now_ms, query={{"after": "%d"}})
url = f"http://{{host}}:{HTTP_PORT}{LOSSES_PATH}?after=%d"
request = web.Request(url, headers={{signing.SIGNATURE_HEADER: signed}})
print(web.urlopen(request).read().decode())
"""


def losses(scene: Scene, after: int = 0) -> dict[int, float]:
    """Losses by step, as the coordinator has them now, of the steps after one.

    Raises:
        LookupError: it has not answered.
    """
    told = scene.shell(LEADER, f"python3 -c '{_LOSSES % (after, after)}'")
    try:
        found = json.loads(told)["losses"]
    except ValueError as error:
        raise LookupError(f"the coordinator tells no losses, but: {told[-300:]!r}") from error
    return {int(step): float(loss) for step, loss in found}


def starts_and_saves(scene: Scene, place: Place = LEADER) -> list[Line]:
    """The diary of ``faults.training``, as a host sees it on the shared disk."""
    return diary.read(scene.shell(place, "cat $FOLDER/diary"))
