"""Configuration of a training budget: validated, immutable."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from kvsim.catalog.spec import GpuSpec, ModelSpec  # noqa: TC001 - pydantic reads them
from kvsim.config import Validated
from kvsim.errors import FieldError, unknown_name

#: Parts that can be offloaded, cheapest to move first.
OFFLOADED_PARTS = ("optimizer", "weights", "activations")

Count = Annotated[int, Field(ge=1)]
Parallel = Annotated[int, Field(ge=1, le=65536)]


class TrainingConfig(Validated):
    """One training job: a model's shape, the batch, the arithmetic, and the parallelism.

    Names are those of DeepSpeed, Megatron or bitsandbytes, if one of these has the option.
    """

    model: str | ModelSpec | None = Field(
        None, description="catalogue name, Hugging Face id, or path to a config.json"
    )
    params: Count | None = Field(
        None,
        description="number of parameters instead of a model, e.g. 7e9; needs the next three "
        "options",
    )
    num_layers: Count | None = Field(None, description="number of layers")
    hidden_size: Count | None = Field(None, description="width of a layer")
    num_heads: Count | None = Field(None, description="number of attention heads")
    num_kv_heads: Count | None = Field(None, description="number of KV heads [num-heads]")
    intermediate_size: Count | None = Field(
        None, description="width of the MLP with two matrices [4 x hidden-size]"
    )
    vocab_size: Count | None = Field(
        None, description="vocabulary size; without it embeddings and logits are not counted"
    )
    gpu: str | GpuSpec = Field("h100-sxm", description="catalogue name of the GPU")
    batch_size: Count = Field(1, description="sequences per micro-batch and replica")
    seq_len: Count = Field(2048, description="tokens per sequence")
    gradient_accumulation_steps: Count | None = Field(
        None, description="micro-batches per step [one per pipeline stage]"
    )
    precision: Literal["bf16", "fp16", "fp32", "fp8"] = Field(
        "bf16", description="data type of weights, gradients and activations"
    )
    optimizer: Literal["adamw", "adamw-8bit", "sgd", "sgd-momentum"] = Field(
        "adamw", description="optimizer, which determines the states to keep"
    )
    master_weights: bool = Field(True, description="keep an FP32 copy of trained 16-bit weights")
    zero_stage: Annotated[int, Field(ge=0, le=3)] = Field(
        0, description="ZeRO stage: 1 shards optimizer states, 2 gradients too, 3 weights too"
    )
    num_gpus: Parallel | None = Field(None, description="number of all GPUs [tensor x pipeline]")
    tensor_parallel_size: Parallel = Field(1, description="number of GPUs that split each layer")
    pipeline_parallel_size: Parallel = Field(
        1, description="number of pipeline stages that split the layers"
    )
    sequence_parallel: bool = Field(
        False, description="split norms and dropouts over the tensor-parallel GPUs, too"
    )
    activation_checkpointing: str = Field(
        "none", description="none, full, selective, sqrt, or every-N (layers)"
    )
    attention: Literal["standard", "flash"] = Field(
        "standard", description="flash keeps no scores, only softmax statistics"
    )
    lora_rank: Count | None = Field(
        None, description="train only LoRA adapters of this rank on q, k, v, o"
    )
    base_precision: Literal["nf4", "int8"] | None = Field(
        None, description="data type of the frozen weights under LoRA; nf4 is QLoRA [precision]"
    )
    offload: Literal["none", "cpu", "paged", "nvme"] = Field(
        "none",
        description="destination of offloaded parts; paged: page out Adam states that do not fit",
    )
    offload_parts: str = Field(
        "optimizer", description=f"comma-separated: {', '.join(OFFLOADED_PARTS)}"
    )
    offload_space: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="GiB per GPU to offload to; required by nvme"
    )

    @field_validator("params", mode="before")
    @classmethod
    def _whole(cls, value: object) -> object:
        """Read a text such as 7e9 as a whole number."""
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                return value
        return int(value) if isinstance(value, float) and value.is_integer() else value

    def _check(self) -> None:
        """Raise FieldError for conflicts between fields."""
        ranks = self.tensor_parallel_size * self.pipeline_parallel_size
        if self.num_gpus is not None and self.num_gpus % ranks:
            raise FieldError(
                "num_gpus",
                f"is {self.num_gpus}: must be a multiple of tensor_parallel_size x "
                f"pipeline_parallel_size = {ranks}",
            )
        if self.base_precision is not None and self.lora_rank is None:
            raise FieldError(
                "base_precision", "needs lora_rank: quantised weights are frozen, not trained"
            )
        if self.sequence_parallel and self.tensor_parallel_size == 1:
            raise FieldError("sequence_parallel", "needs tensor_parallel_size above 1")
        self._check_offload()

    def _check_offload(self) -> None:
        for part in self.parts:
            if part not in OFFLOADED_PARTS:
                raise unknown_name("part to offload", part, OFFLOADED_PARTS)
        if len(set(self.parts)) < len(self.parts):
            raise FieldError("offload_parts", f"is {self.offload_parts!r}: a part is given twice")
        if self.offload == "nvme" and self.offload_space is None:
            raise FieldError("offload", "nvme needs offload_space, the GiB of NVMe per GPU")
        if self.offload == "none":
            for name in ("offload_parts", "offload_space"):
                if name in self.model_fields_set and getattr(self, name) is not None:
                    raise FieldError(name, "needs offload: cpu, paged or nvme")
        if self.offload == "paged" and self.parts != ("optimizer",):
            raise FieldError("offload", "paged moves optimizer states only; give cpu or nvme")
        if self.offload == "paged" and not self.optimizer.startswith("adamw"):
            raise FieldError("offload", f"paged needs Adam states; {self.optimizer} has none")

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts to offload."""
        return tuple(part.strip() for part in self.offload_parts.split(","))

    def offloads(self, part: str) -> bool:
        """Return True if a part is offloaded entirely; ``paged`` moves only the excess."""
        return self.offload in ("cpu", "nvme") and part in self.parts

    @property
    def data_parallel_size(self) -> int:
        """Number of replicas: GPUs / (tensor x pipeline)."""
        ranks = self.tensor_parallel_size * self.pipeline_parallel_size
        return (self.num_gpus or ranks) // ranks

    @property
    def num_micro_batches(self) -> int:
        """Number of micro-batches of one step."""
        return self.gradient_accumulation_steps or self.pipeline_parallel_size
