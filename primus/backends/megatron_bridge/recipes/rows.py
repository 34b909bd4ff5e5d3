"""The data of fine-tuning flavors: questions of SQuAD, a tenth of them set apart to validate with."""

from primus.backends.megatron_bridge.container import HFDatasetConfig, PackedSequenceSpecs
from primus.backends.megatron_bridge.recipes.arguments import Finetuning

__all__ = ["rows"]


def rows(args: Finetuning, *, seed: int) -> HFDatasetConfig:
    """Return the data set, packed into sequences of `seq_length` if asked for."""
    data = HFDatasetConfig(
        dataset_name="squad",
        seq_length=args.seq_length,
        seed=seed,
        dataloader_type="batch",
        num_workers=1,
        do_validation=True,
        do_test=False,
        val_proportion=0.1,
        rewrite=False,
    )
    if args.packed_sequence and args.seq_length is not None:
        data.packed_sequence_specs = PackedSequenceSpecs(packed_sequence_size=args.seq_length)
        data.dataset_kwargs = {"pad_to_max_length": True}
    return data
