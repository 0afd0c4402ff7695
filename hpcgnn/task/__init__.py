"""Tasks on all kinds of graphs: scores, losses, and metrics over whole splits."""
