# SPDX-License-Identifier: Apache-2.0
"""Text from a model, every attention of it computed by hpcattn over paged KV.

One prompt or many take the same path: Transformers' continuous batching, with the attention
function "paged|hpcattn".
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import hpcattn
from hpcattn.models import Model

_ATTENTION = "paged|hpcattn"
_MAX_STEP_TOKENS = 1024  # a longer prompt is prefilled in chunks


@dataclass(frozen=True)
class Options:
    """How to generate.

    Attributes:
        max_new_tokens: Of each prompt; fewer where the model ends its text.
        temperature: 0 for the likeliest token at each place.
        top_p: With a temperature: sample among the likeliest tokens that make up this share.
        seed: Of sampling.
        page_size: Tokens of a page, a multiple of 8.
        num_pages: Pages of the cache; None for enough to hold all prompts to the end. With fewer,
            requests take turns.
    """

    max_new_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    page_size: int = 16
    num_pages: int | None = None

    def __post_init__(self) -> None:
        """Refuses what makes no sense.

        Raises:
            ValueError: A value out of its range.
        """
        _check("max_new_tokens", self.max_new_tokens, self.max_new_tokens >= 1, "1 or more")
        _check("temperature", self.temperature, 0 <= self.temperature < float("inf"), "0 or more")
        _check("top_p", self.top_p, 0 < self.top_p <= 1, "over 0 and at most 1")
        greedy = self.temperature == 0
        _check("top_p", self.top_p, not greedy or self.top_p == 1, "1 with a temperature of 0")
        _check(
            "page_size",
            self.page_size,
            self.page_size >= 8 and self.page_size % 8 == 0,
            "a multiple of 8",
        )
        _check(
            "num_pages", self.num_pages, self.num_pages is None or self.num_pages >= 1, "1 or more"
        )


@dataclass(frozen=True)
class Completion:
    """What the model said to one prompt.

    Attributes:
        prompt: As given.
        prompt_tokens: Its tokens, the chat template's included.
        tokens: The new tokens.
        text: The new tokens as text, special tokens left out.
    """

    prompt: str
    prompt_tokens: list[int]
    tokens: list[int]
    text: str


@dataclass(frozen=True)
class Report:
    """A run of `generate`.

    Attributes:
        completions: In the order of the prompts.
        seconds: From the first prompt's entry to the last token.
        first_token_seconds: To the first token of any prompt.
        page_size: Tokens of a page.
        num_pages: Pages of the cache.
        peak_pages: Most pages in use at a step.
        calls: Calls that reached hpcattn, by operator.
        kernels: Tasks that each kernel answered, on a GPU its launches.
        compilations: Kernels compiled meanwhile; 0 after `hpcattn.prepare`.
    """

    completions: list[Completion]
    seconds: float
    first_token_seconds: float
    page_size: int
    num_pages: int
    peak_pages: int
    calls: dict[str, int]
    kernels: dict[str, int]
    compilations: int = 0

    @property
    def new_tokens(self) -> int:
        """New tokens of all prompts."""
        return sum(len(completion.tokens) for completion in self.completions)

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all prompts a second, prefill included."""
        return self.new_tokens / self.seconds


OnToken = Callable[[int, list[int]], None]
"""Called with a prompt's index and all its new tokens so far, whenever it has a new one."""


def encode(model: Model, prompt: str, *, chat: bool = True) -> list[int]:
    """The tokens of a prompt.

    Args:
        model: Whose tokenizer to use.
        prompt: Text of the user.
        chat: Put it into the model's chat template, where it has one.

    Raises:
        ValueError: The prompt has no tokens.
    """
    tokenizer = model.tokenizer
    if chat and getattr(tokenizer, "chat_template", None):
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        tokens = tokenizer(prompt, add_special_tokens=False).input_ids
    else:
        tokens = tokenizer(prompt).input_ids
    if not tokens:
        raise ValueError("a prompt is empty, expected at least one token.")
    return list(tokens)


def decode(model: Model, tokens: Sequence[int]) -> str:
    """The text of tokens, special tokens left out."""
    text: str = model.tokenizer.decode(
        list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    return text


def generate(
    model: Model,
    prompts: Sequence[str],
    options: Options | None = None,
    *,
    chat: bool = True,
    on_token: OnToken | None = None,
) -> Report:
    """Generates for all prompts at once, by continuous batching over a paged KV cache.

    Args:
        model: From hpcattn.models.load.
        prompts: Texts; at least one.
        options: How; the defaults where None.
        chat: Use the model's chat template, where it has one.
        on_token: Is told of every new token, on this thread.

    Raises:
        ValueError: No prompts, an empty one, one that the model has no positions for, or a cache
            that can not hold one prompt to its end.
        NotImplementedError: Transformers' version has another continuous batching.
        RuntimeError: The generation failed; the message says why.
    """
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    from hpcattn.integrations.transformers.paged import check_transformers_version

    check_transformers_version()
    options = options or Options()
    if not prompts:
        raise ValueError("no prompts, expected at least one.")
    inputs = [encode(model, prompt, chat=chat) for prompt in prompts]
    _check_positions(model, inputs, options)
    num_pages = _num_pages(model, inputs, options)
    batching = ContinuousBatchingConfig(
        block_size=options.page_size,
        num_blocks=num_pages,
        max_batch_tokens=max(min(sum(map(len, inputs)), _MAX_STEP_TOKENS), len(inputs)),
        max_requests_per_batch=len(inputs),
        max_blocks_per_request=0,
        use_cuda_graph=False,
        use_async_batching=False,
        drop_unsupported_processors=False,
        seed=options.seed,
    )
    model.model.set_attn_implementation(_ATTENTION)
    hpcattn.reset_call_counts()
    compilations = hpcattn.compilations()
    peak = _PeakPages(model.model)
    try:
        run = _run(model, inputs, options, batching, on_token or (lambda *_: None))
    finally:
        peak.remove()
    completions = [
        Completion(prompt, tokens, new, decode(model, new))
        for prompt, tokens, new in zip(prompts, inputs, run.tokens, strict=True)
    ]
    return Report(
        completions=completions,
        seconds=run.seconds,
        first_token_seconds=run.first_token_seconds,
        page_size=options.page_size,
        num_pages=num_pages,
        peak_pages=peak.pages,
        calls={name: count for name, count in hpcattn.call_counts().items() if count},
        kernels={name: count for name, count in hpcattn.kernels().items() if count},
        compilations=hpcattn.compilations() - compilations,
    )


@dataclass
class _Run:
    tokens: list[list[int]]
    seconds: float
    first_token_seconds: float


def _run(
    model: Model, inputs: list[list[int]], options: Options, batching: Any, on_token: OnToken
) -> _Run:
    """Drives Transformers' continuous batching until all prompts are done."""
    manager = model.model.init_continuous_batching(
        generation_config=generation_config(model, options), continuous_batching_config=batching
    )
    tokens: list[list[int]] = [[] for _ in inputs]
    first_token = 0.0
    done = False
    start = time.perf_counter()
    manager.start()
    try:
        ids = manager.add_requests(inputs, max_new_tokens=options.max_new_tokens, streaming=True)
        waiting = {request_id: index for index, request_id in enumerate(ids)}
        while waiting:
            result = manager.get_result(timeout=1.0)
            if result is None:
                if manager.is_running():
                    continue
                raise RuntimeError("the generation thread ended before all prompts were done.")
            if result.error is not None:
                raise RuntimeError(f"generation failed: {result.error}")
            index = waiting[result.request_id]
            first_token = first_token or time.perf_counter() - start
            tokens[index] = list(result.generated_tokens)
            on_token(index, tokens[index])
            if result.is_finished():
                del waiting[result.request_id]
        seconds = time.perf_counter() - start
        done = True
    finally:
        # Unfinished requests are dropped at once: without this, stop() would wait for their ends.
        manager.stop(block=True, hard_stop=not done)
        manager.destroy()
    return _Run(tokens, seconds, first_token)


class _PeakPages:
    """Watches the cache at every forward pass of continuous batching."""

    def __init__(self, model: Any) -> None:
        self.pages = 0
        self._handle = model.register_forward_pre_hook(self._look, with_kwargs=True)

    def _look(self, _module: Any, _args: Any, kwargs: dict[str, Any]) -> None:
        cache = kwargs["cache"]
        self.pages = max(self.pages, cache.num_blocks - cache.get_num_free_blocks())

    def remove(self) -> None:
        self._handle.remove()


def generation_config(model: Model, options: Options) -> Any:
    """Transformers' GenerationConfig of these options; the rest is the model's own."""
    config = copy.deepcopy(model.model.generation_config)
    config.max_new_tokens = options.max_new_tokens
    config.max_length = None
    config.do_sample = options.temperature > 0
    config.temperature = options.temperature if config.do_sample else None
    config.top_p = options.top_p if config.do_sample and options.top_p < 1 else None
    config.top_k = None
    # Only rows of a batch that end early are padded; there is one row.
    config.pad_token_id = 0
    return config


def _num_pages(model: Model, inputs: list[list[int]], options: Options) -> int:
    """Pages of the cache: as asked, else enough for all prompts in half of the memory."""
    from transformers.generation.continuous_batching.cache import (
        find_head_dim,
        find_num_kv_heads,
        group_layers_by_attn_type,
    )

    config = model.model.config.get_text_config()
    groups, _ = group_layers_by_attn_type(config)

    def pages(prompt: list[int]) -> int:
        # A page belongs to one group of like layers, so each group needs its own.
        return -(-(len(prompt) + options.max_new_tokens) // options.page_size) * len(groups)

    longest, wanted = max(map(pages, inputs)), sum(map(pages, inputs))
    if options.num_pages is not None:
        if options.num_pages < longest:
            raise ValueError(
                f"num_pages is {options.num_pages}, expected at least {longest}: that is what the"
                f" longest prompt needs with {options.max_new_tokens} new tokens. Give more pages,"
                " or ask for fewer tokens."
            )
        return options.num_pages
    page_bytes: int = (
        2 * len(groups[0]) * options.page_size * find_num_kv_heads(config) * find_head_dim(config)
    ) * model.model.dtype.itemsize
    memory = _memory(model) // 2
    # The scheduler holds back a share of the pages for requests that it has begun.
    return max(longest, min(wanted + wanted // 4 + 1, memory // page_bytes))


def _memory(model: Model) -> int:
    """Bytes where the cache will lie: all of the machine's, or what a GPU has free."""
    device = model.model.device
    if device.type == "cuda":
        import torch

        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _check_positions(model: Model, inputs: list[list[int]], options: Options) -> None:
    limit = getattr(model.model.config.get_text_config(), "max_position_embeddings", None)
    longest = max(map(len, inputs))
    if limit is not None and longest + options.max_new_tokens > limit:
        raise ValueError(
            f"a prompt of {longest} tokens and max_new_tokens {options.max_new_tokens} are more"
            f" than the model's {limit} positions. Shorten the prompt, or ask for fewer tokens."
        )


def _check(name: str, value: object, ok: bool, expected: str) -> None:
    if not ok:
        raise ValueError(f"{name} is {value}, expected {expected}.")
