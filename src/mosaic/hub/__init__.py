"""Pushes policies to the Hugging Face Hub and pulls them from it.

`hub_client` starts `hub_process`, the only process that imports `huggingface_hub`; `push` and `pull` run inside it.
"""
