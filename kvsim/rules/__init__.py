"""The rules of the simulation: plain Python functions over records, interpreted or compiled.

A rule reads and writes fields of records (:mod:`kvsim.records`) and calls other rules. Both
backends run the same functions, so rules use only what both support: loops, branches, integers
below 2**63, floats and tuples. See ARCHITECTURE.md, "How a rule runs both ways".
"""
