"""Kernels of the waiting queue: first come first served, or by priority; see kvsim.sched.queue."""

from __future__ import annotations

from numba import njit

from kvsim.engine.kernel_places import (
    ARRIVAL,
    BY_PRIORITY,
    HEAP,
    NUM_WAITING,
    PRIORITY,
    QUEUE_HEAD,
    QUEUE_NEXT,
    QUEUE_PREVIOUS,
    QUEUE_TAIL,
)

# -- the waiting queue ----------------------------------------------------------------------------


@njit
def before(m, f, u, maps, a, b):
    if m[PRIORITY + a] != m[PRIORITY + b]:
        return m[PRIORITY + a] < m[PRIORITY + b]
    if f[ARRIVAL + a] != f[ARRIVAL + b]:
        return f[ARRIVAL + a] < f[ARRIVAL + b]
    return a < b


@njit
def sift_up(m, f, u, maps, at):
    while at > 0:
        parent = (at - 1) // 2
        if not before(m, f, u, maps, m[m[HEAP] + at], m[m[HEAP] + parent]):
            return
        m[m[HEAP] + at], m[m[HEAP] + parent] = m[m[HEAP] + parent], m[m[HEAP] + at]
        at = parent


@njit
def sift_down(m, f, u, maps, at, n):
    while True:
        least = at
        for child in range(2 * at + 1, min(2 * at + 3, n)):
            if before(m, f, u, maps, m[m[HEAP] + child], m[m[HEAP] + least]):
                least = child
        if least == at:
            return
        m[m[HEAP] + at], m[m[HEAP] + least] = m[m[HEAP] + least], m[m[HEAP] + at]
        at = least


@njit
def queue_append(m, f, u, maps, r):
    n = m[NUM_WAITING]
    m[NUM_WAITING] = n + 1
    if m[BY_PRIORITY]:
        m[m[HEAP] + n] = r
        sift_up(m, f, u, maps, n)
        return
    tail = m[QUEUE_TAIL]
    m[QUEUE_PREVIOUS + r] = tail
    m[QUEUE_NEXT + r] = -1
    if tail < 0:
        m[QUEUE_HEAD] = r
    else:
        m[QUEUE_NEXT + tail] = r
    m[QUEUE_TAIL] = r


@njit
def queue_push_front(m, f, u, maps, r):
    if m[BY_PRIORITY]:
        queue_append(m, f, u, maps, r)
        return
    head = m[QUEUE_HEAD]
    m[QUEUE_NEXT + r] = head
    m[QUEUE_PREVIOUS + r] = -1
    if head < 0:
        m[QUEUE_TAIL] = r
    else:
        m[QUEUE_PREVIOUS + head] = r
    m[QUEUE_HEAD] = r
    m[NUM_WAITING] += 1


@njit
def queue_head(m, f, u, maps):
    return m[m[HEAP] + 0] if m[BY_PRIORITY] else m[QUEUE_HEAD]


@njit
def queue_remove(m, f, u, maps, r):
    n = m[NUM_WAITING] - 1
    m[NUM_WAITING] = n
    if m[BY_PRIORITY]:
        at = 0
        while m[m[HEAP] + at] != r:
            at += 1
        m[m[HEAP] + at] = m[m[HEAP] + n]
        if at < n:
            sift_up(m, f, u, maps, at)
            sift_down(m, f, u, maps, at, n)
        return
    previous, following = m[QUEUE_PREVIOUS + r], m[QUEUE_NEXT + r]
    if previous < 0:
        m[QUEUE_HEAD] = following
    else:
        m[QUEUE_NEXT + previous] = following
    if following < 0:
        m[QUEUE_TAIL] = previous
    else:
        m[QUEUE_PREVIOUS + following] = previous
