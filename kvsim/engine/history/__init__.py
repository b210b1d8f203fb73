"""The history of each block, read from the pool after each step."""
