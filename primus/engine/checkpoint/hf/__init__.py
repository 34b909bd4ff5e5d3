"""Weights to and from folders as the transformers library writes them: `config.json` and safetensors.

- `names.py`: whose tensor is whose, one table a family
- `forms.py`: how several of their tensors are one of ours
- `source.py`: a folder of safetensors, read tensor by tensor
- `target.py`: such a folder, written tensor by tensor
- `describe.py`: `config.json` of a model of ours
- `exchange.py`: `import_hf` and `export_hf`
"""
