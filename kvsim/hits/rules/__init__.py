"""A cache of prompt blocks without time: plain functions over arrays, run as Python or compiled."""
