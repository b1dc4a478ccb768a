//! Fixed records that cross a process boundary: from the kernel programs ([`kernel`]) and from the shim
//! inside a training process ([`lane`]).
//!
//! All times are `CLOCK_MONOTONIC` nanoseconds. All structs are `repr(C)` without hidden padding, so that a
//! reader never sees uninitialised bytes; `programs/abi.h` mirrors [`kernel`] and a test compares the two.
#![no_std]

pub mod kernel;
pub mod lane;
