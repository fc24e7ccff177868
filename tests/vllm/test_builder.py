# SPDX-License-Identifier: Apache-2.0
"""What the builder makes of a batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.attention.backend import AttentionCGSupport

import hpcattn
from hpcattn.integrations.vllm.metadata import HpcattnMetadataBuilder
from layers import PAGE_SIZE, Batch, make_builder, make_impl


def speculative(tokens: int) -> dict[str, Any]:
    config = SimpleNamespace(num_speculative_tokens=tokens, parallel_drafting=False)
    return {"speculative_config": config}


def test_decodes_and_prefills_are_told_apart() -> None:
    metadata = make_builder(make_impl()).build(0, Batch([1, 1, 7, 30], [9, 20, 7, 50]).common())
    assert (metadata.num_decodes, metadata.num_decode_tokens) == (2, 2)
    assert (metadata.num_prefills, metadata.num_prefill_tokens) == (2, 37)
    assert (metadata.num_actual_tokens, metadata.max_query_len, metadata.max_seq_len) == (
        39,
        30,
        50,
    )


def test_buffers_that_go_on_past_the_requests_are_cut() -> None:
    batch = Batch([1, 7], [9, 20]).common()
    longer = batch.replace(
        query_start_loc=torch.cat([batch.query_start_loc, torch.full((3,), -7).int()]),
        seq_lens=torch.cat([batch.seq_lens, torch.full((3,), -7).int()]),
        block_table_tensor=torch.cat([batch.block_table_tensor] * 3),
    )
    metadata = make_builder(make_impl()).build(0, longer)
    assert metadata.query_start_loc.equal(batch.query_start_loc)
    assert metadata.seq_lens.equal(batch.seq_lens)
    assert metadata.block_table.equal(batch.block_table_tensor)


@pytest.mark.parametrize("tokens", [1, 3, 5])
def test_speculative_tokens_raise_the_threshold(tokens: int) -> None:
    builder = make_builder(make_impl(), **speculative(tokens))
    assert builder.reorder_batch_threshold == 1 + tokens
    # Ragged: a request may have fewer drafts than the most.
    metadata = builder.build(0, Batch([1 + tokens, 1, 20], [30, 40, 20]).common())
    assert (metadata.num_decodes, metadata.num_decode_tokens) == (2, 2 + tokens)


def test_layers_alike_share_a_plan_and_others_have_their_own() -> None:
    full, windowed = make_impl(), make_impl(sliding_window=9)
    batch = Batch([1, 12], [33, 12]).common()
    metadata = make_builder(full, windowed, make_impl()).build(0, batch)
    assert set(metadata.plans) == {full.group(PAGE_SIZE, True), windowed.group(PAGE_SIZE, True)}
    for group, plan in metadata.plans.items():
        summary = hpcattn.plan.plan_summary(plan)
        assert summary["num_tokens"] == 13
        assert summary["group"]["window"] == group.window


def test_fast_build_and_drafting_leave_the_plan_to_the_call() -> None:
    builder, batch = make_builder(make_impl()), Batch([1, 2], [9, 9]).common()
    assert builder.build(0, batch, fast_build=True).plans == {}
    assert builder.build_for_drafting(batch, draft_index=1).plans == {}
    assert len(builder.build_for_cudagraph_capture(batch).plans) == 1


def test_other_pages_keep_the_step_and_its_plan() -> None:
    builder, batch = make_builder(make_impl()), Batch([1, 2], [9, 9]).common()
    metadata = builder.build(0, batch)
    table, slots = metadata.block_table + 5, metadata.slot_mapping + 5 * PAGE_SIZE
    assert builder.supports_update_block_table
    updated = builder.update_block_table(metadata, table, slots)
    assert updated.block_table is table
    assert updated.slot_mapping is slots
    assert updated.plans is metadata.plans
    assert metadata.block_table is not table


def test_draft_metadata_is_planned_anew_in_place() -> None:
    builder = make_builder(make_impl())
    metadata = builder.build(0, Batch([1, 1], [9, 40]).common())
    ((group, plan),) = metadata.plans.items()
    before = hpcattn.plan.plan_summary(plan)
    metadata.seq_lens += 1
    builder.update_draft_decode_metadata(metadata)
    assert metadata.plans[group] is plan
    fresh = hpcattn.plan_attention(group, metadata.query_start_loc, metadata.seq_lens)
    assert hpcattn.plan.plan_summary(plan) == hpcattn.plan.plan_summary(fresh) != before


def test_any_batch_may_be_captured() -> None:
    builder = make_builder(make_impl())
    support = HpcattnMetadataBuilder.get_cudagraph_support(builder.vllm_config, None)
    assert support is AttentionCGSupport.ALWAYS


def test_a_cascade_is_refused_with_its_reason() -> None:
    builder = make_builder(make_impl())
    assert not builder.use_cascade_attention(common_prefix_len=512)
    with pytest.raises(NotImplementedError, match="common_prefix_len is 32, expected 0: a cascade"):
        builder.build(32, Batch([1], [40]).common())


def test_a_causal_flag_for_each_request_is_refused() -> None:
    batch = Batch([1, 1], [9, 9]).common(causal=torch.tensor([1, 0], dtype=torch.int32))
    with pytest.raises(NotImplementedError, match="expected one bool for all"):
        make_builder(make_impl()).build(0, batch)


def test_a_cache_that_is_not_read_is_refused_while_the_engine_starts() -> None:
    with pytest.raises(ValueError, match="block_size 12 not supported, expected a multiple of 8"):
        make_builder(make_impl(), block_size=12)


def test_batch_invariance_fixes_the_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm.envs.VLLM_BATCH_INVARIANT", True)
    batch = Batch([1, 1], [900, 20])
    metadata = make_builder(make_impl()).build(0, batch.common())
    assert metadata.fixed_split > 0
    (plan,) = metadata.plans.values()
    assert hpcattn.plan.plan_summary(plan)["num_requests"] == 2
