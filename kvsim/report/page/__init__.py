"""One HTML file of a run, a comparison, a sweep or a search."""
