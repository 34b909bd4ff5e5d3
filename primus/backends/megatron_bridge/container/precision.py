"""`MixedPrecisionConfig`: dtypes of weights, sums and messages."""

from dataclasses import dataclass

__all__ = ["MixedPrecisionConfig"]


@dataclass(kw_only=True)
class MixedPrecisionConfig:
    """What a name of `precision_config` stands for."""

    fp32: bool = False
    fp16: bool = False
    bf16: bool = False
    params_dtype: str | None = None
    pipeline_dtype: str | None = None
    autocast_dtype: str | None = None
    autocast_enabled: bool = False
    grad_reduce_in_fp32: bool = True
    fp8: str | None = None
    fp8_recipe: str = "tensorwise"
    first_last_layers_bf16: bool = False
    num_layers_at_start_in_bf16: int = 0
    num_layers_at_end_in_bf16: int = 0
    fp8_margin: int = 0
    fp8_amax_history_len: int = 1
    fp8_amax_compute_algo: str = "most_recent"
    fp8_wgrad: bool = True
    fp8_dot_product_attention: bool = False
    fp8_multi_head_attention: bool = False
    fp8_param: bool | None = None
    fp8_param_gather: bool = False
    fp4: str | None = None
    fp4_recipe: str = "nvfp4"
    fp4_param_gather: bool = False
    loss_scale: float | None = None
    initial_loss_scale: float | None = 2.0**32
    min_loss_scale: float = 1.0
    loss_scale_window: float = 1000
    hysteresis: int = 2
    reuse_grad_buf_for_mxfp8_param_ag: bool = False
