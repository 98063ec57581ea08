# SPDX-License-Identifier: Apache-2.0
"""Reads and writes safetensors files: 8 bytes of header length, a JSON header, the data."""

import json
import struct


def read(path):
    """Returns {name: (dtype, shape, bytes)}."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        data = file.read()
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = (entry["dtype"], entry["shape"], data[begin:end])
    return tensors


def write(path, tensors):
    """Writes float32 tensors {name: (shape, values)}."""
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        header[name] = {
            "dtype": "F32",
            "shape": list(shape),
            "data_offsets": [len(data), len(data) + 4 * len(values)],
        }
        data += struct.pack("<%df" % len(values), *values)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)
