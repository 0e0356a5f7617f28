"""Text to batches: packing once, then random access by step."""
