# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="paged|hpcattn": continuous batching, against one-by-one eager generation.

Tokens are equal; the log-probability of each is within 1e-5 of eager's (float32; probabilities of
small models over 101 tokens, so log-probabilities are of the size of 1 to 10).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching import PagedAttentionCache
from transformers.generation.continuous_batching.offloading_manager import OffloadingManager

import hpcattn
import tiny_models
from hpcattn.integrations.transformers import steps

LOG_PROBABILITY_BOUND = 1e-5
NEW_TOKENS = 14


@dataclass
class Expected:
    tokens: list[int]
    log_probabilities: list[float]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with tiny_models.one_thread():
        yield


@pytest.fixture(params=tiny_models.NAMES)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return tiny_models.make(request.param, "paged|hpcattn")


def one_by_one(model: PreTrainedModel, prompts: list[list[int]]) -> list[Expected]:
    """Each prompt alone, by generate() with eager attention."""
    answers = []
    with tiny_models.attention(model, "eager"):
        for prompt in prompts:
            out = model.generate(
                torch.tensor([prompt]),
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
                pad_token_id=0,
                return_dict_in_generate=True,
                output_logits=True,
            )
            tokens = out.sequences[0, len(prompt) :]
            logs = torch.stack(out.logits, dim=1)[0].log_softmax(dim=-1)
            answers.append(
                Expected(tokens.tolist(), logs.gather(1, tokens[:, None])[:, 0].tolist())
            )
    return answers


def batched(model: PreTrainedModel, prompts: list[list[int]], **batching: Any) -> list[Expected]:
    """All prompts by continuous batching."""
    config = {"block_size": 8, "num_blocks": 128, "max_batch_tokens": 128, **batching}
    out = model.generate_batch(
        prompts,
        generation_config=GenerationConfig(
            max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            **config, return_logprobs=True, use_cuda_graph=False
        ),
    )
    for answer in out.values():
        assert answer.error is None
    return [Expected(answer.generated_tokens, answer.logprobs) for answer in out.values()]


def assert_equal(got: list[Expected], expected: list[Expected]) -> None:
    assert [answer.tokens for answer in got] == [answer.tokens for answer in expected]
    for mine, theirs in zip(got, expected, strict=True):
        # A request that was preempted and begun anew reports the later tokens alone.
        assert mine.log_probabilities == pytest.approx(
            theirs.log_probabilities[-len(mine.log_probabilities) :],
            abs=LOG_PROBABILITY_BOUND,
            rel=0,
        )


def test_equals_one_by_one_generation(model: PreTrainedModel) -> None:
    prompts = tiny_models.prompts(5, 33, 1, 20, 8)
    hpcattn.reset_call_counts()
    got = batched(model, prompts)
    counts = hpcattn.call_counts()
    layers = model.config.num_hidden_layers
    # Each step stores once a layer; the first one is a prefill, which rings do without pages.
    assert counts["store_kv"] >= NEW_TOKENS * layers
    assert counts["store_kv"] % layers == 0
    assert counts["paged_attention"] + counts["packed_attention"] >= counts["store_kv"]
    assert counts["paged_attention"] >= (NEW_TOKENS - 1) * layers
    assert_equal(got, one_by_one(model, prompts))


def test_prompts_in_chunks_beside_decodes(model: PreTrainedModel) -> None:
    """Eleven tokens a step: prompts longer than that, and than the windows, come in pieces."""
    prompts = tiny_models.prompts(40, 3, 27, 13)
    assert_equal(batched(model, prompts, max_batch_tokens=11), one_by_one(model, prompts))


def test_preemption(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache too small for all requests: some lose their pages and are begun anew."""
    evicted = 0
    original = OffloadingManager.offload_requests

    def counted(self: OffloadingManager, *args: Any, **kwargs: Any) -> int:
        nonlocal evicted
        count = original(self, *args, **kwargs)
        evicted += count
        return count

    monkeypatch.setattr(OffloadingManager, "offload_requests", counted)
    prompts = tiny_models.prompts(5, 6, 4, 3)
    # A page for each request to begin with; they grow to two (windows) or three.
    groups = len(set(getattr(model.config, "layer_types", None) or ["one"]))
    got = batched(model, prompts, num_blocks=4 * groups, safety_margin=0.0)
    assert evicted > 0
    assert_equal(got, one_by_one(model, prompts))


@pytest.mark.parametrize("block_size", [16, 64, 256])
@pytest.mark.parametrize("name", ["llama", "mistral_window", "gpt_oss_sinks_window"])
def test_block_sizes(name: str, block_size: int) -> None:
    model = tiny_models.make(name, "paged|hpcattn")
    prompts = tiny_models.prompts(30, 17)
    assert_equal(batched(model, prompts, block_size=block_size), one_by_one(model, prompts))


def test_window_of_whole_pages() -> None:
    """A ring that fills its last page, and one of a single page."""
    for window in (8, 16):
        model = tiny_models.make("mistral_window", "paged|hpcattn", sliding_window=window)
        prompts = tiny_models.prompts(window - 1, window, window + 1, 3 * window)
        assert_equal(batched(model, prompts, max_batch_tokens=13), one_by_one(model, prompts))


def test_shared_prefixes() -> None:
    """Requests that begin alike share pages, which lie in both page tables."""
    model = tiny_models.make("llama", "paged|hpcattn")
    start, *ends = tiny_models.prompts(24, 5, 9, 3)
    prompts = [start + end for end in ends]
    got = batched(model, prompts, max_batch_tokens=34, allow_block_sharing=True)
    assert_equal(got, one_by_one(model, prompts))


@pytest.mark.parametrize("name", ["llama", "gpt_oss_sinks_window"])
def test_several_answers_to_a_prompt(name: str) -> None:
    """They begin as copies of its pages."""
    model = tiny_models.make(name, "paged|hpcattn")
    prompts = tiny_models.prompts(19, 4)
    generation = GenerationConfig(
        max_new_tokens=NEW_TOKENS,
        do_sample=True,  # greedy may not ask for several; the likeliest one is all that is left
        top_k=1,
        eos_token_id=-1,
        pad_token_id=0,
        num_return_sequences=3,
    )
    config = ContinuousBatchingConfig(block_size=8, num_blocks=128, max_batch_tokens=64)
    answers: dict[str, list[int]] = {}
    with model.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=config
    ) as manager:
        manager.add_requests(prompts, max_new_tokens=NEW_TOKENS)
        while len(answers) < 6:
            answer = manager.get_result(timeout=60)
            assert answer is not None
            assert answer.error is None
            answers[answer.request_id] = answer.generated_tokens
    for index, expected in enumerate(one_by_one(model, prompts)):
        ids = [request for request in answers if request.split("__")[0] == f"req_{index}"]
        assert [answers[request] for request in ids] == [expected.tokens] * 3


def test_nan_in_unused_pages_reaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    original = PagedAttentionCache.__init__

    def poisoned(self: PagedAttentionCache, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        for pool in (*self.key_cache, *self.value_cache):
            pool.fill_(float("nan"))

    monkeypatch.setattr(PagedAttentionCache, "__init__", poisoned)
    for name in ("llama", "gemma2_softcap_window_scale", "gpt_oss_sinks_window"):
        model = tiny_models.make(name, "paged|hpcattn")
        prompts = tiny_models.prompts(13, 29, 2)
        got = batched(model, prompts, max_batch_tokens=16)
        assert_equal(got, one_by_one(model, prompts))


def test_plain_name_is_made_paged() -> None:
    """A model loaded for generate() serves generate_batch() too, and is given back as it was."""
    model = tiny_models.make("llama", "hpcattn")
    prompts = tiny_models.prompts(9, 12)
    hpcattn.reset_call_counts()
    got = batched(model, prompts)
    assert hpcattn.call_counts()["paged_attention"] > 0
    assert model.config._attn_implementation == "hpcattn"
    assert_equal(got, one_by_one(model, prompts))


def test_pages_are_read_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the cache's own gathering update, nor a copy of its pool, is used."""

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("PagedAttentionCache.update gathers K and V")

    monkeypatch.setattr(PagedAttentionCache, "update", refused)
    pools: set[int] = set()
    original = hpcattn.paged_attention

    def watched(
        q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, **kwargs: Any
    ) -> Any:
        pools.update((k_cache.untyped_storage().data_ptr(), v_cache.untyped_storage().data_ptr()))
        assert k_cache.shape[:2] == (128 + 2, 8)
        return original(q, k_cache, v_cache, **kwargs)

    monkeypatch.setattr(hpcattn, "paged_attention", watched)
    model = tiny_models.make("gemma2_softcap_window_scale", "paged|hpcattn")
    batched(model, tiny_models.prompts(9, 22))
    # Four layers in two groups of two, which share the two layers' K and V pools.
    assert len(pools) == 4


def test_one_plan_a_step_for_all_layers_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    original = hpcattn.plan_attention

    def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
        nonlocal made
        made += 1
        return original(*args, **kwargs)

    monkeypatch.setattr(hpcattn, "plan_attention", counted)
    model = tiny_models.make("llama", "paged|hpcattn", num_hidden_layers=3)
    hpcattn.reset_call_counts()
    batched(model, tiny_models.prompts(9, 22))
    assert made * 3 == hpcattn.call_counts()["paged_attention"]


@dataclass
class FakeCache:
    """What steps.step_of reads of a PagedAttentionCache: one ring of 11 tokens in pages of 8."""

    block_size: int = 8
    write_trash_index: int = 1000

    def __post_init__(self) -> None:
        self.layer_index_to_group_indices = {0: (0, 0)}
        self.sliding_windows = {0: 11}
        self.group_cache_managers = [self]
        self.block_table = {"a": [7, 2], "b": [4]}

    __hash__ = object.__hash__


def test_ring_step_of_a_mixed_batch() -> None:
    """Request a decodes token 15 (place 4 of its ring), b prefills 3 tokens after 2 cached."""
    read_index = [7 * 8 + 5, 7 * 8 + 6, 7 * 8 + 7, 16, 17, 18, 56, 57, 58, 59, -1]
    read_index += [32, 33, -1, -1, -1]
    step = steps.step_of(
        FakeCache(),  # type: ignore[arg-type]
        0,
        {
            "cu_seq_lens_q": torch.tensor([0, 1, 4], dtype=torch.int32),
            "cu_seq_lens_k": torch.tensor([0, 11, 16], dtype=torch.int32),
            "write_index": [torch.tensor([60, 34, 35, 36])],
            "read_index": [torch.tensor(read_index)],
        },
    )
    assert isinstance(step, steps.RingStep)
    assert step.slots.tolist() == [60, 34, 35, 36]
    assert step.page_table.tolist() == [[7, 2]]
    assert step.kv_lens.tolist() == [11]
    assert step.cu_seqlens_q.tolist() == [0, 1]
    assert not step.decodes_only
    assert step.decode_rows is not None
    assert step.decode_rows.tolist() == [0]
    # The decode's row has its own token alone there; b has its cached two, then its new three.
    assert step.chunk_cu_seqlens_k.tolist() == [0, 1, 6]
    assert step.cached_slots is not None
    assert step.cached_slots.tolist() == [32, 33]
    assert step.cached_places is not None
    assert step.cached_places.tolist() == [1, 2]
    assert step.new_places is not None
    assert step.new_places.tolist() == [0, 3, 4, 5]


@pytest.mark.parametrize("inference", [False, True])
def test_a_refilled_batch_is_a_new_step(inference: bool) -> None:
    """Transformers writes each step's lengths into the same memory."""
    with torch.inference_mode(inference):
        storage = torch.tensor([0, 1, 2], dtype=torch.int32)
        cache = FakeCache()
        args = {
            "cu_seq_lens_q": storage,
            "cu_seq_lens_k": torch.tensor([0, 1, 2], dtype=torch.int32),
            "write_index": [torch.tensor([56, 32])],
            "read_index": [torch.tensor([], dtype=torch.int64)],
        }
        first = steps.step_of(cache, 0, args)  # type: ignore[arg-type]
        assert first.page_table.tolist() == [[7, 2], [4, -1]]
        if not inference:
            assert steps.step_of(cache, 0, args) is first  # type: ignore[arg-type]
        storage.copy_(torch.tensor([0, 1, 1]))
        args["cu_seq_lens_k"] = torch.tensor([0, 1, 1], dtype=torch.int32)
        args["write_index"] = [torch.tensor([16])]
        second = steps.step_of(cache, 0, args)  # type: ignore[arg-type]
        assert second.page_table.tolist() == [[7, 2]]
        assert second.slots.tolist() == [16]
