//! The shim inside the training process.
