"""Figures other than those of single runs."""
