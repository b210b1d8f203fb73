"""Measured step times and kernels, and the constants fitted on them."""
