"""One long job under many random faults."""
