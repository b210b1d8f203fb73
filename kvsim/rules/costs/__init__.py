"""Terms of the step time that only few configurations have."""
