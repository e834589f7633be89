"""Small modules whose forward depends on a state: counters, random numbers, iterators, context."""

from __future__ import annotations

import collections
import contextvars
import itertools
import random

import numpy as np
import torch

from tests.soundness.case import Case
from tests.soundness.nasty import Base, X, made, nasty

STRENGTH: contextvars.ContextVar[float] = contextvars.ContextVar("strength", default=2.0)


@nasty
def counters() -> Case:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen["call"] += 1
        return self.linear(x) * (self.calls % self.limit + 1) + self.seen["call"]

    module = made(forward, calls=0, limit=3, seen=collections.Counter[str]())

    def reset() -> None:
        module.seen.clear()
        module.calls = 0

    return Case(module, (X,), reset=reset, repeats=3)


@nasty
def context_variables() -> Case:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * STRENGTH.get()

    return Case(made(forward), (X,), roots={"STRENGTH": STRENGTH})


@nasty
def random_state() -> Case:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * random.choice([1.0, 2.0]) + self.noise.random() * self.amount + float(np.random.rand())

    module = made(forward, noise=random.Random(3), amount=0.5)
    return Case(module, (X,), reset=lambda: module.noise.seed(3), repeats=2)


@nasty
def random_numbers_of_ones_own() -> Case:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.noise.random() + float(self.generator.random())

    module = made(forward, noise=random.Random(3), generator=np.random.default_rng(3))

    def reset() -> None:
        module.noise.seed(3)
        module.generator = np.random.default_rng(3)

    return Case(module, (X,), reset=reset, repeats=2)


@nasty
def key_value_lists() -> Case:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.past.append(self.linear(x))
        self.queue.rotate(1)
        y = torch.stack(self.past).sum(0) * self.queue[0] + self.previous
        self.previous = y
        return y

    module = made(forward, past=[], queue=collections.deque([0.5, 1.5]), previous=torch.zeros(3, 4))

    def reset() -> None:
        module.past.clear()
        module.queue = collections.deque([0.5, 1.5])
        module.previous = torch.zeros(3, 4)

    return Case(module, (X,), reset=reset, repeats=3)


@nasty
def seeded_generators() -> Case:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fixed = torch.randn(4, generator=torch.Generator().manual_seed(self.seed))
        return self.linear(x) * fixed + torch.rand(4, generator=self.generator)

    module = made(forward, seed=5, generator=torch.Generator().manual_seed(7))
    return Case(module, (X,), reset=lambda: module.generator.manual_seed(7), repeats=2)


@nasty
def iterators() -> Case:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * next(self.factors)

    module = made(forward, factors=itertools.cycle([1.0, 2.0, 3.0]))

    def reset() -> None:
        module.factors = itertools.cycle([1.0, 2.0, 3.0])

    return Case(module, (X,), reset=reset, repeats=3)


@nasty
def autocast() -> Case:
    class Module(Base):
        dtype = torch.bfloat16

        def __init__(self) -> None:
            super().__init__()
            self.enabled = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=self.dtype, enabled=self.enabled):
                y = self.linear(x)
            return y.float() * 2

    return Case(Module(), (X,), tolerance=0.02)
