"""Result tables, totals and metrics: pure functions of what a run recorded."""
