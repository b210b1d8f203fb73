"""Many runs at once: sweeps that go on where they were stopped."""
