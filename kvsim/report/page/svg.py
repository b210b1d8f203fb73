"""Matplotlib figures as SVG inside a page, without style sheets and in the page's text colour."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import matplotlib as mpl

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
#: Colours of figures that become the colour of the page's text.
INK = ("#000000", "black")
#: Text settings with which an SVG needs no style sheet: the page's security policy forbids those.
SETTINGS: dict[str, Any] = {"svg.fonttype": "none", "font.family": "sans-serif"}


def inline_svg(figure: Figure, name: str, label: str) -> str:
    """Return a figure as an ``svg`` element.

    Parameters
    ----------
    name : unique in the page; the ids in the figure begin with it
    label : description of the figure for screen readers
    """
    figure.patch.set_alpha(0.0)
    for axes in figure.axes:
        axes.patch.set_alpha(0.0)
    file = io.StringIO()
    settings: Any = {**SETTINGS, "svg.hashsalt": name}
    with mpl.rc_context(settings):
        figure.savefig(file, format="svg", metadata={"Date": None})
    for prefix, space in (("", SVG), ("xlink", XLINK)):
        ElementTree.register_namespace(prefix, space)
    root = ElementTree.fromstring(file.getvalue().encode())
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{SVG}}}metadata", f"{{{SVG}}}style"):
                parent.remove(child)
    for element in root.iter():
        _without_style(element)
        for key in ("id", "clip-path", f"{{{XLINK}}}href"):
            value = element.get(key)
            if value and not value.startswith("data:"):
                element.set(key, re.sub(r"^(#|url\(#)?", rf"\g<1>{name}-", value))
    for key in ("width", "height"):
        root.attrib.pop(key, None)
    root.set("role", "img")
    root.set("aria-label", label)
    root.set("class", "chart")
    return ElementTree.tostring(root, encoding="unicode")


def _without_style(element: ElementTree.Element) -> None:
    """Split a style attribute into separate attributes; black becomes the page's text colour."""
    style = element.attrib.pop("style", "")
    for one in filter(None, (part.strip() for part in style.split(";"))):
        key, _, value = one.partition(":")
        value = value.strip()
        if key == "font":
            size = re.search(r"([\d.]+)px", value)
            if size:
                element.set("font-size", size[1])
            continue
        element.set(key.strip(), "currentColor" if value in INK else value)
    if element.tag == f"{{{SVG}}}text" and "fill" not in element.attrib:
        element.set("fill", "currentColor")
    for key in ("fill", "stroke"):
        if element.get(key) in INK:
            element.set(key, "currentColor")
