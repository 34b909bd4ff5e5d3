"""Memory on the meta device is followed as an allocator would: what is dropped is free, and what is resized is noticed."""

import torch

from primus.engine.rehearsal.live import Live, storage_bytes


def test_what_is_held_is_counted_once_and_what_is_dropped_is_free():
    with Live() as live:
        x = torch.empty(1000, device="meta")
        y = x.view(10, 100)[:5]
        assert live.now == 4000
        del x
        assert live.now == 4000
        del y
        assert live.now == 0
        assert live.peak == 4000


def test_a_graph_keeps_what_its_backward_needs_and_no_more():
    with Live() as live:
        w = torch.empty(100, 100, device="meta", requires_grad=True)
        held = live.hold()
        y = (torch.empty(7, 100, device="meta") @ w).exp().sum()
        # The product's other factor, the exponential and the sum.
        assert live.now - held == 4 * (700 + 700 + 1)
        y.backward()
        del y
        assert live.now - held == 4 * 100 * 100


def test_the_most_is_looked_for_anew():
    with Live() as live:
        torch.empty(100, device="meta")
        live.reset_peak()
        kept = torch.empty(10, device="meta")
        assert (live.peak, storage_bytes([kept, kept[3:]])) == (40, 40)


def test_held_memory_that_is_freed_and_given_back_is_noticed():
    with Live() as live:
        weights = torch.empty(100, device="meta")
        live.hold()
        weights.untyped_storage().resize_(0)
        live.refresh()
        assert live.now == 0
        weights.untyped_storage().resize_(400)
        live.refresh()
        assert live.now == 400
