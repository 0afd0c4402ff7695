"""The file formats, and what a rank holds of a partition set whatever the kind of graph."""
