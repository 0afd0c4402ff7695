"""Models whose messages start at the node of a query."""
