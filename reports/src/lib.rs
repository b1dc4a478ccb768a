//! Reports of a recording or a running job.
