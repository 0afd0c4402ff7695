"""Partitions on several ranks, none of which ever holds the whole graph."""
