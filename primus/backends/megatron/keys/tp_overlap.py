"""Rows of section 5.3: hiding tensor-parallel communication behind matrix products. None of them changes a number."""

from primus.backends.megatron.keys.row import inert, live, pending, section

__all__ = ["ROWS"]

_OVERLAP = "Overlap of tensor-parallel communication is"

# A table: a row's identity on its first line, its meaning below.
# fmt: off
ROWS = section(
    "5.3",
    inert("async_tensor_model_parallel_allreduce", "bool", "obsolete upstream: that all-reduce always runs beside the product",
            doc="Without sequence parallelism, reduce the input gradient of a column-parallel layer "
                "while its weight gradient is computed."),
    pending("tp_comm_overlap", "bool", _OVERLAP,
            doc="Cut gathers and scatters into chunks that run beside the matrix products. Needs `sequence_parallel`."),
    pending("tp_comm_overlap_cfg", "path?", _OVERLAP,
            doc="YAML file that gives method, splits and units for each named product."),
    pending("tp_comm_overlap_ag", "bool", _OVERLAP,
            doc="Overlap the all-gather in front of a column-parallel product."),
    pending("tp_comm_overlap_rs", "bool", _OVERLAP,
            doc="Overlap the reduce-scatter behind a row-parallel product."),
    pending("tp_comm_overlap_rs_dgrad", "bool", _OVERLAP,
            doc="Overlap the reduce-scatter of the input gradient with the product that makes it; the bulk forms then "
                "do not apply."),
    pending("tp_comm_split_ag", "bool", _OVERLAP,
            doc="Use the chunked form for the overlapped all-gather."),
    pending("tp_comm_split_rs", "bool", _OVERLAP,
            doc="Use the chunked form for the overlapped reduce-scatter."),
    pending("tp_comm_bulk_wgrad", "bool", _OVERLAP,
            doc="Reduce-scatter the whole input gradient while the weight gradient is computed."),
    pending("tp_comm_bulk_dgrad", "bool", _OVERLAP,
            doc="All-gather the whole saved input while the input gradient is computed."),
    live("barrier_with_L1_time", "bool", "logger.barrier_before_timers",
         doc="A barrier in front of each level-1 timer makes phases comparable over ranks; it is not specific to "
                "tensor parallelism."),
    pending("tp_comm_bootstrap_backend", "str", _OVERLAP, choices=("nccl", "gloo", "mpi"),
            doc="Library through which ranks agree on the buffers of the overlapped forms."),
)
