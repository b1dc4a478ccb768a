"""Processes that read samples into the cache before a worker asks for them."""
