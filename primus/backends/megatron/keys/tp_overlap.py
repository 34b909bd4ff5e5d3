"""Rows of section 5.3: hiding tensor-parallel communication behind matrix products. None of them changes a number."""

from primus.backends.megatron.keys.row import inert, live, section

__all__ = ["ROWS"]

_GATHERED = ("qkv.fprop", "fc1.fprop", "proj.dgrad", "fc2.dgrad")
_SCATTERED = ("proj.fprop", "fc2.fprop")
_DGRAD, _WGRAD = ("qkv.dgrad", "fc1.dgrad"), ("qkv.wgrad", "fc1.wgrad")


def _targets(*products: str) -> str:
    return ", ".join(f"model.tp_overlap.{product}" for product in products)


# A table: a row's identity on its first line, its meaning below.
# fmt: off
ROWS = section(
    "5.3",
    inert("async_tensor_model_parallel_allreduce", "bool", "obsolete upstream: that all-reduce always runs beside the product",
            doc="Without sequence parallelism, reduce the input gradient of a column-parallel layer "
                "while its weight gradient is computed."),
    live("tp_comm_overlap", "bool", _targets(*_GATHERED, *_SCATTERED, *_DGRAD, *_WGRAD),
         doc="Cut gathers and scatters of sequence parallelism into pieces that travel beside the matrix products. "
             "Needs `sequence_parallel`; excludes `deterministic_mode`."),
    live("tp_comm_overlap_cfg", "path|dict?", _targets(*_GATHERED, *_SCATTERED, *_DGRAD, *_WGRAD),
         doc="YAML or JSON file, or the map itself, that gives `method` and `num_splits` for named products "
             "(`qkv_fprop`, `proj_dgrad`, ...)."),
    live("tp_comm_overlap_ag", "bool", _targets(*_GATHERED),
         doc="Overlap the all-gather in front of a product: of a column-parallel layer's input, of a row-parallel layer's "
             "output gradient."),
    live("tp_comm_overlap_rs", "bool", _targets(*_SCATTERED),
         doc="Overlap the reduce-scatter behind a row-parallel product."),
    live("tp_comm_overlap_rs_dgrad", "bool", _targets(*_DGRAD, *_WGRAD),
         doc="Overlap the reduce-scatter of the input gradient with the product that makes it, in pieces; the bulk forms then "
             "do not apply."),
    live("tp_comm_split_ag", "bool", _targets(*_GATHERED),
         doc="Older name of `tp_comm_overlap_ag`: gathers go in pieces only if both are on."),
    live("tp_comm_split_rs", "bool", _targets(*_SCATTERED),
         doc="Older name of `tp_comm_overlap_rs`: scatters go in pieces only if both are on."),
    live("tp_comm_bulk_wgrad", "bool", _targets(*_WGRAD),
         doc="Reduce-scatter the whole input gradient while the weight gradient is computed; false: before it is computed."),
    live("tp_comm_bulk_dgrad", "bool", _targets(*_DGRAD),
         doc="All-gather the whole saved input while the input gradient is computed; false: before it is computed."),
    live("barrier_with_L1_time", "bool", "logger.barrier_before_timers",
         doc="A barrier in front of each level-1 timer makes phases comparable over ranks; it is not specific to "
                "tensor parallelism."),
    inert("tp_comm_bootstrap_backend", "str", "there are no user buffers to agree on; pieces travel through process groups",
          choices=("nccl", "gloo", "mpi"),
          doc="Library through which ranks agree on the user buffers of Transformer Engine's overlapped forms."),
)
