"""The record format: a row of tokens, and where documents begin in it.

A record is ``used`` (uint32), then length + 1 tokens (uint8, uint16 or uint32, as the
vocabulary needs), then one bit a token that is set where a document begins; little-endian.
All records of a length have the same size, so that a batch is decoded at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tpujob_data.tokens import Tokens

Ints = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

_USED = np.dtype("<u4")


class Rows(NamedTuple):
    """Rows, R x (length + 1): ``Ints`` on the host, later arrays or their shapes."""

    tokens: Any
    #: Number of the document in its row, from 1; 0 for padding.
    segments: Any


def token_type(vocab: int) -> np.dtype[np.uint32]:
    """The smallest type that holds every token of a vocabulary."""
    return np.dtype("<u1" if vocab <= 1 << 8 else "<u2" if vocab <= 1 << 16 else "<u4")


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Where the parts of a record are."""

    length: int
    vocab: int

    @property
    def _tokens(self) -> slice:
        size = (self.length + 1) * token_type(self.vocab).itemsize
        return slice(_USED.itemsize, _USED.itemsize + size)

    @property
    def record_bytes(self) -> int:
        """Size of every record."""
        bits: int = -(-(self.length + 1) // 8)
        return int(self._tokens.stop) + bits

    def encode(self, tokens_RxM: Tokens, starts_RxM: Flags, used_R: Tokens) -> Bytes:
        """Records of rows, R x record size."""
        count = len(tokens_RxM)
        return np.concatenate(
            [
                used_R.astype(_USED).view(np.uint8).reshape(count, -1),
                tokens_RxM.astype(token_type(self.vocab)).view(np.uint8).reshape(count, -1),
                np.packbits(starts_RxM, axis=1, bitorder="little"),
            ],
            axis=1,
        )

    def decode(self, records: Sequence[bytes]) -> Rows:
        """Inverse of ``encode``."""
        raw = np.frombuffer(b"".join(records), np.uint8).reshape(-1, self.record_bytes)
        used_Rx1 = np.ascontiguousarray(raw[:, : _USED.itemsize]).view(_USED)
        tokens = np.ascontiguousarray(raw[:, self._tokens]).view(token_type(self.vocab))
        bits = raw[:, self._tokens.stop :]
        starts = np.unpackbits(bits, axis=1, count=self.length + 1, bitorder="little")
        starts[:, 0] = 1  # a row may begin within a document
        segments = np.cumsum(starts, axis=1, dtype=np.int32)
        segments[np.arange(self.length + 1) >= used_Rx1] = 0
        return Rows(tokens.astype(np.int32), segments)
