"""Temporal graphs: events in time, node memory with mailboxes, and attention over recent neighbors."""
