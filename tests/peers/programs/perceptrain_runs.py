"""The runs of perceptrain_runs.cpp with perceptrain: perceptrain_runs.py FOLDER writes FOLDER/perceptrain.json, and
FOLDER/candidates.npz with the points that nevergrad asked for, which the C++ program evaluates."""

import json
import pathlib
import sys

import matplotlib
import nevergrad
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

matplotlib.use("agg")
# perceptrain makes float64 the default dtype when it is imported.
from perceptrain import InformationContent, TrainConfig, Trainer, num_parameters, set_parameters  # noqa: E402
from perceptrain.callbacks import Callback  # noqa: E402
from perceptrain.data import R3Dataset  # noqa: E402
from perceptrain.optimizers import AdamLBFGS  # noqa: E402

FOLDER = pathlib.Path(sys.argv[1])
SETTINGS = json.loads((FOLDER / "cases.json").read_text())
CASES = {name: torch.from_numpy(array) for name, array in np.load(FOLDER / "cases.npz").items()}


def make_net(inputs):
    return nn.Sequential(nn.Linear(inputs, 3), nn.Tanh(), nn.Linear(3, 1))


def content(number):
    """In float32, as Lockstep computes it."""
    torch.set_default_dtype(torch.float32)

    def loss(model, batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1]), {}

    result = InformationContent(make_net(2), loss, (CASES[f"x{number}"], CASES[f"y{number}"]), CASES["epsilons"])
    assert result.all_variations.shape == CASES[f"walk{number}"].shape
    result.all_variations = CASES[f"walk{number}"]
    answer = {
        "values": result.calculate_IC.double().tolist(),
        "maximum": result.max_IC(),
        "sensitivity": result.sensitivity_IC(SETTINGS["eta"]),
        "bounds": [*result.get_grad_norm_bounds_max_IC(),
                   result.get_grad_norm_bounds_sensitivity_IC(SETTINGS["eta"])],
    }
    torch.set_default_dtype(torch.float64)
    return answer


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adam_lbfgs": lambda parameters: AdamLBFGS(parameters, switch_epoch=6, adam_kwargs={"lr": 0.01},
                                               lbfgs_kwargs={"lr": 0.1, "max_iter": 5}),
}


def loader(prefix, batch_size):
    return DataLoader(TensorDataset(CASES[prefix + "inputs"], CASES[prefix + "targets"]), batch_size=batch_size)


class Recorder(Trainer):
    def on_train_batch_end(self, train_batch_loss_metrics):
        self.losses = getattr(self, "losses", []) + [train_batch_loss_metrics[0].item()]

    def on_train_end(self, train_losses, val_losses):
        self.val_losses = [sum(loss.item() for loss, _ in epoch) / len(epoch) for epoch in val_losses]


def config(name, **fields):
    return TrainConfig(verbose=False, log_folder=FOLDER / "perceptrain" / name, **fields)


def train(name, setting):
    net = make_net(1)
    set_parameters(net, CASES["weights"])
    optimizer = OPTIMIZERS[setting["optimizer"]](net.parameters())
    # It trains one epoch more than max_iter says.
    fields = config(name, max_iter=setting["epochs"] - 1, val_every=1, dtype=getattr(torch, setting["dtype"]))
    trainer = Recorder(net, optimizer, fields, "mse", max_batches=setting.get("max_batches"),
                       train_dataloader=loader("", 8), val_dataloader=loader("val_", 8))
    net, _ = trainer.fit()
    weights = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
    return {"losses": trainer.losses, "val_losses": trainer.val_losses, "weights": weights.double().tolist()}


class Search(Recorder):
    """Without gradients. use_grad is a switch of the class."""


Search.set_use_grad(False)


def search(name, setting):
    """Returns what was compared and the candidates, in the order in which nevergrad got their losses."""
    net = make_net(1)
    set_parameters(net, CASES["weights"])
    optimizer = nevergrad.optimizers.registry[setting["optimizer"]](parametrization=num_parameters(net), budget=setting["epochs"])
    optimizer.parametrization.random_state.seed(1)
    told = []
    optimizer.register_callback("tell", lambda _, candidate, loss: told.append((candidate.value, loss)))
    fields = config(name, max_iter=setting["epochs"] - 1, dtype=torch.float64)
    trainer = Search(net, optimizer, fields, "mse", max_batches=setting.get("max_batches"), train_dataloader=loader("", 8))
    net, _ = trainer.fit()
    weights = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
    return {"told": [loss for _, loss in told], "losses": trainer.losses, "weights": weights.tolist(),
            "last_asked": trainer.ng_params.value.tolist(),
            "recommendation": optimizer.provide_recommendation().value.tolist()}, np.stack([point for point, _ in told])


def calls(name, setting):
    rows = []

    class Recording(Callback):
        def run_callback(self, trainer, config, writer):
            rows.append([str(self.on.value), self.called_every, trainer.opt_result.iteration, trainer.current_epoch])

        def __deepcopy__(self, memo):
            return self

    callbacks = [Recording(on=stage, called_every=every) for stage, every in setting["callbacks"]]
    net = make_net(1)
    fields = config(name, max_iter=setting["epochs"], val_every=setting["val_every"], callbacks=callbacks)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    Trainer(net, optimizer, fields, "mse", train_dataloader=loader("", 20), val_dataloader=loader("", 20)).fit()
    return rows


def resample():
    position = 0

    def draw(count):
        nonlocal position
        position += count
        return CASES["pool"][position - count : position].clone()

    fitness = CASES["fitness"]
    points = R3Dataset(draw, fitness.shape[1], SETTINGS["release_threshold"])
    rows = [[-1, points.features.flatten().tolist()]]
    for values in fitness:
        points.update(values)
        rows.append([points.n_released, points.features.flatten().tolist()])
    return rows


def main():
    torch.set_num_threads(1)
    searches = {name: search(name, setting) for name, setting in SETTINGS["search"].items()}
    np.savez(FOLDER / "candidates.npz", **{name: candidates for name, (_, candidates) in searches.items()})
    result = {
        "content": [content(number) for number in range(SETTINGS["contents"])],
        "training": {name: train(name, setting) for name, setting in SETTINGS["training"].items()},
        "calls": [calls(f"calls-{i}", setting) for i, setting in enumerate(SETTINGS["calls"])],
        "r3": resample(),
        "search": {name: outcome for name, (outcome, _) in searches.items()},
    }
    (FOLDER / "perceptrain.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
