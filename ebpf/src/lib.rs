//! Loads and attaches the kernel programs and drains what they saw.
