"""Pages: the parts of a block for one layer each, and rules that make them equally large."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvsim.attention.spec import kind_of_layer
from kvsim.rules.blocks.attention import cdiv

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.attention.mamba import StateCache
    from kvsim.budget.layer import LayerKV

#: The tokens of a block must be a multiple of these: for attention kernels, and for MLA's.
KERNEL_ALIGNMENT, MLA_ALIGNMENT = 16, 128


class Page(NamedTuple):
    """One layer's part of a block.

    ``page_bytes`` includes the padding; ``used_bytes`` is the content, keys and values of
    ``block_size`` tokens or one state. ``is_latent`` is set for MLA and its indexer. Under context
    parallelism each of ``num_shares`` ranks has a page with different tokens.
    """

    kind: str
    window: int | None
    block_size: int
    bytes_per_token: int
    page_bytes: int
    used_bytes: int
    is_latent: bool = False
    state: StateCache | None = None
    num_shares: int = 1

    @property
    def is_state(self) -> bool:
        """True if the layer keeps a state per request and nothing per token."""
        return kind_of_layer(self.kind).is_state

    @property
    def sort(self) -> tuple[object, ...]:
        """Key that the layers of one group share; page sizes may differ, except for states."""
        if self.is_state:
            return self.kind, self.block_size, self.page_bytes, self.state
        return self.kind, self.block_size, self.window, self.num_shares


def aligned_block_size(layers: Sequence[LayerKV], block_size: int) -> int:
    """Raise the block size until a page of attention is as large as a state.

    Without states the block size stays. A raised block size is a multiple of the attention kernels'
    alignment.
    """
    states = [layer.state_bytes for layer in layers if layer.kind == "mamba"]
    attention = [layer for layer in layers if not layer.is_state]
    if not states or not attention:
        return block_size
    unit = max(KERNEL_ALIGNMENT, block_size)
    if any(layer.num_tensors == 1 for layer in attention):
        unit = max(unit, MLA_ALIGNMENT)
    bytes_per_token = max(layer.bytes_per_token for layer in attention)
    return unit * cdiv(max(states), unit * bytes_per_token)


def pages_of(
    layers: Sequence[LayerKV],
    block_size: int,
    state: StateCache,
    max_model_len: int,
    num_shares: int = 1,
) -> list[Page]:
    """Return every layer's page; states are padded to the largest page of attention.

    Context parallelism splits the tokens of attention layers over ``num_shares`` ranks, except for
    copied layers.
    """
    largest = block_size * max((layer.bytes_per_token for layer in layers), default=0)
    uncached = max_model_len if state.mode == "none" else block_size
    pages = []
    for layer in layers:
        kind, held = layer.kind, layer.state_bytes
        if kind == "mamba":
            padded = max(held, largest)
            pages.append(Page(kind, None, uncached, 0, padded, held, state=state))
        elif kind == "ring":
            pages.append(Page(kind, None, block_size, 0, held, held))
        else:
            slot, latent = layer.bytes_per_token, layer.num_tensors == 1
            tokens = layer.block_size or block_size
            used = cdiv(tokens, layer.tokens_per_slot) * slot
            size = cdiv(used, layer.alignment) * layer.alignment
            shares = 1 if layer.is_copied else num_shares
            page = Page(kind, layer.window, tokens, used // tokens, size, used, latent)
            pages.append(page._replace(num_shares=shares))
    return pages


def unified(pages: Sequence[Page]) -> list[Page] | None:
    """Make all pages as large as the largest; return None if that is impossible.

    A smaller page of attention gets a longer block if the sizes divide, otherwise padding; MLA's
    kernels cannot read padded pages. States are padded.
    """
    largest = max(page.page_bytes for page in pages)
    made = []
    for page in pages:
        if page.page_bytes == largest:
            made.append(page)
        elif page.is_state:
            made.append(page._replace(page_bytes=largest))
        elif largest % page.page_bytes == 0:
            ratio = largest // page.page_bytes
            longer, used = page.block_size * ratio, page.used_bytes * ratio
            made.append(page._replace(block_size=longer, page_bytes=largest, used_bytes=used))
        elif page.is_latent:
            return None
        else:
            made.append(page._replace(page_bytes=largest))
    return made
