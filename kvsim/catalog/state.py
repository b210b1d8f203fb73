"""Layers that keep a state per request instead of KV per token: Mamba and linear attention."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

#: Mamba (arXiv 2312.00752), Mamba-2 (arXiv 2405.21060), gated delta net (arXiv 2412.06464), Kimi
#: delta attention (arXiv 2510.26692), short convolution alone (LFM2).
StateForm = Literal["mamba1", "mamba2", "gdn", "kda", "conv"]

STATE_FORMS: tuple[str, ...] = get_args(StateForm)

#: Forms for which vLLM lengthens the convolution window by the number of drafted tokens.
WIDENED = ("mamba2", "gdn")


class StateLayer(NamedTuple):
    """One layer's state: a matrix per head, and the last inputs of a short convolution.

    Parameters
    ----------
    form : kind of the layer
    num_heads, head_dim : heads of the values and their width; Mamba-1 has one head of all channels
    num_groups, size : heads of the keys (Mamba: groups of B and C), and their width
    conv_kernel : number of inputs of the convolution
    dtype : data type of the matrix; None: that of the weights
    full_gate : the output is gated by one matrix instead of two narrow ones
    has_norm : Mamba-2's gated output is normalised
    """

    form: StateForm
    num_heads: int
    head_dim: int
    num_groups: int
    size: int
    conv_kernel: int
    dtype: str | None = None
    full_gate: bool = False
    has_norm: bool = True

    @property
    def width(self) -> int:
        """Number of channels of the values."""
        return self.num_heads * self.head_dim

    @property
    def num_elements(self) -> int:
        """Elements of the matrices of all heads; a convolution alone has none."""
        return 0 if self.form == "conv" else self.width * self.size

    def num_conv_channels(self, tensor_parallel_size: int = 1) -> int:
        """Return the channels of the convolution on one rank: values, keys, queries (or B and C).

        If Mamba-2's groups do not divide evenly over the ranks, every rank has one group.
        """
        groups, tp = self.num_groups, tensor_parallel_size
        if self.form == "conv":
            return self.width // tp
        if self.form == "mamba2" and groups % tp:
            groups = tp
        return (self.width + 2 * groups * self.size) // tp

    def num_bytes(
        self,
        element_bytes: int,
        conv_element_bytes: int,
        *,
        tensor_parallel_size: int = 1,
        num_speculative_tokens: int = 0,
    ) -> int:
        """Return the bytes of one state on one rank.

        Raises
        ------
        ValueError
            If the heads do not divide over the ranks.
        """
        tp = tensor_parallel_size
        shared = self.width if self.form in ("mamba1", "conv") else self.num_heads
        if shared % tp or (self.form in ("gdn", "kda") and self.num_groups % tp):
            raise ValueError(
                f"{self.num_heads} heads of linear attention cannot be divided over "
                f"tensor_parallel_size {tp}"
            )
        drafts = num_speculative_tokens if self.form in WIDENED else 0
        window = self.num_conv_channels(tp) * (self.conv_kernel - 1 + drafts)
        return self.num_elements // tp * element_bytes + window * conv_element_bytes

    def num_params(self, hidden_size: int) -> int:
        """Return the parameters of the layer's mixer."""
        h, width, heads, size = hidden_size, self.width, self.num_heads, self.size
        channels = self.num_conv_channels()
        conv, out = channels * self.conv_kernel, width * h
        if self.form == "conv":  # two gates beside its input
            return h * 3 * width + conv + out
        if self.form == "mamba1":  # Jamba's, with norms on step, B and C
            rank = -(-h // 16)
            step = width * (rank + 2 * size) + (rank + 1) * width + rank + 2 * size
            return h * 2 * width + conv + width + step + width * size + width + out
        if self.form == "mamba2":
            norm = width if self.has_norm else 0
            return h * (width + channels + heads) + conv + channels + 3 * heads + norm + out
        if self.form == "gdn":
            return h * (width + channels + 2 * heads) + conv + 2 * heads + self.head_dim + out
        narrow = h * self.head_dim + self.head_dim * width
        gates = narrow + (h * width if self.full_gate else narrow)
        return h * (channels + heads) + conv + gates + heads + width + self.head_dim + out
