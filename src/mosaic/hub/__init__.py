"""Policies to and from the Hugging Face Hub.

`huggingface_hub` is imported by `transfer` alone, in a process of its own that can be given up on; everything else here
is plain files. Start with `courier`.
"""
