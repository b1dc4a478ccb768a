"""What tells one data set from another: digests of all that `fetch` and `decode` can see."""
