"""`gossamer generate`."""

from __future__ import annotations

from gossamer.node.commands.options import NO_OPTIONS, RoundNumber, State, reading_settings_of
from gossamer.node.runs.results.generating import Sampling, generate_text


def generate(
    text: str,
    *,
    tokens: int = 100,
    temperature: float = 0.8,
    seed: int = 0,
    round_number: RoundNumber = None,
    device: str = "cpu",
    options: State = NO_OPTIONS,
) -> int:
    """Continue a text with the model as it is on this disk.

    The node may run meanwhile.

    Parameters
    ----------
    text
        Text to continue; an empty one begins a new text.
    tokens
        Number of tokens to add at most.
    temperature
        0 always takes the likeliest token; 1 takes each as often as the model expects it.
    seed
        Number that decides what is drawn. The same one gives the same text.
    round_number
        Round after which the state is.
    device
        Device to compute on: cpu, cuda, cuda:N or mps.
    """
    sampling = Sampling(tokens=tokens, temperature=temperature, seed=seed, device=device)
    return generate_text(reading_settings_of(options), text, sampling, round_number)
