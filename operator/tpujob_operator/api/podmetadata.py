"""What Kubernetes asks of labels and annotations of pods, which JobSet passes on unjudged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

#: Of all annotations of a pod together, in bytes; those that the operator adds need little.
MAX_ANNOTATIONS_BYTES = 255 * 1024

_WORD = "[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_DOMAIN = "[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?"
_NAME = re.compile(f"(?:{_DOMAIN}/)?{_WORD}")
_VALUE = re.compile(f"(?:{_WORD})?")


def metadata_problems(path: str, template: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a template's metadata and node selector; the Job would never be made."""
    metadata, pod = template.get("metadata") or {}, template.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    maps = {
        "metadata.labels": metadata.get("labels") or {},
        "spec.nodeSelector": pod.get("nodeSelector") or {},
    }
    for field, labels in maps.items():
        yield from _names(f"{path}.{field}", labels)
        for name, value in labels.items():
            if not _VALUE.fullmatch(value):
                yield (
                    f"{path}.{field}: {name}: {value[:80]!r} is no value of a label: at most 63 "
                    "letters, digits, '-', '_' and '.', with a letter or digit at both ends"
                )
    yield from _names(f"{path}.metadata.annotations", annotations)
    size = sum(len(name.encode()) + len(text.encode()) for name, text in annotations.items())
    if size > MAX_ANNOTATIONS_BYTES:
        yield (
            f"{path}.metadata.annotations: {size} bytes are too many: a pod's annotations may have "
            f"{MAX_ANNOTATIONS_BYTES}; keep large texts in a ConfigMap"
        )


def _names(path: str, given: Mapping[str, Any]) -> Iterator[str]:
    for name in given:
        if not _NAME.fullmatch(name):
            yield (
                f"{path}: {name[:80]!r} is no name of a label or annotation: at most 63 letters, "
                "digits, '-', '_' and '.', after a domain and '/' if you like"
            )
