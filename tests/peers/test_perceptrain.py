"""The same networks, data and random numbers with perceptrain and with Lockstep."""

import json
import math
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

PEER = pathlib.Path(__file__).parent / "programs" / "perceptrain_runs.py"
EPOCHS, BATCHES = 4, 5
TRAINING = {
    f"{optimizer} {dtype}": {"optimizer": optimizer, "dtype": dtype, "epochs": EPOCHS}
    for optimizer in ("sgd", "adam") for dtype in ("float32", "float64")
}
TRAINING["max_batches"] = {"optimizer": "sgd", "dtype": "float64", "epochs": EPOCHS, "max_batches": 3}
TRAINING["adam_lbfgs"] = {"optimizer": "adam_lbfgs", "dtype": "float64", "epochs": EPOCHS}
# nevergrad's optimizers in perceptrain. A step of Lockstep has all candidates of a population, a step of perceptrain has one.
SEARCH = {optimizer: {"optimizer": optimizer, "epochs": EPOCHS, "population": 1}
          for optimizer in ("OnePlusOne", "CMA", "DE")}
SEARCH["population"] = {"optimizer": "OnePlusOne", "epochs": 24, "max_batches": 1, "population": 6}
CALLS = [
    {"epochs": 6, "val_every": 2, "callbacks": [
        ("train_end", 1), ("train_epoch_end", 1), ("train_epoch_end", 2), ("train_epoch_end", 4), ("train_epoch_end", 0),
        ("val_epoch_end", 1), ("val_epoch_end", 4), ("train_start", 1), ("train_batch_end", 1), ("val_batch_end", 1)]},
    {"epochs": 5, "val_every": 1, "callbacks": [
        ("val_epoch_end", 2), ("train_epoch_end", 3), ("train_epoch_end", 7), ("train_start", 7), ("train_end", 7)]},
]


def write_cases(folder):
    random = np.random.default_rng(0)
    arrays = {"epsilons": np.logspace(-3, 1.5, 25, dtype=np.float32), "weights": random.normal(size=10),
              "pool": random.normal(size=(60, 2)), "fitness": random.uniform(0, 1, (5, 8))}
    for i in range(3):
        arrays[f"x{i}"] = random.normal(size=(10, 2)).astype(np.float32)
        arrays[f"y{i}"] = random.normal(size=(10, 1)).astype(np.float32)
        arrays[f"walk{i}"] = random.uniform(0, 2 * math.pi, (20 * 13, 13)).astype(np.float32)
    for prefix, samples in (("", 8 * BATCHES), ("val_", 16)):
        arrays[prefix + "inputs"] = random.uniform(size=(samples, 1))
        arrays[prefix + "targets"] = np.sin(6 * arrays[prefix + "inputs"])
    # None released, one released, equal to the threshold, not a number, all released.
    arrays["fitness"][0] = 1
    arrays["fitness"][1] = [1, 1, 0.1, 1, 1, 1, 1, 1]
    arrays["fitness"][2] = [0.5, 0.4999999, math.nan, math.inf, 0, 1, 0.3, 0.5]
    arrays["fitness"][4] = 0
    np.savez(folder / "cases.npz", **arrays)
    (folder / "cases.json").write_text(json.dumps(
        {"contents": 3, "eta": 0.3, "training": TRAINING, "search": SEARCH, "calls": CALLS, "release_threshold": 0.5}))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("perceptrain")
    write_cases(folder)
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    program = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"]) / "test" / "perceptrain_runs"
    subprocess.run([sys.executable, PEER, folder], check=True, timeout=300, env=environment, cwd=folder,
                   stdout=subprocess.DEVNULL)
    ours = subprocess.run([program, folder], check=True, timeout=120, env=environment, stdout=subprocess.PIPE, text=True)
    return json.loads(ours.stdout), json.loads((folder / "perceptrain.json").read_text())


@pytest.mark.parametrize("case", range(3))
def test_information_content(runs, case):
    ours, peer = (side["content"][case] for side in runs)
    assert max(peer["values"]) > 0.5
    for key in ("values", "maximum", "sensitivity"):
        assert ours[key] == peer[key], key
    # Python's inverse of the normal distribution is another algorithm than LibTorch's.
    assert ours["bounds"] == pytest.approx(peer["bounds"], rel=1e-12)
    assert ours["restored"]


@pytest.mark.parametrize("case", [case for case in TRAINING if case != "adam_lbfgs"])
def test_training(runs, case):
    ours, peer = (side["training"][case] for side in runs)
    assert len(ours["losses"]) == EPOCHS * TRAINING[case].get("max_batches", BATCHES)
    assert ours["losses"] == peer["losses"]
    assert ours["weights"] == peer["weights"]
    # Means over samples here, over batches there.
    assert ours["val_losses"] == pytest.approx(peer["val_losses"], rel=1e-6 if "float32" in case else 1e-14)


def test_training_with_adam_and_lbfgs(runs):
    """LBFGS of LibTorch sums in another order than Python's, and each step amplifies the difference. perceptrain counts
    steps from 1, so that its LBFGS starts one step before switch_epoch."""
    ours, peer = (side["training"]["adam_lbfgs"] for side in runs)
    assert ours["weights"] == pytest.approx(peer["weights"], rel=1e-6)
    assert ours["val_losses"] == pytest.approx(peer["val_losses"], rel=1e-6)


@pytest.mark.parametrize("case", SEARCH)
def test_search(runs, case):
    """The same candidates in the same order on the same batches have the same losses, and each loss is reported."""
    ours, peer = (side["search"][case] for side in runs)
    setting = SEARCH[case]
    evaluations = setting["epochs"] * setting.get("max_batches", BATCHES)
    population = setting["population"]
    assert len(peer["told"]) == evaluations
    assert len(set(peer["told"])) > evaluations / 2
    assert ours["told"] == peer["told"] == peer["losses"]
    # The loss of a step is that of its best candidate.
    assert ours["losses"] == [min(peer["told"][i : i + population]) for i in range(0, evaluations, population)]


@pytest.mark.parametrize("case", SEARCH)
def test_search_ends_at_the_best_candidate(runs, case):
    """perceptrain ends at the candidate that was asked for last, whose loss is unknown."""
    ours, peer = (side["search"][case] for side in runs)
    assert peer["weights"] == peer["last_asked"] != peer["recommendation"]
    assert ours["best_loss"] == min(peer["told"])
    assert ours["weights"] == ours["candidates"][peer["told"].index(min(peer["told"]))]
    if SEARCH[case]["optimizer"] != "CMA":  # which recommends the mean of its distribution
        assert ours["weights"] == peer["recommendation"]


@pytest.mark.parametrize("case", range(len(CALLS)))
def test_calls_of_callbacks(runs, case):
    """perceptrain also trains an epoch 0, in which no callback is called, and validates before it without callbacks."""
    ours, peer = (side["calls"][case] for side in runs)
    assert peer
    expected = [(stage, every, epoch) for stage, every, iteration, epoch in peer]
    assert [tuple(row) for row in ours] == expected


def test_r3_releases_and_retains_the_same_points(runs):
    ours, peer = (side["r3"] for side in runs)
    assert [released for released, _ in peer][:4] == [-1, 0, 1, 3]
    assert ours == peer
