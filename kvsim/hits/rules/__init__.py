"""A cache of prompt blocks: plain functions over arrays, run as Python or compiled."""
