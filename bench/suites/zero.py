"""Training with sharded and offloaded states, compared with LibTorch and DeepSpeed on the same machine."""

import zero_cpu_rows
from run import BIN, PEER_PYTHON, ROOT, Command, Row

TWO_RANKS = {"LOCKSTEP_NPROCS": "2", "LOCKSTEP_COMPUTE_SETUP": "cpu"}


def steps(workload, stage, count):
    return Command([BIN / "bench" / "zero_steps", workload, str(stage), str(count)], env=TWO_RANKS)


def against_deepspeed(stage):
    peer = Command([PEER_PYTHON, ROOT / "bench" / "peers" / "deepspeed_steps.py", "zero_mlp", str(stage), "150"])
    return Row(f"steps of an MLP 256-512-512-10, batch 16, stage {stage}, against DeepSpeed", "steps/s",
               ours=steps("zero_mlp", stage, 1500), peer=peer, higher_is_better=True, floor=5, repeat=3)


def against_ddp():
    peer = Command([PEER_PYTHON, ROOT / "bench" / "peers" / "ddp_steps.py", "zero_mlp", "500", "adamw"])
    return Row("steps of an MLP 256-512-512-10, batch 16, stage 0, against PyTorch DDP", "steps/s",
               ours=steps("zero_mlp", 0, 1500), peer=peer, higher_is_better=True, floor=1, repeat=3)


def against_whole(workload, stage, count, at_most, what):
    """A step of this stage compared with a step of stage 0; the floor limits the ratio of their times."""
    return Row(f"steps of {what}, stage {stage}, against stage 0", "steps/s", ours=steps(workload, stage, count),
               peer=steps(workload, 0, count), higher_is_better=True, floor=round(1 / at_most, 3), repeat=5)


def memory_against_formula(stage, ranks):
    """The peak memory of a rank's tensors, compared with the bytes per parameter of the ZeRO paper (bf16, Adam)."""
    formula = {1: 4 + 12 / ranks, 2: 2 + 14 / ranks, 3: 16 / ranks}[stage]
    ours = Command([BIN / "bench" / "zero_memory", str(stage)],
                   env={"LOCKSTEP_NPROCS": str(ranks), "LOCKSTEP_BACKEND": "gloo", "LOCKSTEP_COMPUTE_SETUP": "cpu",
                        "OMP_NUM_THREADS": "1"})
    return Row(f"peak memory of a rank, stage {stage}, {ranks} ranks, against the formula", "bytes/parameter",
               ours=ours, reference=formula, floor=round(1 / 1.05, 3), repeat=1, warm_up=0)


def rows():
    return [
        *(against_deepspeed(stage) for stage in (0, 1, 2, 3)),
        against_ddp(),
        *(against_whole("zero_mlp", stage, 3000, 1.1, "the MLP") for stage in (1, 2)),
        against_whole("vit_small", 3, 8, 1.5, "ViT-small, batch 4"),
        *(memory_against_formula(stage, ranks) for stage in (1, 2, 3) for ranks in (1, 2, 4, 8)),
        *zero_cpu_rows.rows(),
    ]
