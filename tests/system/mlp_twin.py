# SPDX-License-Identifier: Apache-2.0
"""A network of two hidden layers in float64, trained by SGD with momentum, for tests of losses of
targets that are vectors. It follows PyTorch's MSELoss, L1Loss, HuberLoss and BCEWithLogitsLoss
(mean); step_of_pytorch() is the same step by PyTorch itself.
"""

import h5py
import numpy as np

LAYERS = ("layers.0", "layers.1", "layers.2")


def initial_weights(case):
    """Returns the weights with which every run of a case starts: a run of one step at a rate of
    almost 0."""
    words = ("run.stop=1 step", "schedule.rate=1e-30", "run.folder=start", "data.validation=")
    case.train(
        *(w for word in words for w in ("--set", word)),
        "--unset",
        "checkpoint.best",
        "--unset",
        "evaluate.every"
    )
    with h5py.File(case.path("start/checkpoints/step_000000001.h5")) as file:
        return {name: tensor[:] for name, tensor in file["model"].items()}


def loss_and_slope(kind, out, y, delta):
    """Returns the loss of each output, and its derivative."""
    error = out - y
    if kind == "mse":
        return error**2, 2 * error
    if kind == "l1":
        return abs(error), np.sign(error)
    if kind == "binary-cross-entropy":
        return np.logaddexp(0, out) - out * y, 1 / (1 + np.exp(-out)) - y
    small = abs(error) <= delta
    return (
        np.where(small, error**2 / 2, delta * (abs(error) - delta / 2)),
        np.where(small, error, delta * np.sign(error)),
    )


class MlpTwin:
    def __init__(self, weights, rate, momentum, delta=1.0):
        self.w = {name: value.astype(np.float64) for name, value in weights.items()}
        self.velocity = {name: np.zeros_like(value) for name, value in self.w.items()}
        self.rate, self.momentum, self.delta = rate, momentum, delta
        self.network = self.optimizer = None

    def forward(self, x):
        """Returns the inputs of the layers, and the output."""
        inputs = [x]
        for layer in LAYERS:
            out = inputs[-1] @ self.w[layer + ".weight"].T + self.w[layer + ".bias"]
            inputs.append(np.maximum(out, 0))
        return inputs[:-1], out

    def step(self, kind, x, y):
        inputs, out = self.forward(x)
        losses, slope = loss_and_slope(kind, out, y, self.delta)
        slope, gradients = slope / losses.size, {}
        for layer, into in zip(reversed(LAYERS), reversed(inputs)):
            gradients[layer + ".weight"] = slope.T @ into
            gradients[layer + ".bias"] = slope.sum(0)
            slope = (slope @ self.w[layer + ".weight"]) * (into > 0)
        for name, gradient in gradients.items():
            self.velocity[name] = self.momentum * self.velocity[name] + gradient
            self.w[name] -= self.rate * self.velocity[name]
        return losses.mean()

    def step_of_pytorch(self, loss, x, y):
        """The same step by PyTorch, of a twin that makes no other steps."""
        import torch

        if self.network is None:
            layers = []
            for layer in LAYERS:
                weight = torch.from_numpy(self.w[layer + ".weight"])
                layers += [torch.nn.Linear(*reversed(weight.shape)).double(), torch.nn.ReLU()]
                layers[-2].weight.data = weight
                layers[-2].bias.data = torch.from_numpy(self.w[layer + ".bias"])
            self.network = torch.nn.Sequential(*layers[:-1])
            self.optimizer = torch.optim.SGD(
                self.network.parameters(), lr=self.rate, momentum=self.momentum
            )
        self.optimizer.zero_grad()
        value = loss(self.network(torch.from_numpy(x)), torch.from_numpy(y))
        value.backward()
        self.optimizer.step()
        return value.item()
