"""How documents become rows; pure functions of the tokens.

Without buckets: concatenate and split. Every row is full and every token is a target once,
which best-fit packing buys only with padding and a sort of the whole corpus; what it would
save, cuts within documents, matters little at rows much longer than most documents.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from tpujob_data.rows import Flags
from tpujob_data.tokens import Tokens

#: Tokens held before rows are made of them.
_STRETCH = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """Rows of one length."""

    length: int
    tokens_RxM: Tokens
    starts_RxM: Flags
    used_R: Tokens


class Packer(Protocol):
    """Takes documents, gives rows."""

    def add(self, tokens: Tokens) -> Iterator[Block]:
        """Rows that are complete with one more document."""

    def finish(self) -> Iterator[Block]:
        """Rows of what is left."""


def make_packer(lengths: Sequence[int]) -> Packer:
    """One length: rows are filled. Several: a document gets the shortest that holds it."""
    return Splitter(lengths[0]) if len(lengths) == 1 else Bucketer(lengths)


class Splitter:
    """Documents one after another, cut into rows of L + 1 tokens that overlap by one."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._tokens: list[Tokens] = []
        self._starts: list[Flags] = []
        self._held = 0

    def add(self, tokens: Tokens) -> Iterator[Block]:
        """Rows that are complete with one more document."""
        starts = np.zeros(len(tokens), np.bool_)
        starts[:1] = True
        self.extend(tokens, starts)
        if self._held >= max(_STRETCH, self._length + 1):
            yield from self.finish()

    def extend(self, tokens: Tokens, starts: Flags) -> None:
        """Take more of the stream."""
        self._tokens.append(tokens)
        self._starts.append(starts)
        self._held += len(tokens)

    def finish(self) -> Iterator[Block]:
        """All complete rows; the rest waits for more."""
        tokens, starts = self.rest()
        count = max(0, (len(tokens) - 1) // self._length)
        kept = slice(count * self._length, None)
        self._tokens, self._starts = [tokens[kept]], [starts[kept]]
        self._held = len(tokens[kept])
        if count:
            used = np.full(count, self._length + 1, np.uint32)
            yield Block(
                self._length, _windows(tokens, self._length), _windows(starts, self._length), used
            )

    def rest(self) -> tuple[Tokens, Flags]:
        """What no complete row was made of yet; its first token was a target already."""
        tokens = np.concatenate([*self._tokens, np.empty(0, np.uint32)])
        return tokens, np.concatenate([*self._starts, np.empty(0, np.bool_)])


def _windows(stream: Any, length: int) -> Any:
    return np.lib.stride_tricks.sliding_window_view(stream, length + 1)[::length]


class Bucketer:
    """One document a row, in the shortest bucket that holds it; the rest of the row is padding.

    A document longer than the longest bucket fills rows of it, and its end is put like a
    document of its own.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = sorted(lengths)
        self._rows: dict[int, list[Tokens]] = {length: [] for length in self._lengths}

    def add(self, tokens: Tokens) -> Iterator[Block]:
        """Rows that are complete with one more document."""
        longest = self._lengths[-1]
        for start in range(0, len(tokens) - 1, longest):
            row = tokens[start : start + longest + 1]
            length = next(length for length in self._lengths if len(row) <= length + 1)
            self._rows[length].append(row)
            if len(self._rows[length]) * length >= _STRETCH:
                yield self._block(length)

    def finish(self) -> Iterator[Block]:
        """Rows of what is left."""
        for length, rows in self._rows.items():
            if rows:
                yield self._block(length)

    def _block(self, length: int) -> Block:
        rows, self._rows[length] = self._rows[length], []
        used = np.asarray([len(row) for row in rows], np.uint32)
        tokens = np.zeros((len(rows), length + 1), np.uint32)
        tokens[np.arange(length + 1) < used[:, None]] = np.concatenate(rows)
        starts = np.zeros(tokens.shape, np.bool_)
        starts[:, 0] = True
        return Block(length, tokens, starts, used)
