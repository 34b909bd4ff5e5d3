"""Ranks, groups and what moves between them; owns no parameter. This door imports nothing: `layout` starts without torch.

- `layout.py`: degrees and world size to coordinates and groups, in integers
- `mesh.py`: this rank's groups
- `communicator.py`: with which library and settings a kind of group communicates
- `collectives.py`: collectives with their gradients
- `products.py`: matrix products with a gather or a scatter beside them
- `sharding.py`: the division a parameter declares, and rectangles of global tensors
- `data.py`: flat gradient buffers, buckets, shards of the distributed optimizer
- `slot.py`: where one parameter's gradient is gathered
- `deferred.py`: products that it gets later
- `context.py`: who holds which pieces of a sequence
- `random.py`: random streams
"""
