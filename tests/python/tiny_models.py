# SPDX-License-Identifier: Apache-2.0
"""Small random Transformers models that between them use every feature of attention."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

VOCABULARY = 101

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,  # scores far from 0, so that a wrong mask or scale shows
    "tie_word_embeddings": False,  # tied and random, a model repeats its last token
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}

_HYBRID: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}

_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama_head_dim_80": ("Llama", {"head_dim": 80}),
    "llama_head_dim_96": ("Llama", {"head_dim": 96, "num_key_value_heads": 4}),
    "llama_3_heads_a_group": (
        "Llama",
        {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3},
    ),
    "qwen3_qk_norm": ("Qwen3", {}),
    "mistral_window": ("Mistral", {"sliding_window": 13}),
    "gemma2_softcap_window_scale": (
        "Gemma2",
        {
            **_HYBRID,
            "sliding_window": 16,
            "query_pre_attn_scalar": 37,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 30.0,
        },
    ),
    "gpt_oss_sinks_window": (
        "GptOss",
        {**_HYBRID, "sliding_window": 11, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
}

NAMES = list(_CONFIGS)


def make(name: str, attn_implementation: str, **overrides: Any) -> PreTrainedModel:
    """A model of the table in float32, its weights the same at every call."""
    family, changes = _CONFIGS[name]
    config_class: type[PreTrainedConfig] = getattr(transformers, f"{family}Config")
    model_class: type[PreTrainedModel] = getattr(transformers, f"{family}ForCausalLM")
    config = config_class(**{**_COMMON, **changes, **overrides})
    torch.manual_seed(11)
    with torch.random.fork_rng():
        model = model_class._from_config(config, attn_implementation=attn_implementation)
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("sinks"):
                torch.nn.init.normal_(parameter)
            elif parameter_name.endswith("norm.weight"):
                torch.nn.init.normal_(parameter, mean=1.0, std=0.1)
    return model.float().eval()


def prompts(*lengths: int, seed: int = 3) -> list[list[int]]:
    """Random prompts without the padding token."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(1, VOCABULARY, (length,), generator=generator).tolist() for length in lengths
    ]


@contextmanager
def attention(model: PreTrainedModel, attn_implementation: str) -> Iterator[PreTrainedModel]:
    """The same model with another attention."""
    before = model.config._attn_implementation
    model.set_attn_implementation(attn_implementation)
    try:
        yield model
    finally:
        model.set_attn_implementation(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """Small models are fastest on one thread, many times so on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def save_folder(folder: Path, *, chat_template: bool = True) -> Path:
    """A small Llama as a local Hugging Face folder; its tokens are bytes and three special ones."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<pad>", "<s>", "</s>", *alphabet])}
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    if chat_template:
        tokenizer.chat_template = (
            "{% for m in messages %}<s>{{ m['content'] }}</s>{% endfor %}"
            "{% if add_generation_prompt %}<s>{% endif %}"
        )
    make("llama", "eager", vocab_size=len(vocabulary), eos_token_id=2).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
