"""Text to packed rows: made once, read by step."""


class DataError(ValueError):
    """Text or packed data that cannot be used; the message says what to do."""
