"""Cost of decode context parallelism: exchanges between ranks that split the tokens of the KV."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.budget.weights import DTYPE_BYTES
from kvsim.cost.work import is_sparse

if TYPE_CHECKING:
    from kvsim.cost.efficiency import Efficiency
    from kvsim.cost.model import CostConfig
    from kvsim.records.cost import Cost

#: Collectives per layer: all-gathers of queries and of log-sums, a reduce-scatter of outputs.
NUM_COLLECTIVES = 3
#: Bytes of the log-sum of a token and head, FP32.
LOG_SUM_BYTES = 4


def init_context_exchange(record: Cost, config: CostConfig, rate: Efficiency) -> None:
    """Write the constants of a step's exchanges into a record.

    Every rank computes attention with the heads of all ranks over its own tokens. For each token it
    receives the queries and log-sums of the other ranks' heads, and partial outputs of its own
    heads. In latent attention the partial outputs have the latent's width, and prompt chunks gather
    latents instead. No measured run checks this.
    """
    model, shares = config.model, config.decode_context_parallel_size
    if shares == 1:
        return
    layer, element = model.layers[0], DTYPE_BYTES[config.dtype]
    query, output = layer.head_dim, model.kv_lora_rank if model.is_mla else layer.head_dim
    heads = model.num_heads / config.tensor_parallel_size
    token = (shares - 1) * heads * ((query + output) * element + shares * LOG_SUM_BYTES)
    link = config.gpu.link_bytes_per_s(shares) * rate.link_ring
    layers = len(model.layers)
    record.exchanges_prompts = not model.is_mla or is_sparse(model)
    record.exchange_launch = layers * NUM_COLLECTIVES * rate.all_reduce
    record.exchange_token = layers * token / link
    if not record.exchanges_prompts:
        latent = layer.head_dim * element * (shares - 1) / shares
        record.gather_token = layers * latent / link
