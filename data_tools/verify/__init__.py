"""Checks a partition set exactly: every byte, row and value, by itself or against its graph file."""
