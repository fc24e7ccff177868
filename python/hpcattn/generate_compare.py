# SPDX-License-Identifier: Apache-2.0
"""The same prompts by another attention: the first token that differs.

They run one by one through Transformers' own `generate()`, over its own cache, so nothing of the
run that is checked is used again but the weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from hpcattn.generate import Options, Report, decode, generation_config
from hpcattn.models import Model


@dataclass(frozen=True)
class Difference:
    """The first token of a prompt where another attention goes another way.

    Attributes:
        prompt_idx: Which prompt.
        token_idx: Which of its new tokens.
        expected: The other attention's token as text, or None where its text had ended.
        got: hpcattn's, likewise.
    """

    prompt_idx: int
    token_idx: int
    expected: str | None
    got: str | None


@dataclass(frozen=True)
class Comparison:
    """The same prompts by another attention.

    Attributes:
        attention: Its name.
        seconds: All prompts, one by one.
        new_tokens: New tokens of all prompts.
        differences: One for each prompt that differs.
    """

    attention: str
    seconds: float
    new_tokens: int
    differences: list[Difference] = field(default_factory=list)


def compare(
    model: Model,
    report: Report,
    attention: str,
    options: Options | None = None,
    *,
    on_prompt: Callable[[int], None] | None = None,
) -> Comparison:
    """Runs a report's prompts again, one by one, through `generate()` with another attention.

    Args:
        model: The model that made the report; it keeps its attention.
        report: From `generate`.
        attention: As Transformers names it: "eager", "sdpa", "hpcattn".
        options: As the report was made with.
        on_prompt: Is told of each prompt's index when it is done.

    Raises:
        ValueError: The options sample, so that the texts differ by chance.
    """
    options = options or Options()
    if options.temperature > 0:
        raise ValueError(
            f"temperature is {options.temperature}, expected 0 to compare: sampled texts differ by"
            " chance."
        )
    before = model.model.config._attn_implementation
    model.model.set_attn_implementation(attention)
    differences: list[Difference] = []
    seconds, new_tokens = 0.0, 0
    try:
        for index, completion in enumerate(report.completions):
            start = time.perf_counter()
            tokens = _generate_alone(model, completion.prompt_tokens, options)
            seconds += time.perf_counter() - start
            new_tokens += len(tokens)
            difference = _first_difference(model, index, tokens, completion.tokens)
            if difference is not None:
                differences.append(difference)
            if on_prompt is not None:
                on_prompt(index)
    finally:
        model.model.set_attn_implementation(before)
    return Comparison(attention, seconds, new_tokens, differences)


def _generate_alone(model: Model, prompt: list[int], options: Options) -> list[int]:
    inputs = torch.tensor([prompt], device=model.model.device)
    output = model.model.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        generation_config=generation_config(model, options),
    )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


def _first_difference(
    model: Model, prompt_idx: int, expected: list[int], got: list[int]
) -> Difference | None:
    for token_idx in range(max(len(expected), len(got))):
        pair = expected[token_idx : token_idx + 1], got[token_idx : token_idx + 1]
        if pair[0] != pair[1]:
            texts = [decode(model, tokens) if tokens else None for tokens in pair]
            return Difference(prompt_idx, token_idx, *texts)
    return None
