"""Claims of the documents that kvsim was started from."""
