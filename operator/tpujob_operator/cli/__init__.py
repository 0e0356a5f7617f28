"""The command line, also as kubectl plugin."""
