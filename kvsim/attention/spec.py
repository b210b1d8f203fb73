"""The base of the kinds of attention, and the kinds by name and by number."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

from kvsim.dispatch import KINDS
from kvsim.registry import Registry
from kvsim.rules.blocks.attention import cdiv
from kvsim.rules.blocks.prefix import find_prefix
from kvsim.rules.blocks.window import drop_leading, is_past_window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.records.kv import KV
    from kvsim.records.paged import BlockTable, KVGroup, LookupSpec, RequestBlocks
    from kvsim.records.request import Request


class AttentionSpec:
    """The attention of a group of layers; a subclass is a kind.

    The static methods are rules, in Python and compiled; here they are those of a kind that sees
    all tokens. ``window`` in them is :attr:`num_kept_tokens`, or the window or chunk of a layer.

    Attributes
    ----------
    block_size : tokens per block
    window : tokens of the window or chunk, 0 without one
    layer : name of the kind of layer in the memory plan, ``full`` for a kind that no model has
    letter : letter of these layers in ``ModelSpec.layer_pattern``; empty for none
    has_window : a layer needs a window or chunk
    title : name in reports
    event_names : names in KV cache events, of keys and values and of latents
    sees_all : a hit needs all blocks of the prefix; the look-up is that of full attention, and
        :meth:`find` is not called
    has_holes : a table may have null blocks after a block in use
    is_state : a block holds a state, not tokens
    holds_one : a request holds one block
    is_linear : a decode attends to its context, or to the last tokens of it; measured step costs
        need this
    can_offload, can_transfer : KV connectors offload, and transfer, its blocks
    spec_blocks : blocks for the states of drafts
    """

    if TYPE_CHECKING:

        @property
        def block_size(self) -> int: ...
        @property
        def window(self) -> int: ...

    layer: ClassVar[str] = "full"
    letter: ClassVar[str] = ""
    has_window: ClassVar[bool] = False
    title: ClassVar[str] = "full attention"
    event_names: ClassVar[tuple[str, str]] = ("full_attention", "mla_attention")
    sees_all: ClassVar[bool] = False
    has_holes: ClassVar[bool] = False
    is_state: ClassVar[bool] = False
    holds_one: ClassVar[bool] = False
    is_linear: ClassVar[bool] = False
    can_offload: ClassVar[bool] = False
    can_transfer: ClassVar[bool] = False
    #: The class whose rules and number it has.
    of_kind: ClassVar[type[AttentionSpec]]

    def __init_subclass__(cls, *, own_rules: bool = True) -> None:
        if own_rules:
            cls.of_kind = cls

    @classmethod
    def of_layer(cls, block_size: int, window: int | None, state: Any) -> Self:
        """Return the specification of a group of layers of a model.

        ``state`` is a :class:`~kvsim.attention.mamba.StateCache` for layers that keep a state per
        request, else None.
        """
        made: Any = cls
        found: Self = made(block_size, window) if cls.has_window else made(block_size)
        return found

    @property
    def kind(self) -> int:
        """The number of the kind, which depends on the kinds there are."""
        return KINDS.all().index(self.of_kind)

    @property
    def is_cached(self) -> bool:
        """True if blocks get keys and can be hit."""
        return True

    @property
    def caches_states(self) -> bool:
        """True if states at block ends are kept for later requests."""
        return False

    @property
    def num_kept_tokens(self) -> int:
        """Tokens of the window, and those that are kept before it."""
        return self.window

    @property
    def event_window(self) -> int | None:
        """The window in KV cache events."""
        return None

    @property
    def reference_window(self) -> int:
        """Output tokens that are kept besides the prompt; 0 for most kinds."""
        return 0

    @property
    def replay_window(self) -> int:
        """Tokens that are recomputed after a hit."""
        return 0

    @property
    def num_spec_blocks(self) -> int:
        """Blocks for the states of drafts."""
        return 0

    def most_states(self, num_tokens: int) -> int:
        """Return the most state blocks that a request holds; 0 for a kind without states."""
        return 0

    # -- rules of the memory ----------------------------------------------------------------------

    @staticmethod
    def num_skipped(window: int, num_tokens: int) -> int:
        """Return the leading tokens that token ``num_tokens`` and later ones do not see.

        It is 0 if the first tokens stay visible; a kind that frees later blocks then overrides
        :meth:`drop_unseen`, :meth:`has_unseen` and :meth:`last_quiet_end`.
        """
        return 0

    @staticmethod
    def admission_cap(
        window: int, block_size: int, max_in_flight_tokens: int, max_model_len: int
    ) -> int:
        """Return the most blocks that a request holds; 0 if only its length limits them.

        Blocks of a hit count besides.
        """
        return 0

    @staticmethod
    def find(kv: KV, own_blocks: RequestBlocks, spec: LookupSpec, limit: int, drops: bool) -> int:
        """Return the tokens of the longest prefix to reuse, and enter its blocks in the tables.

        With ``drops``, the last block found is not reused.
        """
        return find_prefix(kv, own_blocks, spec, limit, drops)

    @staticmethod
    def keeps_all(kv: KV, group: KVGroup) -> bool:
        """Return True if a later hit could need any block of a request."""
        return True

    @staticmethod
    def run_length(group: KVGroup) -> int:
        """Return the number of consecutive blocks that a hit needs, unless it needs all."""
        run = cdiv(group.window - group.extra_retained - 1, group.block_size)
        return run + group.drops_last_block

    @staticmethod
    def drop_unseen(
        kv: KV, request: Request, group: KVGroup, table: BlockTable, num_processed: int
    ) -> None:
        """Free the blocks that no token sees after the first ``num_processed`` ones."""
        drop_leading(kv, group, table, num_processed)

    @staticmethod
    def has_unseen(group: KVGroup, table: BlockTable, num_processed: int) -> bool:
        """Return True if :meth:`drop_unseen` may free a block."""
        return is_past_window(group, table, num_processed)

    @staticmethod
    def last_quiet_end(
        kv: KV, request: Request, group: KVGroup, own_blocks: RequestBlocks, last: int
    ) -> int:
        """Return the token count up to which a table stays as it is; 0 if that is not known.

        ``last`` is the token count at the end of its last block. Admission calls it before
        :meth:`drop_unseen`: return 0 if a block is still to be freed.
        """
        return 0

    @staticmethod
    def loses_token(group: KVGroup, own_blocks: RequestBlocks) -> bool:
        """Return True if each further token makes a slot of the window's first block unseen."""
        return False

    # -- rules of the step cost -------------------------------------------------------------------

    @staticmethod
    def num_pairs(window: int, num_tokens: int) -> int:
        """Return the query-key pairs of a sequence's first tokens under causal attention."""
        return num_tokens * (num_tokens + 1) // 2

    @staticmethod
    def num_keys(window: int, num_computed: int, num_new: int) -> int:
        """Return the keys that ``num_new`` tokens after ``num_computed`` ones attend to."""
        return num_computed + num_new


#: The kinds by their names in recorded cases.
ATTENTION: Registry[AttentionSpec] = Registry(
    "kind of attention", "kvsim.attention", AttentionSpec, "kvsim.attention"
)


def all_specs() -> dict[str, type[AttentionSpec]]:
    """Return every kind, and every specification with the rules of another kind, by name."""
    made: Any = {name: ATTENTION.get(name) for name in ATTENTION.names()}
    return dict(made)


def find_kinds() -> tuple[type[AttentionSpec], ...]:
    """Return the kinds by number: full attention, kvsim's other kinds, those from outside."""

    def place(named: tuple[str, type[AttentionSpec]]) -> tuple[bool, bool, str]:
        return not named[1].__module__.startswith("kvsim."), named[0] != "full", named[0]

    specs = dict(sorted(all_specs().items(), key=place))
    return tuple(spec for spec in specs.values() if spec.of_kind is spec)


@cache
def _by_layer(kinds: tuple[type[AttentionSpec], ...]) -> dict[str, type[AttentionSpec]]:
    return {kind.layer: kind for kind in kinds[::-1]}  # full attention also stands for others


def kind_of_layer(name: str) -> type[AttentionSpec]:
    """Return the kind of a layer of the memory plan."""
    return _by_layer(KINDS.all())[name]


def number_of_layer(name: str) -> int:
    """Return the number of the kind of a layer."""
    return KINDS.all().index(kind_of_layer(name))


def layers_by_letter() -> dict[str, type[AttentionSpec]]:
    """Return the kinds that layers of a model have, by letter."""
    return {kind.letter: kind for kind in KINDS.all() if kind.letter}


@contextmanager
def lend(kind: type[AttentionSpec]) -> Iterator[str]:
    """Register a kind temporarily; yield its name."""
    with ATTENTION.lend(kind) as name:
        KINDS.found = None
        try:
            yield name
        finally:
            KINDS.found = None
