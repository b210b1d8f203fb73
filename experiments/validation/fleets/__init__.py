"""Published figures of fleets, a file per study."""
