# SPDX-License-Identifier: Apache-2.0
"""What Transformers may ask for and hpcattn refuses, each with its reason."""

import re
from typing import Any, ClassVar

import pytest
import torch
import transformers
from torch import nn
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

import hpcattn
import tiny_models
from hpcattn.integrations.transformers import dense_attention, paged_cache_attention

INPUTS = torch.tensor([[5, 6, 7, 8, 9]])


class Layer(nn.Module):
    """What an attention function reads of a layer."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.layer_idx = 3
        self.is_causal = True
        for name, value in attributes.items():
            setattr(self, name, value)


def qkv(heads: int = 4, kv_heads: int = 2, head_dim: int = 64, v_head_dim: int = 64) -> list[Any]:
    return [
        torch.randn(1, heads, 5, head_dim),
        torch.randn(1, kv_heads, 5, head_dim),
        torch.randn(1, kv_heads, 5, v_head_dim),
        None,
    ]


def refused(kind: type[Exception], text: str) -> Any:
    return pytest.raises(kind, match=re.escape(text))


@pytest.mark.parametrize("attention", [dense_attention, paged_cache_attention])
class TestBothFunctions:
    def test_dropout(self, attention: Any) -> None:
        with refused(NotImplementedError, "attention dropout of 0.1, expected 0"):
            attention(Layer(), *qkv(), dropout=0.1)

    def test_output_attentions(self, attention: Any) -> None:
        with refused(NotImplementedError, 'Use attn_implementation="eager" to see them.'):
            attention(Layer(), *qkv(), output_attentions=True)

    @pytest.mark.parametrize("name", ["position_bias", "head_mask", "alibi", "block_indices"])
    def test_what_changes_scores(self, attention: Any, name: str) -> None:
        with refused(NotImplementedError, f"Layer of layer 3 passes {name}"):
            attention(Layer(), *qkv(), **{name: torch.zeros(1)})

    def test_sinks_that_are_not_passed_on(self, attention: Any) -> None:
        with refused(NotImplementedError, "does not pass them on as s_aux"):
            attention(Layer(sinks=torch.zeros(4)), *qkv())

    def test_values_of_another_head_dim(self, attention: Any) -> None:
        with refused(NotImplementedError, "values of head_dim 32 and keys of head_dim 64"):
            attention(Layer(), *qkv(v_head_dim=32))

    def test_heads_that_do_not_divide(self, attention: Any) -> None:
        with refused(ValueError, "has 4 query heads and 3 KV heads"):
            attention(Layer(), *qkv(kv_heads=3))


def test_dropout_of_a_model_in_training() -> None:
    model = tiny_models.make("llama", "hpcattn", attention_dropout=0.2).train()
    with refused(NotImplementedError, "Call model.eval()"), torch.no_grad():
        model(INPUTS)


def test_output_attentions_of_a_model() -> None:
    model = tiny_models.make("llama", "hpcattn")
    with refused(NotImplementedError, "output_attentions"), torch.no_grad():
        model(INPUTS, output_attentions=True)


def test_gradients() -> None:
    model = tiny_models.make("llama", "hpcattn")
    with pytest.raises((NotImplementedError, RuntimeError), match=r"no_grad"), torch.enable_grad():
        model(INPUTS)


def test_custom_4d_mask() -> None:
    model = tiny_models.make("llama", "hpcattn")
    mask = torch.zeros(1, 1, 5, 5)
    with refused(NotImplementedError, "attention_mask of shape [1, 1, 5, 5]"), torch.no_grad():
        model(INPUTS, attention_mask=mask)


def test_padding_between_tokens() -> None:
    model = tiny_models.make("llama", "hpcattn")
    mask = torch.tensor([[1, 1, 0, 1, 1]])
    with refused(NotImplementedError, "padding between the tokens of batch row 0"), torch.no_grad():
        model(INPUTS, attention_mask=mask)


def test_masks_that_are_no_window() -> None:
    """Llama 4 attends in chunks, which a window is not."""
    model = transformers.Llama4ForCausalLM._from_config(
        transformers.Llama4TextConfig(
            vocab_size=tiny_models.VOCABULARY,
            hidden_size=64,
            intermediate_size=32,
            intermediate_size_mlp=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=64,
            num_local_experts=1,
            attention_chunk_size=4,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=None,
        ),
        attn_implementation="hpcattn",
    ).eval()
    with refused(NotImplementedError, "mask is made by chunked_overlay"), torch.no_grad():
        model(INPUTS)


def test_mask_functions_of_the_caller() -> None:
    def odd_tokens(batch_idx: Any, head_idx: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kv_idx % 2 == 1

    model = tiny_models.make("llama", "hpcattn")
    with refused(NotImplementedError, "odd_tokens"):
        transformers.masking_utils.create_causal_mask(
            config=model.config,
            inputs_embeds=torch.zeros(1, 5, 64),
            attention_mask=None,
            past_key_values=None,
            and_mask_function=odd_tokens,
        )


def test_packed_sequences_in_several_rows() -> None:
    cu_seq_lens = torch.tensor([0, 2, 5], dtype=torch.int32)
    query, key, value, _ = (None if x is None else x.expand(2, -1, -1, -1) for x in qkv())
    with refused(ValueError, "cu_seq_lens_q with a batch of 2, expected 1"):
        dense_attention(
            Layer(),
            query,
            key,
            value,
            None,
            cu_seq_lens_q=cu_seq_lens,
            cu_seq_lens_k=cu_seq_lens,
        )


class TestPaged:
    def test_plain_forward_pass(self) -> None:
        model = tiny_models.make("llama", "paged|hpcattn")
        with refused(ValueError, "use attn_implementation='hpcattn' for generate()"):
            model(INPUTS)

    def test_block_size(self) -> None:
        model = tiny_models.make("llama", "paged|hpcattn")
        out = model.generate_batch(
            [[5, 6, 7]],
            generation_config=GenerationConfig(max_new_tokens=2, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=ContinuousBatchingConfig(
                block_size=12, num_blocks=8, max_batch_tokens=16
            ),
        )
        assert [answer.error for answer in out.values()] == [
            "hpcattn: the paged cache has blocks of 12 tokens, expected a multiple of 8. Pass"
            " ContinuousBatchingConfig(block_size=16)."
        ]

    @pytest.mark.parametrize(
        ("arguments", "kind", "text"),
        [
            ({"is_causal": False}, NotImplementedError, "that is not causal"),
            ({"block_table": torch.zeros(1, 1)}, NotImplementedError, "got a block_table"),
            ({"sliding_window": 4}, ValueError, "a window of 4 tokens, but its cache keeps all"),
        ],
    )
    def test_outside_the_contract(
        self, arguments: dict[str, Any], kind: type[Exception], text: str
    ) -> None:
        class Cache:
            block_size = 16
            sliding_windows: ClassVar = {3: 1}

        with refused(kind, text):
            paged_cache_attention(Layer(), *qkv(), cache=Cache(), **arguments)  # type: ignore[arg-type]

    @pytest.mark.parametrize("version", ["5.15.1", "5.18.0", "6.0.0.dev0"])
    def test_other_versions_of_transformers(
        self, version: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transformers, "__version__", version)
        with refused(NotImplementedError, f"needs transformers 5.16 or 5.17, got {version}"):
            paged_cache_attention(Layer(), *qkv(), cache=object())  # type: ignore[arg-type]

    def test_mask(self) -> None:
        query, key, value, _ = qkv()
        with refused(NotImplementedError, "with a paged cache, expected None"):
            paged_cache_attention(
                Layer(),
                query,
                key,
                value,
                torch.ones(1, 5),
                cache=object(),  # type: ignore[arg-type]
            )


def test_refusals_reach_no_operator() -> None:
    hpcattn.reset_call_counts()
    with pytest.raises(NotImplementedError):
        dense_attention(Layer(), *qkv(), dropout=0.5)
    assert not any(hpcattn.call_counts().values())
