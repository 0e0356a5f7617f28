"""What a running job has to say of itself beside its status."""

from __future__ import annotations

import json

from faults import diary
from faults.diary import Line
from faults.scene import LEADER, Place, Scene
from tpujob_agent.protocol import HTTP_PORT, LOSSES_PATH, TOKEN_HEADER, Env

#: A pod's variables open the coordinator's HTTP side.
_LOSSES = f"""
import os, urllib.request as web
host = os.environ["{Env.COORDINATOR}"].partition(":")[0]
token = {{"{TOKEN_HEADER}": os.environ["{Env.TOKEN}"]}}
url = f"http://{{host}}:{HTTP_PORT}{LOSSES_PATH}?after=%d"
print(web.urlopen(web.Request(url, headers=token)).read().decode())
"""


def losses(scene: Scene, after: int = 0) -> dict[int, float]:
    """Losses by step, as the coordinator has them now, of the steps after one.

    Raises:
        LookupError: it has not answered.
    """
    told = scene.shell(LEADER, f"python3 -c '{_LOSSES % after}'")
    try:
        found = json.loads(told)["losses"]
    except ValueError as error:
        raise LookupError(f"the coordinator tells no losses, but: {told[-300:]!r}") from error
    return {int(step): float(loss) for step, loss in found}


def starts_and_saves(scene: Scene, place: Place = LEADER) -> list[Line]:
    """The diary of ``faults.training``, as a host sees it on the shared disk."""
    return diary.read(scene.shell(place, "cat $FOLDER/diary"))
