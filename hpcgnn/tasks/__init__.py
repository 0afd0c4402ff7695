"""Losses, scores and metrics of the tasks."""
