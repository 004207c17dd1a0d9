"""InformationContent compared with a computation in NumPy of its own, from the definition.

perceptrain, whose class this is, pins packages for quantum circuits that the environment of the peers does not have.
"""

import json
import math
import statistics
import subprocess

import numpy as np
import pytest

ETA = 0.3


def losses_of(walk, x, y):
    """Of a network 2 -> 3 -> 1 with tanh and the mean squared error; parameters in the order of PyTorch."""
    losses = []
    for point in walk:
        w1, b1, w2, b2 = np.split(point, [6, 9, 12])
        out = np.tanh(x @ w1.reshape(3, 2).T + b1) @ w2.reshape(1, 3).T + b2
        losses.append(((out - y) ** 2).mean())
    return np.array(losses)


def content_of(walk, losses, epsilon):
    slopes = np.diff(losses) / np.linalg.norm(np.diff(walk, axis=0), axis=1)
    signs = np.where(slopes > epsilon, 1, np.where(slopes < -epsilon, -1, 0))
    changes = list(zip(signs[:-1], signs[1:]))
    probabilities = [changes.count((a, b)) / len(changes) for a in (-1, 0, 1) for b in (-1, 0, 1) if a != b]
    return -sum(p * math.log(p, 6) for p in probabilities if p > 1e-4)


def q_of(content):
    """Four changes with probability q, two with 1/2 - 2q, have this content: by bisection."""
    def excess(q):
        return -4 * q * math.log(q, 6) - 2 * (0.5 - 2 * q) * math.log(0.5 - 2 * q, 6) - content

    low, high = 0.001, 1 / 6
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return low


@pytest.mark.parametrize("seed", range(3))
def test_information_content(bin_dir, tmp_path, seed):
    random = np.random.default_rng(seed)
    x, y = random.normal(size=(10, 2)).astype(np.float32), random.normal(size=(10, 1)).astype(np.float32)
    walk = random.uniform(0, 2 * math.pi, (20 * 13, 13)).astype(np.float32)
    epsilons = np.logspace(-3, 1.5, 25, dtype=np.float32)
    np.savez(tmp_path / "case.npz", x=x, y=y, variations=walk, epsilons=epsilons)
    done = subprocess.run([bin_dir / "test" / "information_content", tmp_path / "case.npz", str(ETA)],
                          capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)

    losses = losses_of(walk.astype(np.float64), x, y)
    contents = [content_of(walk.astype(np.float64), losses, epsilon) for epsilon in epsilons]
    assert result["values"] == pytest.approx(contents, abs=2e-2)  # float32: a sign at the threshold may differ
    inverse = statistics.NormalDist().inv_cdf
    best = int(np.argmax(result["values"]))
    scale = float(epsilons[best]) * math.sqrt(13)
    q = q_of(result["values"][best])
    assert result["max_lower"] == pytest.approx(scale / inverse(1 - 2 * q), rel=1e-2)
    assert result["max_upper"] == pytest.approx(scale / inverse((1 + 2 * q) / 2), rel=1e-2)
    least = min(epsilon for epsilon, content in zip(epsilons, result["values"]) if content < ETA)
    assert result["sensitivity_upper"] == pytest.approx(float(least) * math.sqrt(13) / inverse(1 - 1.5 * ETA), rel=1e-5)
    assert result["restored"]
