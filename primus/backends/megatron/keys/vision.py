"""Rows of section 13.1: vision pretraining, another model family."""

from primus.backends.megatron.keys.row import inert, section

__all__ = ["ROWS"]

_VISION = "only vision models read it; this engine trains language models"

# A table: a row's identity on its first line, its meaning below.
# fmt: off
ROWS = section(
    "13.1",
    inert("vision_pretraining", "bool", _VISION, doc="Train an image model instead of a language model."),
    inert("vision_pretraining_type", "str", _VISION, choices=("classify", "inpaint", "dino"),
          doc="Objective of an image model."),
    inert("vision_backbone_type", "str", _VISION, choices=("vit", "mit", "swin"), doc="Architecture of an image model."),
    inert("swin_backbone_type", "str", _VISION, choices=("tiny", "base", "h3"), doc="Size of a Swin backbone."),
    inert("num_classes", "int", _VISION, doc="Classes of the image classifier."),
    inert("img_h", "int", _VISION, doc="Height of images in pixels."),
    inert("img_w", "int", _VISION, doc="Width of images in pixels."),
    inert("num_channels", "int", _VISION, doc="Colour channels of images."),
    inert("patch_dim", "int", _VISION, doc="Edge of an image patch in pixels."),
    inert("classes_fraction", "float", _VISION, doc="Share of the classes that is trained on."),
    inert("data_per_class_fraction", "float", _VISION, doc="Share of each class's images that is trained on."),
)
