"""The cache of a loader: which bytes of which samples are kept, and samples made of them."""
