# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="hpcattn": generate() and plain forward passes, against Transformers' eager.

Bound on logits in float32: 5e-6 of the largest logit, which is 42 times float32's epsilon; eager
itself is about 10 epsilon away from the same model in float64.
"""

from collections.abc import Iterator

import pytest
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

import hpcattn
import tiny_models
from hpcattn.integrations.transformers import dense

LOGITS_BOUND = 5e-6
NEW_TOKENS = 12


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with tiny_models.one_thread():
        yield


@pytest.fixture(params=tiny_models.NAMES)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return tiny_models.make(request.param, "eager")


def generate(
    model: PreTrainedModel, inputs: Tensor, mask: Tensor | None = None, **options: object
) -> tuple[list[list[int]], Tensor]:
    """New tokens of each row, and their logits [row, token, vocabulary]."""
    out = model.generate(
        inputs,
        attention_mask=torch.ones_like(inputs) if mask is None else mask,
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
        **options,
    )
    return out.sequences[:, inputs.shape[1] :].tolist(), torch.stack(out.logits, dim=1)


@torch.no_grad()
def logits(model: PreTrainedModel, inputs: Tensor, **arguments: object) -> Tensor:
    return model(inputs, **arguments).logits


def assert_logits_close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(
        got, expected, rtol=0.0, atol=LOGITS_BOUND * expected.abs().max().item()
    )


def left_padded(prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, prompts))
    inputs = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    return inputs, mask


def test_generate_equals_eager(model: PreTrainedModel) -> None:
    for prompt in tiny_models.prompts(3, 29):
        inputs = torch.tensor([prompt])
        expected_tokens, expected = generate(model, inputs)
        hpcattn.reset_call_counts()
        with tiny_models.attention(model, "hpcattn"):
            tokens, got = generate(model, inputs)
        assert tokens == expected_tokens
        assert_logits_close(got, expected)
        layers = model.config.num_hidden_layers
        assert hpcattn.call_counts()["packed_attention"] == NEW_TOKENS * layers
        assert len(set(tokens[0])) > 1  # one token for ever would prove little


def test_left_padded_batch_equals_eager(model: PreTrainedModel) -> None:
    inputs, mask = left_padded(tiny_models.prompts(5, 31, 14))
    expected_tokens, expected = generate(model, inputs, mask)
    with tiny_models.attention(model, "hpcattn"):
        tokens, got = generate(model, inputs, mask)
    assert tokens == expected_tokens
    assert_logits_close(got, expected)


def test_static_cache_equals_eager(model: PreTrainedModel) -> None:
    inputs, mask = left_padded(tiny_models.prompts(21, 9))
    expected_tokens, expected = generate(model, inputs, mask)
    with tiny_models.attention(model, "hpcattn"):
        tokens, got = generate(model, inputs, mask, cache_implementation="static")
    assert tokens == expected_tokens
    assert_logits_close(got, expected)


def test_right_padded_forward_equals_eager(model: PreTrainedModel) -> None:
    prompts = tiny_models.prompts(19, 7, 30)
    inputs = torch.tensor([p + [0] * (30 - len(p)) for p in prompts])
    mask = torch.tensor([[1] * len(p) + [0] * (30 - len(p)) for p in prompts])
    expected = logits(model, inputs, attention_mask=mask)
    with tiny_models.attention(model, "hpcattn"):
        got = logits(model, inputs, attention_mask=mask)
    exists = mask.bool()
    assert_logits_close(got[exists], expected[exists])


def test_chunked_prefill_and_several_new_tokens_equal_eager(model: PreTrainedModel) -> None:
    """A prompt in chunks of several tokens, as prefix caches and speculation give them."""
    inputs = torch.tensor(tiny_models.prompts(40))
    expected = logits(model, inputs)
    with tiny_models.attention(model, "hpcattn"), torch.no_grad():
        cache = transformers.DynamicCache(config=model.config)
        chunks = [model(c, past_key_values=cache).logits for c in inputs.split(9, dim=1)]
    assert_logits_close(torch.cat(chunks, dim=1), expected)


def test_packed_sequences_equal_eager(model: PreTrainedModel) -> None:
    """Several sequences in one row, told apart by position_ids alone."""
    prompts = tiny_models.prompts(6, 17, 1, 11)
    inputs = torch.tensor([[token for prompt in prompts for token in prompt]])
    positions = torch.cat([torch.arange(len(p)) for p in prompts])[None]
    expected = logits(model, inputs, position_ids=positions, use_cache=False)
    with tiny_models.attention(model, "hpcattn"):
        got = logits(model, inputs, position_ids=positions, use_cache=False)
    assert_logits_close(got, expected)


def test_cu_seq_lens_tell_packed_sequences_apart() -> None:
    model = tiny_models.make("llama", "eager")
    prompts = tiny_models.prompts(6, 17, 11)
    inputs = torch.tensor([[token for prompt in prompts for token in prompt]])
    positions = torch.cat([torch.arange(len(p)) for p in prompts])[None]
    expected = logits(model, inputs, position_ids=positions, use_cache=False)
    cu_seq_lens = torch.tensor([0, 6, 23, 34], dtype=torch.int32)
    with tiny_models.attention(model, "hpcattn"):
        got = logits(
            model,
            inputs,
            position_ids=positions,
            use_cache=False,
            cu_seq_lens_q=cu_seq_lens,
            cu_seq_lens_k=cu_seq_lens,
        )
    assert_logits_close(got, expected)


def test_beam_search_equals_eager() -> None:
    model = tiny_models.make("llama_3_heads_a_group", "eager")
    inputs, mask = left_padded(tiny_models.prompts(8, 13))
    expected = model.generate(inputs, attention_mask=mask, max_new_tokens=8, num_beams=3)
    with tiny_models.attention(model, "hpcattn"):
        got = model.generate(inputs, attention_mask=mask, max_new_tokens=8, num_beams=3)
    assert got.tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["llama", "gemma2_softcap_window_scale", "gpt_oss_sinks_window"])
def test_16_bit_is_as_near_to_float32_as_eager(name: str, dtype: torch.dtype) -> None:
    inputs = torch.tensor(tiny_models.prompts(30))
    exact = logits(tiny_models.make(name, "eager"), inputs)
    model = tiny_models.make(name, "eager").to(dtype)
    eager_error = (logits(model, inputs).float() - exact).abs().max().item()
    with tiny_models.attention(model, "hpcattn"):
        error = (logits(model, inputs).float() - exact).abs().max().item()
    # The same roundings in another order: twice the worst of eager's leaves room for chance.
    assert error <= 2 * eager_error


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("mistral_window", {"sliding_window": None}),
        ("gemma2_softcap_window_scale", {"sliding_window": 999}),
        ("gemma2_softcap_window_scale", {"attn_logit_softcapping": None}),
        ("gemma2_softcap_window_scale", {"query_pre_attn_scalar": 64}),
        ("gpt_oss_sinks_window", {"sliding_window": 999}),
    ],
)
def test_each_feature_shows_in_the_logits(name: str, change: dict[str, object]) -> None:
    """Were it ignored, the comparisons above would fail."""
    inputs = torch.tensor(tiny_models.prompts(30))
    with_it = logits(tiny_models.make(name, "hpcattn"), inputs)
    without_it = logits(tiny_models.make(name, "hpcattn", **change), inputs)
    difference = (with_it - without_it).abs().max().item()
    assert difference > 1000 * LOGITS_BOUND * with_it.abs().max().item()


def encoder(attn_implementation: str) -> PreTrainedModel:
    config = transformers.ModernBertConfig(
        vocab_size=tiny_models.VOCABULARY,
        hidden_size=128,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=2,
        global_attn_every_n_layers=2,
        local_attention=12,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
        cls_token_id=None,
        sep_token_id=None,
        initializer_range=0.15,
    )
    torch.manual_seed(5)
    return transformers.ModernBertModel._from_config(
        config, attn_implementation=attn_implementation
    ).eval()


@torch.no_grad()
def test_bidirectional_encoder_with_windows_and_padding_equals_eager() -> None:
    prompts = tiny_models.prompts(40, 23)
    inputs = torch.tensor([p + [0] * (40 - len(p)) for p in prompts])
    mask = torch.tensor([[1] * len(p) + [0] * (40 - len(p)) for p in prompts])
    expected = encoder("eager")(inputs, attention_mask=mask).last_hidden_state
    hpcattn.reset_call_counts()
    got = encoder("hpcattn")(inputs, attention_mask=mask).last_hidden_state
    assert hpcattn.call_counts()["packed_attention"] == 3
    assert_logits_close(got[mask.bool()], expected[mask.bool()])


def encoder_decoder(attn_implementation: str) -> PreTrainedModel:
    config = transformers.BartConfig(
        vocab_size=tiny_models.VOCABULARY,
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=64,
        init_std=0.15,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
    )
    torch.manual_seed(5)
    return transformers.BartForConditionalGeneration._from_config(
        config, attn_implementation=attn_implementation
    ).eval()


def test_cross_attention_equals_eager() -> None:
    prompts = tiny_models.prompts(25, 11)
    inputs = torch.tensor([p + [0] * (25 - len(p)) for p in prompts])
    mask = torch.tensor([[1] * len(p) + [0] * (25 - len(p)) for p in prompts])
    options = {"attention_mask": mask, "max_new_tokens": 10, "do_sample": False, "num_beams": 1}
    expected = encoder_decoder("eager").generate(inputs, **options)
    hpcattn.reset_call_counts()
    got = encoder_decoder("hpcattn").generate(inputs, **options)
    assert hpcattn.call_counts()["packed_attention"] > 2 * 2 * 2
    assert got.tolist() == expected.tolist()


def test_compiled_model_equals_eager() -> None:
    """torch.compile breaks its graph at hpcattn's functions, and is right around them."""
    model = tiny_models.make("gemma2_softcap_window_scale", "eager")
    inputs, mask = left_padded(tiny_models.prompts(9, 20))
    expected = logits(model, inputs, attention_mask=mask)
    with tiny_models.attention(model, "hpcattn"):
        compiled = torch.compile(model, backend="eager")
        hpcattn.reset_call_counts()
        got = logits(compiled, inputs, attention_mask=mask)
    assert hpcattn.call_counts()["packed_attention"] == model.config.num_hidden_layers
    assert_logits_close(got[mask.bool()], expected[mask.bool()])


class TestTokenViews:
    """K and V are read where they lie, whatever the cache's memory order."""

    @staticmethod
    def assert_view(x: Tensor) -> None:
        batch, heads, tokens, head_dim = x.shape
        k, v, row_tokens = dense._token_views(x, x)
        for view in (k, v):
            assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
            assert view.shape[1:] == (heads, head_dim)
        for row in range(batch):
            rows = k[row * row_tokens : row * row_tokens + tokens]
            assert torch.equal(rows, x[row].transpose(0, 1))

    def test_contiguous(self) -> None:
        self.assert_view(torch.randn(3, 2, 5, 8))

    def test_heads_inside_tokens(self) -> None:
        self.assert_view(torch.randn(3, 5, 2, 8).transpose(1, 2))

    def test_slice_of_a_longer_cache(self) -> None:
        self.assert_view(torch.randn(3, 2, 16, 8)[:, :, 4:9])

    def test_heads_of_a_packed_qkv(self) -> None:
        self.assert_view(torch.randn(3, 5, 6, 8)[:, :, 2:4].transpose(1, 2))

    def test_one_row(self) -> None:
        self.assert_view(torch.randn(4, 2, 5, 8)[2:3])

    def test_one_token_a_row(self) -> None:
        self.assert_view(torch.randn(4, 2, 1, 8))

    @pytest.mark.parametrize(
        "x",
        [
            torch.randn(1, 2, 5, 8).expand(3, 2, 5, 8),
            torch.randn(3, 2, 8, 5).transpose(2, 3),
            torch.randn(3 * 83).as_strided((3, 2, 5, 8), (83, 40, 8, 1)),
        ],
        ids=["rows_share_memory", "head_dim_strided", "rows_at_odd_distance"],
    )
    def test_other_orders_are_copied(self, x: Tensor) -> None:
        k, _, row_tokens = dense._token_views(x, x)
        for row in range(3):
            rows = k[row * row_tokens : row * row_tokens + 5]
            assert torch.equal(rows, x[row].transpose(0, 1))
