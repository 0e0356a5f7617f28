"""The coordinator: one per job, decides who is in the world."""
