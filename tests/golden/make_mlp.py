#!/usr/bin/python3
"""Makes mlp_*.safetensors and mlp_*.txt: what PyTorch says about a 3-layer MLP, 20 steps of AdamW with clipping.

Run with OPENBLAS_NUM_THREADS=1 on Debian's python3-torch (1.13.1); the tests need only the files. The safetensors
file is the initial state_dict under Shoal's names, so that it also stands for "a PyTorch user's weights".
"""

import json
import math
import os
import struct

import torch
from torch import nn

ROWS, FEATURES, HIDDEN, CLASSES, BATCH, STEPS = 60, 10, (16, 12), 4, 16, 20
VARIANTS = {
    "relu": (nn.ReLU(), False),
    "gelu": (nn.GELU(), False),
    "gelu_tanh": (nn.GELU(approximate="tanh"), True),
    "tanh": (nn.Tanh(), False),
    "relu_norm": (nn.ReLU(), True),
}


class Block(nn.Module):
    def __init__(self, inputs, outputs, activation, norm):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.norm = nn.BatchNorm1d(outputs) if norm else None
        self.activation = activation

    def forward(self, x):
        x = self.linear(x)
        return self.activation(self.norm(x) if self.norm else x)


class Mlp(nn.Module):
    def __init__(self, activation, norm):
        super().__init__()
        widths = (FEATURES,) + HIDDEN
        self.layers = nn.ModuleList(Block(a, b, activation, norm) for a, b in zip(widths, widths[1:]))
        self.head = nn.Linear(HIDDEN[-1], CLASSES)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def data():
    """Row r, column f: sin(0.7 r + 1.3 f + 0.05 r f), in double, rounded once; class (3 r + r r / 7) mod 4."""
    x = [[math.sin(0.7 * r + 1.3 * f + 0.05 * r * f) for f in range(FEATURES)] for r in range(ROWS)]
    return torch.tensor(x, dtype=torch.float64).float(), torch.tensor([(3 * r + r * r // 7) % CLASSES for r in range(ROWS)])


def write_safetensors(path, tensors):
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, value in tensors.items():
        blob = value.detach().contiguous().numpy().tobytes()
        kind = {torch.float32: "F32", torch.int64: "I64"}[value.dtype]
        header[name] = {"dtype": kind, "shape": list(value.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def train(name, activation, norm, folder):
    torch.manual_seed(5)
    model = Mlp(activation, norm)
    write_safetensors(os.path.join(folder, f"mlp_{name}.safetensors"), model.state_dict())
    if norm:  # its gradient is 0 but for rounding, which Adam would blow up to whole steps of lr
        for layer in model.layers:
            layer.linear.bias.requires_grad = False
    x, labels = data()
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=0.02, weight_decay=0.05)
    lines = []
    for step in range(STEPS):
        first = step * BATCH % 64  # four batches an epoch, the last one short
        model.train()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[first : first + BATCH]), labels[first : first + BATCH])
        loss.backward()
        clip = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        lines.append(f"{loss.item():.9g} {clip.item():.9g}")
    model.eval()
    with torch.no_grad():
        lines.append(f"{nn.functional.cross_entropy(model(x), labels).item():.9g}")
    with open(os.path.join(folder, f"mlp_{name}.txt"), "w") as file:
        file.write("\n".join(lines) + "\n")


def main():
    torch.set_num_threads(1)
    for name, (activation, norm) in VARIANTS.items():
        train(name, activation, norm, os.path.dirname(os.path.abspath(__file__)))


main()
