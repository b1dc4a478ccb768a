"""Stallscope: shows where a training job waits for data and checkpoints.

Nothing is imported here that a process without torch would have to pay for.
"""

__version__ = "0.1.0"
