"""Random augmentation that depends on the sample, not on the process that makes it."""
