"""What has passed through the proxy: writes, watch events, and how many requests of each kind."""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Iterable

from tests.faultproxy.calls import Call, Object
from tests.faultproxy.names import Names


@dataclasses.dataclass(frozen=True, slots=True)
class Write:
    """A write that reached the API server."""

    verb: str
    target: str  # resource, or resource/subresource
    name: str  # as Names gives it
    nth: int  # which of all writes of this verb, target and name
    code: int
    is_effective: bool  # the API server has taken it, and the object is another one now


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """A watch event that came from the API server."""

    type: str
    resource: str
    name: str  # as Names gives it
    nth: int  # which of all events of this type, resource and name


class Journal:
    """Written by the proxy's thread; to be read when the operator is at rest."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.writes: list[Write] = []
        self.events: list[Seen] = []
        self.calls: collections.Counter[tuple[str, str]] = collections.Counter()
        self.newest = 0  # the highest resource version that has passed
        self._counts: collections.Counter[tuple[str, str, str]] = collections.Counter()

    def add_call(self, call: Call) -> None:
        """Count a request, whatever becomes of it."""
        self.calls[call.verb, call.target] += 1

    def add_answer(self, call: Call, before: int, code: int, content: bytes) -> None:
        """Take in an answer of the API server; ``before``: ``newest`` when it was asked."""
        answer = _decoded(content)
        self._learn_list(answer)
        version = self._learn(answer)
        if not call.is_write:
            return
        name = self.names.of(call.resource, call.name)
        self._counts[call.verb, call.target, name] += 1
        nth = self._counts[call.verb, call.target, name]
        # A write that changes nothing is answered with the version that there was.
        is_effective = code < 400 and (version > before or call.verb == "delete")
        self.writes.append(Write(call.verb, call.target, name, nth, code, is_effective))

    def add_event(self, kind: str, resource: str, obj: Object) -> str:
        """Take in a watch event; returns the object's name as Names gives it."""
        self._learn(obj)
        name = self.names.of(resource, str(obj["metadata"].get("name", "")))
        self._counts[kind, resource, name] += 1
        self.events.append(Seen(kind, resource, name, self._counts[kind, resource, name]))
        return name

    @property
    def effective(self) -> list[Write]:
        """Writes that changed something, in their order."""
        return [write for write in self.writes if write.is_effective]

    def _learn_list(self, answer: Object) -> None:
        kind = str(answer.get("kind", "")).removesuffix("List")
        items: Iterable[Object] = answer.get("items") or ()
        for item in items:
            self._learn({"kind": kind, **item})

    def _learn(self, obj: Object) -> int:
        """Remember the newest version of all; returns that of the object, or 0."""
        self.names.learn(obj)
        version = str((obj.get("metadata") or {}).get("resourceVersion", ""))
        number = int(version) if version.isdigit() else 0
        self.newest = max(self.newest, number)
        return number


def _decoded(content: bytes) -> Object:
    try:
        answer = json.loads(content)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
