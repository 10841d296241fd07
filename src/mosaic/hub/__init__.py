"""Pushes policies to the Hugging Face Hub and pulls them from it."""
