"""SGLang in fleets: replicas that read a store behind their hosts."""
