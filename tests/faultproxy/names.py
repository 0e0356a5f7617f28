"""Names that are equal in every run, whatever UIDs and suffixes Kubernetes has drawn."""

from __future__ import annotations

import re

from tests.faultproxy.calls import Object

_SUFFIX = re.compile(r"-[a-z0-9]{5}$")
_UID_LETTERS = 8


class Names:
    """Learns the UIDs of jobs, whose first characters are part of their children's names."""

    def __init__(self) -> None:
        self._jobs: dict[str, str] = {}

    def learn(self, obj: Object) -> None:
        """Take note of an object; only jobs matter."""
        uid = obj.get("metadata", {}).get("uid", "")
        if obj.get("kind") == "TPUTrainingJob" and uid:
            self._jobs.setdefault(uid[:_UID_LETTERS], f"uid{len(self._jobs) + 1}")

    def of(self, resource: str, name: str) -> str:
        """The name of an object without what differs from run to run."""
        for uid, word in list(self._jobs.items()):
            name = name.replace(uid, word)
        return _SUFFIX.sub("", name) if resource == "pods" else name
