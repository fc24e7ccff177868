# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Transformers 5.x: `attn_implementation="hpcattn"`.

Importing this module registers two attention functions:

- ``"hpcattn"``: any forward pass and `generate()`, over Transformers' own (dense) caches, which
  are read where they lie;
- ``"paged|hpcattn"``: continuous batching (`generate_batch`), over its paged cache.

Example:
    >>> import hpcattn.integrations.transformers
    >>> model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="paged|hpcattn")
    >>> model.generate_batch(inputs=[tokenizer("Hello").input_ids])

What Transformers asks for and hpcattn does not do (a custom 4D mask, dropout, attention weights as
an output) is refused with the reason; nothing is silently ignored.
"""

try:
    from transformers import AttentionInterface, AttentionMaskInterface
except ImportError as error:
    raise ImportError(
        "hpcattn.integrations.transformers needs Transformers 5.5 or newer"
        f" ({error}). pip install 'hpcattn[transformers]'"
    ) from error

from hpcattn.integrations.transformers.dense import dense_attention
from hpcattn.integrations.transformers.mask import make_mask
from hpcattn.integrations.transformers.paged import paged_cache_attention

__all__ = [
    "NAME",
    "PAGED_NAME",
    "dense_attention",
    "make_mask",
    "paged_cache_attention",
    "register",
]

NAME = "hpcattn"
PAGED_NAME = "paged|hpcattn"


def register() -> None:
    """Make both attention functions known to Transformers. Calling it again changes nothing."""
    AttentionInterface.register(NAME, dense_attention)
    AttentionMaskInterface.register(NAME, make_mask)
    # The paged one needs no mask: without a mask function of this name Transformers makes none.
    AttentionInterface.register(PAGED_NAME, paged_cache_attention)


register()
