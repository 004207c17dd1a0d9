"""Training steps on an NVIDIA GPU, recorded as CUDA graphs, against torch.compile in the mode max-autotune."""

from run import BIN, PEER_PYTHON, ROOT, Command, Row, gpu_is_there

MAY_BE_EMPTY = True


def training_step(model, batch, floor, unit="img/s"):
    """The peer compiles for minutes, so both sides run once; their rates vary by less than 2 %."""
    return Row(f"GPU: training step of {model}, bf16, batch {batch}, against torch.compile", unit,
               ours=Command([BIN / "bench" / "gpu_steps", str(batch), "bf16", "graph", model]),
               peer=Command([PEER_PYTHON, ROOT / "bench" / "peers" / "gpu_steps.py", str(batch), "bf16", "compile", model],
                            timeout_s=480),
               higher_is_better=True, floor=floor, repeat=1, warm_up=0)


def rows():
    if not gpu_is_there():
        return []
    return [training_step("wide_resnet", 1024, 1.1), training_step("wide_resnet", 256, 1.1),
            training_step("wide_resnet", 64, 1.05), training_step("wide_resnet", 32, 1.05),
            training_step("vit_b_16", 64, 1.05), training_step("vit_b_16", 256, 1.05),
            training_step("gpt_124M", 16, 1.1, "tokens/s"), training_step("gpt_124M", 64, 1.1, "tokens/s")]
