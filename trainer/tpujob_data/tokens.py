"""Text to token numbers: bytes as they are, or by a file of the ``tokenizers`` library."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tpujob_data import DataError

BYTES = "bytes"
#: What well-known tokenizers call the token that ends a document.
_END_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")

Tokens = npt.NDArray[np.uint32]


class Tokenizer(Protocol):
    """Turns texts into tokens, each text ended by ``end``."""

    name: str
    sha256: str
    vocab: int
    end: int

    def encode(self, texts: Sequence[bytes]) -> list[Tokens]:
        """The tokens of each text."""


class ByteTokenizer:
    """Every byte is a token; NUL, which text does not hold, ends a document."""

    name, sha256, vocab, end = BYTES, "", 256, 0

    def encode(self, texts: Sequence[bytes]) -> list[Tokens]:
        """The tokens of each text."""
        return [np.frombuffer(text + b"\0", np.uint8).astype(np.uint32) for text in texts]


class FileTokenizer:
    """A ``tokenizer.json``; special tokens are added only at the end of a document."""

    def __init__(self, path: Path, end_token: str) -> None:
        tokenizer = _read(path)
        vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
        self._tokenizer = tokenizer
        self.name = path.name
        self.sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        self.vocab = max(vocabulary.values(), default=0) + 1
        self.end = _end_of(vocabulary, tokenizer, end_token, path)

    def encode(self, texts: Sequence[bytes]) -> list[Tokens]:
        """The tokens of each text; what is no UTF-8 becomes U+FFFD."""
        decoded = [text.decode(errors="replace") for text in texts]
        encoded = self._tokenizer.encode_batch_fast(decoded, add_special_tokens=False)
        return [np.asarray([*one.ids, self.end], np.uint32) for one in encoded]


@functools.cache
def load(name: str, end_token: str = "") -> Tokenizer:
    """The tokenizer called ``bytes``, or that of a file.

    Args:
        name: ``bytes`` or the path of a ``tokenizer.json``.
        end_token: the token that ends a document; empty: a well-known name.

    Raises:
        DataError: the file cannot be used, or does not tell how a document ends.
    """
    return ByteTokenizer() if name == BYTES else FileTokenizer(Path(name), end_token)


def _read(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer as Library  # noqa: PLC0415 - not for bytes
    except ImportError as error:
        raise DataError(
            f"{path} needs the tokenizers library: pip install 'tpujob[trainer]'"
        ) from error
    if not path.is_file():
        raise DataError(f"--tokenizer {path} is neither 'bytes' nor a file (a tokenizer.json)")
    try:
        return Library.from_file(str(path))
    except Exception as error:  # the library raises nothing more precise
        raise DataError(f"{path} is no file of the tokenizers library: {error}") from error


def _end_of(vocabulary: dict[str, int], tokenizer: Any, wanted: str, path: Path) -> int:
    for name in (wanted,) if wanted else _END_TOKENS:
        if name in vocabulary:
            return vocabulary[name]
    special = [t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special]
    shown = ", ".join(special[:12]) or "none"
    fault = f"has no token {wanted!r}" if wanted else "does not tell which token ends a document"
    raise DataError(f"{path} {fault}: give --end-token, one of its special tokens ({shown})")
