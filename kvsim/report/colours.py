"""The colours of causes, lines and parts, one set for all figures and pages."""

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
#: Causes on which white text is read best.
DARK = (Cause.TOKEN_STATES, Cause.EXTERNAL)

#: Styles of lines, and their colours: Tol's muted palette and three more, which all can tell apart.
STYLES = ("-", "--", ":")
LINES = (
    *("#332288", "#CC6677", "#117733", "#AA4499", "#882255", "#44AA99", "#999933"),
    *("#88CCEE", "#DDCC77", "#777777", "#EE8866", "#000000"),
)
