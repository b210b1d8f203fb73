"""Colours of memory causes and of lines, one set for all figures and pages."""

from kvsim.kv.usage import Cause

#: Colour and label per cause. The colours differ in lightness, so that they stay distinct in grey
#: and without colour vision: token states are darkest, free memory is lightest (D93).
CAUSES = {
    Cause.TOKEN_STATES: ("#0B4F8A", "token states"),
    Cause.RESERVATION: ("#6BAED6", "reservation (used later)"),
    Cause.INTERNAL: ("#E8B92E", "internal (reserved, never used)"),
    Cause.EXTERNAL: ("#C4451C", "external (rounding, refused head)"),
    Cause.CACHED: ("#2E9E77", "cached prefixes (free)"),
    Cause.FREE: ("#DADADA", "free"),
}
#: Causes with a dark colour; text on them is white.
DARK = (Cause.TOKEN_STATES, Cause.EXTERNAL)

#: Styles of lines, and their colours, which are distinct for every kind of colour vision: Tol's
#: muted palette and three more.
STYLES = ("-", "--", ":")
LINES = (
    *("#332288", "#CC6677", "#117733", "#AA4499", "#882255", "#44AA99", "#999933"),
    *("#88CCEE", "#DDCC77", "#777777", "#EE8866", "#000000"),
)
