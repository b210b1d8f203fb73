"""Terminal tables, figures and files for people."""
