"""How many threads torch may use in this process."""

import torch


def use_one_thread() -> None:
    """Models this small gain from no second thread, and sums stay in one order: steps can be done again to the bit."""
    torch.set_num_threads(1)
