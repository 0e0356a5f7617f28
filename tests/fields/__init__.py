"""``make fields``: every field of jobs that run is changed, and changed back."""
