//! Turns evidence into a ledger by critical path.
