"""The single source of every rule: plain Python over records, run interpreted or compiled.

A rule reads and writes the fields of records (:mod:`kvsim.records`) and calls other rules. Both
engines run these very functions, so a rule keeps to what both understand: loops, branches, integers
that stay below 2**63, floats, and tuples. ARCHITECTURE.md says more ("How a rule runs both ways").
"""
