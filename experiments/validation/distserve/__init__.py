"""DistServe's placement of OPT-13B."""
