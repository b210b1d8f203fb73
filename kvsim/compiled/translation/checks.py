"""Checks of code that compares every index with the length of its list.

A wrong index writes the address of its text to ``kvsim_fault``, and all functions return at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.compiled.translation.kinds import IS_OPAQUE

if TYPE_CHECKING:
    from kvsim.compiled.translation.body import Body

FAULT = f"{'ptr' if IS_OPAQUE else 'i64*'} @kvsim_fault"


def check_index(body: Body, index: str, length: str) -> None:
    """Write the comparison of an index with the length of its list."""
    said = f"an index is out of range: {body.names['__file__']}:{body.line}, in {body.where}"
    text = said.encode() + b"\0"
    name, kind = f'@"fault {body.where} {body.line}"', f"[{len(text)} x i8]"
    written = "".join(f"\\{byte:02X}" for byte in text)
    body.unit.declare("@kvsim_fault = external global i64")
    body.unit.declare(f'{name} = private constant {kind} c"{written}"')
    bad, good = body.new(), body.new()
    is_wrong = body.write(f"icmp uge i64 {index}, {length}")
    body.do(f"br i1 {is_wrong}, label %{bad}, label %{good}")
    body.do(f"{bad}:")
    pointer = "ptr" if IS_OPAQUE else f"{kind}*"
    body.do(f"store i64 ptrtoint ({pointer} {name} to i64), {FAULT}")
    body.leave()
    body.label(good)


def check_fault(body: Body) -> None:
    """In checked code, return after a call if an index was out of range."""
    if body.unit.checked:
        body.unit.declare("@kvsim_fault = external global i64")
        fault = body.write(f"load i64, {FAULT}")
        is_wrong, bad, good = body.write(f"icmp ne i64 {fault}, 0"), body.new(), body.new()
        body.do(f"br i1 {is_wrong}, label %{bad}, label %{good}")
        body.do(f"{bad}:")
        body.leave()
        body.label(good)
