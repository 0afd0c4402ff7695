"""Checks a partition set exactly: every byte, row and value, alone or against its graph file."""
