"""A placement trained for real: stages, pipelines and averages by PyTorch's processes."""
