"""Offline tools: convert, fetch, synthesize, partition, verify, inspect (each ``python -m data_tools.X``)."""
