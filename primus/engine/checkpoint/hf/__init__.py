"""Weights to and from folders as the transformers library writes them: `config.json` and safetensors.

- `names.py`: whose tensor is whose, one table a family
- `forms.py`: how several of their tensors are one of ours
- `stored.py`: which files hold which tensors
- `source.py`: a folder of safetensors, read tensor by tensor
- `target.py`: such a folder, written tensor by tensor
- `weights.py`: a folder under our names, in any rectangles; as a checkpoint that a run starts from
- `shapes.py`: what a whole model of ours holds
- `read.py`, `describe.py`: `config.json` as a model of ours, and back
- `likeness.py`: whether two models are the same function
- `fit.py`: whether a folder holds the model of a run
- `new_folder.py`: all or nothing
- `original.py`: the folder that weights once came from
- `exchange.py`: `import_hf` and `export_hf`
- `peft_export.py`, `peft_import.py`: `export_peft` and `import_peft`
- `peft_modules.py`: what the peft library adapts, by our linears
- `peft_folder.py`: a folder of the peft library
"""
