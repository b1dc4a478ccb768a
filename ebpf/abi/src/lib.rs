//! Fixed records that cross a process boundary: from the kernel programs ([`kernel`], [`files`]) and from the shim
//! inside a training process ([`lane`]).
//!
//! All times are `CLOCK_MONOTONIC` nanoseconds. All structs are `repr(C)` without hidden padding, so that a
//! reader never sees uninitialised bytes; `programs/abi.h` mirrors [`kernel`] and [`files`], and a test
//! compares them.
#![no_std]

pub mod files;
pub mod kernel;
pub mod lane;
