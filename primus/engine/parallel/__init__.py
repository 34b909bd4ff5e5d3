"""Ranks, groups and what moves between them; owns no parameter. This door imports nothing: `layout` starts without torch.

- `layout.py`: degrees and world size to coordinates and groups, in integers
- `mesh.py`: this rank's groups
- `communicator.py`: with which library and settings a kind of group communicates
- `collectives.py`: collectives with their gradients
- `products.py`: matrix products with a gather or a scatter beside them
- `sharding.py`: the division a parameter declares, and rectangles of global tensors
- `data_parallel.py`: what is asked of those who keep weights and gradients
- `data.py`: they in flat memory: buckets, shards of the distributed optimizer, ZeRO 2 and 3
- `fsdp2.py`: they divided by torch's `fully_shard`
- `partial.py`: gradients of which tensor-parallel ranks hold parts
- `slot.py`: where one parameter's gradient is gathered
- `deferred.py`: products that it gets later
- `context.py`: who holds which pieces of a sequence
- `random.py`: random streams
"""
