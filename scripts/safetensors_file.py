# SPDX-License-Identifier: Apache-2.0
"""Writes weights as a safetensors file, which `trireme import` reads."""

import json
import struct


def write_safetensors(path, tensors):
    """Writes tensors, {name: (shape, contiguous buffer of float32)}: length of the header, JSON
    header, data."""
    header, offset = {}, 0
    for name, (shape, values) in tensors.items():
        end = offset + memoryview(values).nbytes
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, values in tensors.values():
            file.write(values)


def tensors_of(network):
    """Returns the tensors of a PyTorch network for write_safetensors(), without the counters of
    batch norm."""
    return {
        name: (tensor.shape, tensor.detach().float().contiguous().numpy())
        for name, tensor in network.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
