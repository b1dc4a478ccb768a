//! Recordings: one SQLite file a run.
