"""Values of an option between which prefix hits or first tokens jump."""
