"""The schedulers of the baselines."""
