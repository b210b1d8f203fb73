"""Training memory against published formulas and figures, and what makes a job fit."""

from __future__ import annotations

import json

import pytest

import kvsim
from kvsim.catalog import get_gpu
from kvsim.cli import main
from kvsim.cost.hierarchy import NVME_READ, NVME_WRITE, PCIE_EFFICIENCY
from kvsim.training.activations import checkpoints, layer_pieces
from kvsim.training.config import TrainingConfig
from kvsim.training.memory import TrainingMemory
from kvsim.training.shape import training_shape

GB = 10**9
SEVEN = {"params": 7e9, "num_layers": 32, "hidden_size": 4096, "num_heads": 32}
JOB = {**SEVEN, "batch_size": 4, "seq_len": 2048}
S, B, H, A, L = 2048, 4, 4096, 32, 32
SBH = S * B * H
SCORES = 5 * A * S * S * B


def train(**options: object) -> TrainingMemory:
    return kvsim.train_memory(**{**JOB, **options})


def layer(**options: object) -> int:
    """Bytes that one layer keeps of one micro-batch."""
    return sum(train(**options).layer_activation_bytes.values())


# -- weights, gradients, optimizer states: the figures the project started from --------------------


@pytest.mark.parametrize(
    ("options", "weights", "gradients", "optimizer"),
    [
        ({"master_weights": False}, 14, 14, 56),  # 84 GB: 12 bytes per parameter
        ({}, 14, 14, 28 + 56),  # 112 GB: 16
        ({"precision": "fp16"}, 14, 14, 84),
        ({"precision": "fp32"}, 28, 28, 56),  # FP32 weights are their own master copy
        ({"precision": "fp8"}, 7, 14, 84),
        ({"optimizer": "sgd"}, 14, 14, 28),
        ({"optimizer": "sgd-momentum"}, 14, 14, 56),
        ({"optimizer": "sgd", "master_weights": False}, 14, 14, 0),
        ({"zero_stage": 1, "num_gpus": 8}, 14, 14, 10.5),  # 38.5 GB: 4P + 12P/N
        ({"zero_stage": 2, "num_gpus": 8}, 14, 1.75, 10.5),  # 26.25 GB: 2P + 14P/N
        ({"zero_stage": 3, "num_gpus": 8}, 1.75, 1.75, 10.5),  # 14 GB: 16P/N
        ({"zero_stage": 3, "num_gpus": 8, "master_weights": False}, 1.75, 1.75, 7),  # 10.5 GB
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 4}, 1.75, 1.75, 10.5),
        ({"tensor_parallel_size": 2, "num_gpus": 8, "zero_stage": 3}, 1.75, 1.75, 10.5),
    ],
)
def test_states_of_seven_billion_parameters(
    options: dict[str, object], weights: float, gradients: float, optimizer: float
) -> None:
    found = train(**options)
    assert found.weights_bytes == weights * GB
    assert found.gradients_bytes == gradients * GB
    assert found.optimizer_bytes == optimizer * GB
    assert found.states_bytes == (weights + gradients + optimizer) * GB


def test_moments_of_70_billion_parameters_are_560_gb() -> None:
    seventy = {"params": 70e9, "num_layers": 80, "hidden_size": 8192, "num_heads": 64}
    assert kvsim.train_memory(**seventy, master_weights=False).optimizer_bytes == 560 * GB


def test_an_8_bit_optimizer_saves_three_quarters_of_the_moments_less_its_scales() -> None:
    moments = train(optimizer="adamw-8bit", master_weights=False).optimizer_bytes
    assert moments == 2 * 7 * GB + 2 * 4 * 7 * GB // 256
    assert 1 - moments / (56 * GB) == pytest.approx(0.75, abs=0.005)


@pytest.mark.parametrize("gpus", [1, 2, 3, 7, 64])
def test_zero_at_any_number_of_gpus(gpus: int) -> None:
    found = [train(zero_stage=stage, num_gpus=gpus).states_bytes for stage in range(4)]
    p, n = 7 * GB, gpus
    expected = [16 * p, 4 * p + 12 * p / n, 2 * p + 14 * p / n, 16 * p / n]
    assert found == pytest.approx(expected, abs=20)
    assert found == sorted(found, reverse=True)


def test_stages_hold_their_layers_and_the_ends_an_embedding() -> None:
    whole = kvsim.train_memory(model="llama-3-8b")
    assert whole.weights_bytes == 2 * whole.num_params
    assert whole.states_bytes == 16 * whole.num_params
    embedding = 128256 * 4096
    first = kvsim.train_memory(model="llama-3-8b", pipeline_parallel_size=4)
    body = whole.num_params - 2 * embedding
    assert first.weights_bytes == 2 * (body // 4 + embedding)
    uneven = kvsim.train_memory(model="llama-3-8b", pipeline_parallel_size=5)
    assert uneven.weights_bytes == 2 * (-(-body * 7 // 32) + embedding)  # 7 layers at most


# -- activations: Korthikanti et al. ---------------------------------------------------------------


def test_a_layer_keeps_what_the_paper_says() -> None:
    assert layer() == SBH * 34 + SCORES
    assert train().activations_bytes == L * (SBH * 34 + SCORES)
    assert layer(tensor_parallel_size=8) == SBH * 10 + (SBH * 24 + SCORES) // 8
    parallel = layer(tensor_parallel_size=8, sequence_parallel=True)
    assert parallel == (SBH * 34 + SCORES) // 8


def test_flash_attention_keeps_statistics_instead_of_scores() -> None:
    assert layer(attention="flash") == SBH * 34 + 4 * A * S * B
    long = layer(attention="flash", seq_len=8 * S) / layer(attention="flash")
    assert long == 8  # linear, where standard attention is quadratic
    assert layer(seq_len=8 * S) / layer() > 40


def test_the_attention_block_and_the_mlp_have_the_papers_pieces() -> None:
    config = TrainingConfig.build(**JOB)
    pieces = layer_pieces(training_shape(config), config)
    assert pieces["norm_inputs"] == 4 * SBH
    attention = ("qkv_input", "queries", "keys_and_values", "scores", "projection_input")
    assert sum(pieces[name] for name in attention) == 10 * SBH + SCORES  # 11 less a mask
    mlp = ("mlp_input", "mlp_outputs", "mlp_second_input")
    assert sum(pieces[name] for name in mlp) == 18 * SBH  # 19 less a mask
    assert pieces["dropout_masks"] == 2 * SBH


def test_real_shapes_change_their_pieces_only() -> None:
    found = kvsim.train_memory(model="llama-3-8b", batch_size=4, seq_len=2048, attention="flash")
    pieces = found.layer_activation_bytes
    assert pieces["keys_and_values"] == 2 * 2 * S * B * 1024
    assert pieces["mlp_outputs"] == 2 * 2 * S * B * 14336  # gate and up
    assert pieces["mlp_second_input"] == 2 * S * B * 14336
    assert found.activations["output"] == 2 * 2 * SBH + 4 * S * B * 128256
    assert found.activations["embedding"] == SBH


def test_more_norms_keep_more_inputs() -> None:
    gemma = kvsim.train_memory(model="gemma-3-27b", seq_len=128).layer_activation_bytes
    assert gemma["norm_inputs"] == 4 * 2 * 128 * 5376
    assert gemma["qk_norm_inputs"] == 2 * 128 * (32 + 16) * 128
    assert "qk_norm_inputs" not in train().layer_activation_bytes


def test_precision_scales_what_it_stores() -> None:
    masks = 2 * SBH + A * S * S * B
    assert layer(precision="fp32") - masks == 2 * (layer() - masks)
    fp8_inputs = (2 + 2 + 2 + 8) * SBH // 2  # of four matrix multiplications, halved
    assert layer(precision="fp8") == layer() - fp8_inputs


@pytest.mark.parametrize(
    ("rule", "stored", "segment"),
    [("full", L, 1), ("every-1", L, 1), ("every-4", 8, 4), ("sqrt", 6, 6), ("every-32", 1, 32)],
)
def test_checkpoints_keep_inputs_and_recompute_a_segment(
    rule: str, stored: int, segment: int
) -> None:
    found = train(activation_checkpointing=rule)
    assert found.activations["stored"] == stored * 2 * SBH
    assert found.activations["recomputed"] == segment * layer()
    assert found.activations_bytes == sum(found.activations.values())
    assert found.extra_compute == pytest.approx(1 / 3)


def test_selective_recomputation_drops_the_scores_for_little_arithmetic() -> None:
    found = train(activation_checkpointing="selective")
    assert found.activations["stored"] == L * 34 * SBH
    assert found.activations["recomputed"] == SCORES
    params = 7e9 / L
    context = 4 * S * H
    assert found.extra_compute == pytest.approx(context / (3 * (2 * params + context)))
    flash = {"attention": "flash"}
    nothing = train(activation_checkpointing="selective", **flash)
    assert nothing.activations_bytes == train(**flash).activations_bytes
    assert nothing.extra_compute == 0


def test_sqrt_is_the_best_of_chains_of_equal_layers() -> None:
    assert [checkpoints("sqrt", n).segment for n in (1, 4, 5, 32, 36, 37)] == [1, 2, 3, 6, 6, 7]


def test_the_first_pipeline_stage_holds_all_layers_activations() -> None:
    whole = train().activations_bytes
    assert train(pipeline_parallel_size=4).activations_bytes == whole  # 4 in flight of 8 layers
    few = train(pipeline_parallel_size=4, gradient_accumulation_steps=2)
    assert few.activations_bytes == whole // 2
    many = train(pipeline_parallel_size=4, gradient_accumulation_steps=64)
    assert many.activations_bytes == whole


def test_the_last_stage_decides_where_the_vocabulary_is_large() -> None:
    found = kvsim.train_memory(
        model="gemma-3-27b",
        seq_len=8192,
        pipeline_parallel_size=2,
        gradient_accumulation_steps=1,
    )
    assert found.activations["output"] > 0
    assert found.activations["embedding"] == 0


def test_gradient_accumulation_needs_the_memory_of_one_micro_batch() -> None:
    one, many = train(), train(gradient_accumulation_steps=16)
    assert one.total_bytes == many.total_bytes
    assert many.global_batch_size == 16 * one.global_batch_size == 64
    assert train(batch_size=64).activations_bytes == 16 * one.activations_bytes


# -- LoRA and QLoRA --------------------------------------------------------------------------------


def test_lora_trains_a_quarter_of_a_percent() -> None:
    found = kvsim.train_memory(model="llama-2-7b", lora_rank=16)
    assert found.num_trained_params == 16_777_216
    assert found.num_trained_params / found.num_params == pytest.approx(0.0025, abs=5e-5)
    assert found.gradients_bytes == 2 * 16_777_216
    assert found.optimizer_bytes == 12 * 16_777_216
    assert found.weights_bytes == 2 * found.num_params


def test_qlora_keeps_four_bits_and_double_quantised_scales() -> None:
    adapters = 2 * train(lora_rank=16).num_trained_params
    four_bit = train(lora_rank=16, base_precision="nf4").weights_bytes - adapters
    assert 8 * four_bit / 7e9 == pytest.approx(4.127, abs=1e-3)  # the paper's 0.127 bits of scales
    assert train(lora_rank=16, base_precision="int8").weights_bytes - adapters == 7 * GB
    model = {"model": "llama-3-8b", "lora_rank": 8}
    kept = kvsim.train_memory(**model, base_precision="nf4").weights_bytes
    plain = 2 * 128256 * 4096  # embedding and head stay in 16 bits
    found = kvsim.train_memory(**model)
    frozen = found.num_params - found.num_trained_params
    expected = 2 * plain + 4.127 / 8 * (frozen - plain) + 2 * found.num_trained_params
    assert kept == pytest.approx(expected, rel=1e-4)


# -- offload ---------------------------------------------------------------------------------------

PCIE = get_gpu("h100-sxm").pcie_bytes_per_s * PCIE_EFFICIENCY


def test_an_optimizer_on_the_cpu_takes_gradients_down_and_weights_up() -> None:
    found = train(offload="cpu", zero_stage=2, num_gpus=8)
    assert (found.gradients_bytes, found.optimizer_bytes) == (0, 0)
    assert found.offloaded_bytes == {"optimizer": 10.5 * GB, "gradients": 1.75 * GB}
    assert found.transfer_seconds == pytest.approx(2 * 1.75 * GB / PCIE)
    assert train(offload="cpu", zero_stage=1, num_gpus=8).traffic_bytes == found.traffic_bytes
    accumulated = train(offload="cpu", gradient_accumulation_steps=4)
    assert accumulated.traffic_bytes["from_gpu"] == 4 * 14 * GB
    assert accumulated.traffic_bytes["to_gpu"] == 14 * GB


def test_an_optimizer_on_nvme_is_read_and_written() -> None:
    found = train(offload="nvme", offload_space=1000)
    states = 84 * GB
    links = 14 * GB / min(PCIE, NVME_READ) + 14 * GB / min(PCIE, NVME_WRITE)
    expected = links + states / NVME_READ + states / NVME_WRITE
    assert found.transfer_seconds == pytest.approx(expected)
    fast, slow = train(offload="cpu").transfer_seconds, found.transfer_seconds
    assert slow > 10 * fast


def test_weights_and_activations_on_the_cpu() -> None:
    found = train(offload="cpu", offload_parts="weights,activations")
    assert found.weights_bytes == 0
    assert found.offloaded_bytes["weights"] == 14 * GB
    assert found.activations_bytes == 2 * layer()  # at work and on its way
    assert found.offloaded_bytes["activations"] == 30 * layer()
    assert found.traffic_bytes["to_gpu"] == 2 * 14 * GB + 32 * layer()
    assert found.traffic_bytes["from_gpu"] == 32 * layer()


def test_paged_adam_moves_only_what_does_not_fit() -> None:
    plenty = train(offload="paged", lora_rank=8, gpu="h200-sxm")
    assert plenty.offloaded_bytes == {"optimizer": 0}
    assert plenty.transfer_seconds == 0
    short = {"activation_checkpointing": "full", "gpu": "h100-sxm"}
    resident, paged = train(**short), train(**short, offload="paged")
    over = resident.total_bytes - resident.gpu_memory_bytes
    assert 0 < over < resident.optimizer_bytes
    assert paged.total_bytes == paged.gpu_memory_bytes
    assert paged.fits
    assert paged.offloaded_bytes["optimizer"] == over
    assert paged.transfer_seconds == pytest.approx(2 * over / PCIE)


def test_offloading_needs_its_space() -> None:
    small = {**short_job(), "offload": "cpu"}
    assert train(**small).fits
    assert not train(**small, offload_space=10).fits


def short_job() -> dict[str, object]:
    return {"activation_checkpointing": "full", "gpu": "h100-sxm"}


# -- the whole -------------------------------------------------------------------------------------

VARIANTS = [
    {},
    {"zero_stage": 3, "num_gpus": 8},
    {"offload": "cpu", "offload_parts": "optimizer,weights,activations"},
    {"offload": "paged", "activation_checkpointing": "full"},
    {"lora_rank": 16, "base_precision": "nf4"},
    {"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "num_gpus": 16, "zero_stage": 1},
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_parts_sum_to_the_total_and_are_whole_bytes(options: dict[str, object]) -> None:
    answer = train(**options).to_dict()
    parts = ("weights", "gradients", "optimizer", "activations", "workspace")
    sizes = [answer[f"{part}_bytes"] for part in parts]
    assert all(isinstance(size, int) and size >= 0 for size in sizes)
    assert answer["total_bytes"] == sum(sizes)
    if options.get("offload") is None:
        assert sum(answer["activations"].values()) == answer["activations_bytes"]
    json.dumps(answer, allow_nan=False)


@pytest.mark.parametrize(
    "more",
    [
        {"batch_size": 8},
        {"seq_len": 4096},
        {"precision": "fp32"},
        {"params": 8e9},
        {"num_layers": 40, "params": 8.75e9},
    ],
    ids=str,
)
def test_more_of_anything_needs_more(more: dict[str, object]) -> None:
    for options in VARIANTS:
        fewer, found = train(**options), train(**{**options, **more})
        before, after = (m.total_bytes + sum(m.offloaded_bytes.values()) for m in (fewer, found))
        assert after > before, options


def test_the_workspace_is_small_and_grows_with_gathered_layers() -> None:
    alone = train()
    assert alone.workspace_bytes < 0.5 * 2**30
    gathered = train(zero_stage=3, num_gpus=8).workspace_bytes
    joined = train(num_gpus=8).workspace_bytes
    one_layer = -(-14 * GB // 32)
    assert gathered - joined == 2 * one_layer + one_layer  # two layers' weights, one's gradients


def test_zero_3_sends_half_as_much_again() -> None:
    by_stage = [train(zero_stage=s, num_gpus=8).communication_bytes for s in range(4)]
    assert by_stage == [2 * 14 * GB * 7 // 8] * 3 + [3 * 14 * GB * 7 // 8]
    assert train().communication_bytes == 0
    fp8 = [train(zero_stage=s, num_gpus=8, precision="fp8").communication_bytes for s in (0, 1, 3)]
    assert fp8 == [size * GB * 7 // 8 for size in (28, 21, 28)]  # weights have half the bytes
    often = train(zero_stage=2, num_gpus=8, gradient_accumulation_steps=3).communication_bytes
    assert often == (3 * 14 + 14) * GB * 7 // 8


# -- remedies --------------------------------------------------------------------------------------


def changes(**options: object) -> list[str]:
    return [remedy.change for remedy in train(**options).remedies]


def test_remedies_come_in_order_and_stop_where_it_fits() -> None:
    checkpointing = ["selective activation checkpointing", "full activation checkpointing"]
    assert changes(precision="fp32", gpu="l4", num_gpus=4) == [
        "BF16",
        *checkpointing,
        "ZeRO-1",
        "ZeRO-2",
        "ZeRO-3",
        "optimizer to the CPU",
    ]
    assert changes(gpu="rtx-4090") == [*checkpointing, "8-bit optimizer", "optimizer to the CPU"]
    assert changes() == [*checkpointing, "8-bit optimizer"]
    assert changes(gpu="b200", attention="flash") == []
    assert changes(attention="flash")[0] == "full activation checkpointing"  # selective saves none


def test_each_remedy_is_what_the_budget_says_with_all_before_it() -> None:
    job = {"gpu": "l4", "num_gpus": 4}
    before, done = train(**job), {}
    for remedy in before.remedies:
        done |= remedy.options
        after = train(**{**job, **done})
        assert remedy.total_bytes == after.total_bytes
        assert remedy.saved_bytes == before.total_bytes - after.total_bytes > 0
        assert remedy.fits == after.fits
        assert remedy.extra_compute == after.extra_compute - before.extra_compute
        assert remedy.transfer_seconds == after.transfer_seconds - before.transfer_seconds
        before = after
    assert before.fits


def test_a_small_host_gets_nvme_and_a_hopeless_job_is_said_to_be() -> None:
    assert changes(**short_job(), offload="cpu", offload_space=10) == ["92 GiB of NVMe"]
    assert changes(**short_job(), offload="nvme", offload_space=10) == ["92 GiB of NVMe"]
    hopeless = train(gpu="rtx-4070", batch_size=64)
    assert hopeless.remedies
    assert not hopeless.remedies[-1].fits


# -- the command line ------------------------------------------------------------------------------

WORDS = ["--params", "7e9", "--num-layers", "32", "--hidden-size", "4096", "--num-heads", "32"]
BATCH = ["--batch-size", "4", "--seq-len", "2048"]


def test_the_command_gives_14_gb_of_states(capsys: pytest.CaptureFixture[str]) -> None:
    main(["train-memory", *WORDS, *BATCH, "--zero-stage", "3", "--num-gpus", "8", "--json", "-"])
    answer = json.loads(capsys.readouterr().out)
    keys = ("weights_bytes", "gradients_bytes", "optimizer_bytes")
    assert sum(answer[key] for key in keys) == 14 * GB


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gpu", "l4", "--num-gpus", "4"], "ZeRO-3"),
        (["--gpu", "l4", "--num-gpus", "4"], "With all of these it fits"),
        (["--gpu", "rtx-4070", "--batch-size", "64"], "Even so it does not fit"),
        (["--gpu", "b200", "--attention", "flash"], "It fits"),
        (["--gpu", "a100-80gb", "--precision", "fp8"], "a100-80gb has no FP8 unit"),
    ],
)
def test_the_table_says(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["train-memory", *WORDS, *BATCH, *options])
    out = capsys.readouterr().out
    assert said in " ".join(out.split())
    assert "█" in out
    assert max(map(len, out.splitlines())) <= 100


MISTAKES = [
    ((), "--model is missing"),
    (("--params", "7e9"), "--num-layers is missing"),
    (("--model", "llama-3-8b", "--params", "7e9"), "--params conflicts with"),
    (("--model", "llama-3-8c"), "unknown model 'llama-3-8c'; did you mean"),
    (("--model", "mixtral-8x7b"), "a mixture of experts"),
    (("--model", "deepseek-v3"), "must be a dense model"),
    ((*WORDS, "--gpu", "h100-xsm"), "unknown GPU 'h100-xsm'"),
    ((*WORDS, "--zero-stage", "4"), "--zero-stage is '4'"),
    ((*WORDS, "--num-gpus", "0"), "--num-gpus is '0'"),
    ((*WORDS, "--batch-size", "0"), "--batch-size is '0'"),
    ((*WORDS, "--params", "7.5"), "--params is"),
    ((*WORDS, "--params", "nan"), "--params is"),
    ((*WORDS, "--precision", "int3"), "--precision is 'int3'"),
    ((*WORDS, "--optimizer", "adam"), "--optimizer is 'adam'"),
    ((*WORDS, "--lora-rank", "4097"), "--lora-rank is 4097: must be at most 4096"),
    (("--model", "llama-3-8b", "--lora-rank", "1025"), "must be at most 1024"),
    ((*WORDS, "--base-precision", "nf4"), "--base-precision needs lora_rank"),
    ((*WORDS, "--offload", "nvme"), "--offload nvme needs offload_space"),
    ((*WORDS, "--offload", "tape"), "--offload is 'tape'"),
    ((*WORDS, "--offload-space", "5"), "--offload-space needs offload"),
    ((*WORDS, "--offload", "cpu", "--offload-parts", "weight"), "did you mean weights"),
    ((*WORDS, "--offload", "cpu", "--offload-parts", "weights,weights"), "given twice"),
    ((*WORDS, "--offload", "paged", "--offload-parts", "weights"), "optimizer states only"),
    ((*WORDS, "--offload", "paged", "--optimizer", "sgd"), "paged needs Adam"),
    ((*WORDS, "--tensor-parallel-size", "3"), "must divide the 32 heads"),
    ((*WORDS, "--num-kv-heads", "2", "-tp", "3", "--num-heads", "12"), "must divide"),
    ((*WORDS, "--pipeline-parallel-size", "33"), "at most the 32 layers"),
    ((*WORDS, "-tp", "4", "-pp", "2", "--num-gpus", "12"), "multiple of"),
    ((*WORDS, "--sequence-parallel"), "--sequence-parallel needs"),
    ((*WORDS, "--activation-checkpointing", "some"), "must be none, full, selective"),
    ((*WORDS, "--activation-checkpointing", "every-0"), "N must be 1 to 32"),
    ((*WORDS, "--activation-checkpointing", "every-33"), "N must be 1 to 32"),
    ((*WORDS, "--num-heads", "33"), "must divide the hidden size"),
    ((*WORDS, "--num-kv-heads", "5"), "must divide the 32 heads"),
    ((*WORDS, "--vocab-size", "10000000"), "--vocab-size is 10000000"),
    ((*WORDS, "--json", "no/dir.json"), "no such directory"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES, ids=[m for _, m in MISTAKES])
def test_mistakes_are_one_line(
    options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["train-memory", *options])
    captured = capsys.readouterr()
    assert (stopped.value.code, captured.out) == (2, "")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_every_field_has_a_flag_in_one_section() -> None:
    from kvsim.cli.options import TRAINING_SECTIONS

    listed = [name for names in TRAINING_SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(TrainingConfig.model_fields)


def test_the_figure_has_a_bar_per_budget_and_the_gpus_memory() -> None:
    budgets = {"a": train(), "b": train(zero_stage=3, num_gpus=8)}
    (axes,) = kvsim.plot.training_memory(budgets).axes
    widths = [sum(bar.get_width() for bar in axes.patches[k::2]) for k in range(2)]
    assert widths == pytest.approx([one.total_bytes / 2**30 for one in budgets.values()])
    (line,) = axes.lines
    assert line.get_xdata()[0] == pytest.approx(train().gpu_memory_bytes / 2**30)


def test_offloaded_activations_keep_two_checkpoints_on_the_gpu() -> None:
    """The one at work and the one on its way, whatever the layers between them."""
    job = {"params": 7e9, "num_layers": 32, "hidden_size": 4096, "num_heads": 32, "seq_len": 2048}
    job |= {"attention": "flash"}
    away = {"offload": "cpu", "offload_parts": "activations"}
    one_input = 2 * 2048 * 4096
    for rule, count in (("full", 32), ("every-8", 4)):
        here = kvsim.train_memory(activation_checkpointing=rule, **job)
        there = kvsim.train_memory(activation_checkpointing=rule, **job, **away)
        gone = here.activations_bytes - there.activations_bytes
        assert gone == (count - 2) * one_input
