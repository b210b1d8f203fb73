"""The kinds of attention, a file each: specification, rules, step cost and names."""
