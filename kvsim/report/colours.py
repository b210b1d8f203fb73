"""The colours of lines and parts, one set for all figures."""

#: Of lines: colours that all can tell apart (Tol's muted palette, none of a cause), then styles.
STYLES = ("-", "--", ":")
LINES = ("#332288", "#CC6677", "#117733", "#AA4499", "#882255", "#44AA99", "#999933")
