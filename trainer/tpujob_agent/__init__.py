"""The agent: process 1 of every worker container. Standard library only."""
