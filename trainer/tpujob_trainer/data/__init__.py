"""Text to batches: packing once, then random access by step."""


class DataError(ValueError):
    """Text or packed data that cannot be used; the message says what to do."""
