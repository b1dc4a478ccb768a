//! Versioned messages between the collector and its clients.
