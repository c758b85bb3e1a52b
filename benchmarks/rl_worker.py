"""A rollout worker for benchmarks of the loop: a process that draws each batch with exactly the weights it is sent."""

import asyncio
import multiprocessing
import queue
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
from safetensors.torch import load, save

from weightsync.clock import SYSTEM
from weightsync.engine.gate import Gate
from weightsync.rl.decoder import Decoder, Shape
from weightsync.rl.environments import open_environment
from weightsync.rl.episode import Rules, play_group
from weightsync.rl.policy import LocalPolicy
from weightsync.rl.records import Group, Task


async def play(policy: LocalPolicy, environment: Any, tasks: list[Task], temperature: float = 1.0) -> list[Group]:
    rules = Rules(window=64, temperature=temperature)
    episodes = await asyncio.gather(*(play_group(environment, task, policy, clock=SYSTEM, rules=rules) for task in tasks))
    return [Group(task, found, "worker", "home") for task, found in zip(tasks, episodes, strict=True)]


def serve(pipe: Connection, shape: Shape, name: str, slots: int) -> None:
    """Answers (version, weights, tasks, wait_s, temperature) with (groups, seconds)."""
    torch.set_num_threads(1)
    orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
    # Orders are taken off the pipe while answers wait to be taken off it: neither side may block the other.
    threading.Thread(target=lambda: [orders.put(order) for order in iter(pipe.recv, None)] + [orders.put(None)], daemon=True).start()
    environment, gate = open_environment(name), Gate(1)
    decoder = Decoder(shape, torch.Generator()).bfloat16()
    with LocalPolicy(decoder, gate, slots=slots) as policy:
        while (order := orders.get()) is not None:
            version, weights, tasks, wait_s, temperature = order
            start = time.monotonic()
            with gate.pause():
                decoder.load_state_dict(load(weights))
                gate.serve(version)
            groups = asyncio.run(play(policy, environment, tasks, temperature))
            time.sleep(wait_s)  # what an environment, a sandbox or a network makes one wait, without using the processor
            pipe.send((groups, time.monotonic() - start))


class Worker:
    """The process and its orders, first in first out."""

    def __init__(self, shape: Shape, environment: str = "sort", slots: int = 256) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=serve, args=(other, shape, environment, slots), daemon=True)
        self._process.start()

    def order(self, version: int, weights: dict[str, Any], tasks: list[Task], wait_s: float = 0.0, temperature: float = 1.0) -> None:
        self._pipe.send((version, save({name: tensor.contiguous() for name, tensor in weights.items()}), tasks, wait_s, temperature))

    def groups(self) -> tuple[list[Group], float]:
        found: tuple[list[Group], float] = self._pipe.recv()
        return found

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join()
