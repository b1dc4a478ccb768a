//! Shared-memory lanes between a training process and the collector.
