"""Hit rates of prefix caches over their size, without simulated time."""
