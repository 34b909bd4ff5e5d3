"""Rows of section 13.3: DINO, self-supervised vision."""

from primus.backends.megatron.keys.row import inert, section

__all__ = ["ROWS"]

_DINO = "only DINO, a vision objective, reads it; this engine trains language models"

# A table: a row's identity on its first line, its meaning below.
# fmt: off
ROWS = section(
    "13.3",
    inert("dino_local_img_size", "int", _DINO, doc="Edge of the small crops in pixels."),
    inert("dino_local_crops_number", "int", _DINO, doc="Small crops of each image, beside two large ones."),
    inert("dino_head_hidden_size", "int", _DINO, doc="Hidden width of DINO's projection head."),
    inert("dino_bottleneck_size", "int", _DINO, doc="Width of the head in front of its last layer."),
    inert("dino_freeze_last_layer", "float", _DINO, doc="Epochs during which the head's last layer is not trained."),
    inert("dino_norm_last_layer", "bool", _DINO, doc="Hold the norm of the last layer's weights at one."),
    inert("dino_warmup_teacher_temp", "float", _DINO, doc="Temperature of the teacher at the start."),
    inert("dino_teacher_temp", "float", _DINO, doc="Temperature of the teacher after its warm-up."),
    inert("dino_warmup_teacher_temp_epochs", "int", _DINO, doc="Epochs over which the teacher's temperature rises."),
)
