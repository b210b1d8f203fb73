"""Rules of block pools and prefix caches."""
