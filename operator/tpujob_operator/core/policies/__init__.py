"""The ordered policies that decide() runs."""
