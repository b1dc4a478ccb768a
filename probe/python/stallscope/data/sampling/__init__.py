"""Which samples are drawn, and in which order, where the user chose a policy."""
