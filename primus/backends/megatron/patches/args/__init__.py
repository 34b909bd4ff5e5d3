"""Megatron's cross-key derivations and rules, one subject a file.

- `order.py`: `DERIVATIONS` and `RULES`, all of them in the order in which they run
- `loop.py`: what a run does at all, skipped and profiled iterations
- `batch.py`: data parallelism, batch arithmetic, batch ramp-up
- `duration.py`: iterations or samples
- `schedule.py`: learning rate and weight decay
- `precision.py`: dtypes and loss scale
- `architecture.py`: depth, widths, heads, activation
- `attention.py`: windows, sinks, soft caps
- `mla.py`: latent attention
- `moe.py`: sparse layers, routers, experts, dispatchers
- `positions.py`: position schemes and sequence length
- `parallelism.py`: tensor and sequence parallelism, gradient buckets
- `fsdp.py`: sharded gradients and weights
- `tp_overlap.py`: tensor-parallel communication beside products
- `context.py`: context parallelism
- `groups.py`: settings of process groups by kind
- `stages.py`: which layers stand on which pipeline stage
- `pipeline.py`: model chunks, schedules, microbatches
- `zero_bubble.py`: the zero-bubble section
- `offload.py`: activations in host memory
- `recompute.py`: which activations are computed twice
- `data.py`: sources, splits, masks
- `tokenizer.py`: tokenizers and their files
- `checkpoint.py`: saving and loading
- `logging.py`: levels, TensorBoard, W&B, MLflow
- `rocm_arg_validation.py`: the accelerator vendor's rules
"""
