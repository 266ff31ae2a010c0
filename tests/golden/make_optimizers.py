#!/usr/bin/python3
"""Writes optimizers.txt: PyTorch's weights over ten steps of each optimizer, in double.

Per case: `case LABEL`, then `name lr beta1 beta2 eps weight_decay momentum nesterov count steps`, the first weights,
and for each step the gradient and the weights after it. Needs python3-torch (1.13.1 made the file that is stored).
"""
import os

import torch

COUNT, STEPS = 5, 10
DEFAULTS = dict(lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, momentum=0.0, nesterov=0)
CASES = [
    ("sgd", "sgd", {}),
    ("sgd_decay", "sgd", dict(weight_decay=0.05)),
    ("sgd_momentum", "sgd", dict(momentum=0.9)),
    ("sgd_nesterov", "sgd", dict(momentum=0.9, nesterov=1)),
    ("sgd_nesterov_decay", "sgd", dict(momentum=0.8, nesterov=1, weight_decay=0.05, lr=0.02)),
    ("adam", "adam", {}),
    ("adam_betas_eps", "adam", dict(beta1=0.8, beta2=0.95, eps=0.1, lr=0.02)),
    ("adam_decay", "adam", dict(weight_decay=0.1)),
    ("adamw", "adamw", dict(weight_decay=0.01)),
    ("adamw_decay_eps", "adamw", dict(weight_decay=0.3, eps=0.1, lr=0.05)),
    ("adamw_betas", "adamw", dict(weight_decay=0.01, beta1=0.5, beta2=0.9)),
    ("adagrad", "adagrad", dict(eps=1e-10)),
    ("adagrad_decay", "adagrad", dict(eps=1e-10, weight_decay=0.1)),
    ("adagrad_eps", "adagrad", dict(eps=0.1, lr=0.5)),
]


def optimizer(name, w, o):
    if name == "sgd":
        return torch.optim.SGD([w], o["lr"], momentum=o["momentum"], weight_decay=o["weight_decay"],
                               nesterov=bool(o["nesterov"]))
    if name == "adagrad":
        return torch.optim.Adagrad([w], o["lr"], weight_decay=o["weight_decay"], eps=o["eps"])
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    return kind([w], o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["eps"], weight_decay=o["weight_decay"])


def line(values):
    return " ".join("%.17g" % v for v in values) + "\n"


def main():
    generator = torch.Generator().manual_seed(7)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "optimizers.txt")
    with open(path, "w", encoding="ascii") as out:
        for label, name, options in CASES:
            o = dict(DEFAULTS, **options)
            # Rounded to float32 first, so that both sides start from the same numbers.
            w = torch.randn(COUNT, generator=generator).double().requires_grad_()
            rule = optimizer(name, w, o)
            out.write("case %s\n%s %s %d %d\n" % (label, name, " ".join("%.17g" % o[k] for k in DEFAULTS), COUNT, STEPS))
            out.write(line(w.tolist()))
            for _ in range(STEPS):
                w.grad = torch.randn(COUNT, generator=generator).double()
                rule.step()
                out.write(line(w.grad.tolist()) + line(w.tolist()))


if __name__ == "__main__":
    main()
