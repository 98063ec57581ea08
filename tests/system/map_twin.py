# SPDX-License-Identifier: Apache-2.0
"""A network of three convolutions over a periodic field in float64, trained by SGD with momentum,
for tests of targets that are maps.

Its losses follow PyTorch's CrossEntropyLoss(ignore_index=-1), and MSELoss (mean) over the targets
that are not NaN; step_of_pytorch() is the same step by PyTorch.
"""

import numpy as np

LAYERS = ("blocks.0", "blocks.2", "blocks.4")
TAPS = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]


def neighbors(x):
    """Returns [n, h, w, 9 * channels]: the window of each pixel of [n, h, w, channels]."""
    return np.concatenate([np.roll(x, (-dy, -dx), (1, 2)) for dy, dx in TAPS], 3)


def gather_windows(windows):
    """The transpose of neighbors()."""
    parts = np.split(windows, len(TAPS), 3)
    return sum(np.roll(part, tap, (1, 2)) for part, tap in zip(parts, TAPS))


def loss_of_classes(out, y):
    """Returns the mean loss over the labels that are not -1, and its derivative."""
    shifted = out - out.max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    counts = y >= 0
    hit = counts[..., None] & (y[..., None] == np.arange(out.shape[-1]))
    slope = np.where(counts[..., None], np.exp(log_p), 0) - hit
    return -log_p[hit].sum() / counts.sum(), slope / counts.sum()


def weighted_loss_of_classes(weights):
    """Returns loss_of_classes() as the mean over the weights of the labels' classes, as of
    PyTorch's CrossEntropyLoss(weight)."""

    def loss(out, y):
        shifted = out - out.max(-1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        hit = (y >= 0)[..., None] & (y[..., None] == np.arange(out.shape[-1]))
        weight = (hit * weights).sum(-1, keepdims=True)
        slope = weight * (np.exp(log_p) - hit)
        return -(weight * log_p)[hit].sum() / weight.sum(), slope / weight.sum()

    return loss


def loss_of_numbers(out, y):
    """Returns the mean squared error over the targets that are not NaN, and its derivative."""
    error = np.nan_to_num(out - y)
    count = np.isfinite(y).sum()
    return (error**2).sum() / count, 2 * error / count


class MapTwin:
    def __init__(self, weights, rate, momentum):
        """Takes weights by name: those of a layer [out, in, 3, 3] and [out]."""
        self.w = {name: value.astype(np.float64) for name, value in weights.items()}
        self.velocity = {name: np.zeros_like(value) for name, value in self.w.items()}
        self.rate, self.momentum = rate, momentum
        self.network = self.optimizer = None

    def matrix(self, layer):
        """Returns the weights of a layer as a matrix [out, 9 * in]."""
        w = self.w[layer + ".weight"]
        return w.transpose(0, 2, 3, 1).reshape(len(w), -1)

    def forward(self, x):
        """Takes [n, h, w, channels]. Returns the windows of the layers, and the output."""
        windows = []
        for layer in LAYERS:
            windows.append(neighbors(x))
            out = windows[-1] @ self.matrix(layer).T + self.w[layer + ".bias"]
            x = np.maximum(out, 0)
        return windows, out

    def step(self, loss, x, y, clip_norm=np.inf):
        windows, out = self.forward(x)
        value, slope = loss(out, y)
        gradients = {}
        for layer, window in zip(reversed(LAYERS), reversed(windows)):
            shape = self.w[layer + ".weight"].shape
            gradient = np.tensordot(slope, window, ((0, 1, 2), (0, 1, 2)))
            gradients[layer + ".weight"] = gradient.reshape(shape[0], 3, 3, shape[1]).transpose(
                0, 3, 1, 2
            )
            gradients[layer + ".bias"] = slope.sum((0, 1, 2))
            # The values of the first layer's windows are outputs of ReLU, so their sign tells.
            slope = gather_windows((slope @ self.matrix(layer)) * (window > 0))
        norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
        factor = min(1, clip_norm / (norm + 1e-6))
        for name, gradient in gradients.items():
            gradient = factor * gradient
            self.velocity[name] = self.momentum * self.velocity[name] + gradient
            self.w[name] -= self.rate * self.velocity[name]
        return value

    def step_of_pytorch(self, loss, x, y):
        """The same step by PyTorch, of a twin that makes no other steps. `loss` takes outputs
        [n, channels, h, w] and the targets as they are."""
        import torch

        if self.network is None:
            layers = []
            for layer in LAYERS:
                weight = torch.from_numpy(self.w[layer + ".weight"])
                out, into = weight.shape[:2]
                layers += [
                    torch.nn.Conv2d(into, out, 3, padding=1, padding_mode="circular").double(),
                    torch.nn.ReLU(),
                ]
                layers[-2].weight.data = weight
                layers[-2].bias.data = torch.from_numpy(self.w[layer + ".bias"])
            self.network = torch.nn.Sequential(*layers[:-1])
            self.optimizer = torch.optim.SGD(
                self.network.parameters(), lr=self.rate, momentum=self.momentum
            )
        self.optimizer.zero_grad()
        value = loss(self.network(torch.from_numpy(x).movedim(3, 1)), torch.from_numpy(y))
        value.backward()
        self.optimizer.step()
        return value.item()
