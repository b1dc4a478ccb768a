//! Takes evidence in, keeps the ledger, records and publishes it.
