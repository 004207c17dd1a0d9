"""The peer of bench/zero_steps.cpp: two CPU ranks of DeepSpeed over Gloo, one JSON line.

    deepspeed_steps.py zero_mlp STAGE STEPS
"""

import json
import os
import socket
import subprocess
import sys
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def spawn():
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2",
              "LOCAL_SIZE": "2", "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([sys.executable, *sys.argv], env={**common, "RANK": str(i), "LOCAL_RANK": str(i)},
                              stdout=None if i == 0 else subprocess.DEVNULL, stderr=subprocess.DEVNULL)
             for i in range(2)]
    sys.exit(max(rank.wait() for rank in ranks))


def main():
    import deepspeed
    import torch

    import workloads

    name, stage, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    model, data, target, loss_function = workloads.make_workload(name)
    config = {
        "train_micro_batch_size_per_gpu": 16,
        "gradient_clipping": 0.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
    }
    deepspeed.init_distributed("gloo")
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)

    def step():
        engine.backward(loss_function(engine(data), target))
        engine.step()

    for _ in range(steps // 10 + 1):
        step()
    torch.distributed.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    seconds = time.perf_counter() - start
    if torch.distributed.get_rank() == 0:
        print(json.dumps({"value": steps / seconds, "unit": "steps/s"}), flush=True)


if __name__ == "__main__":
    main() if "RANK" in os.environ else spawn()
