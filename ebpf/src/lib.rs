//! Loads and attaches the kernel programs and drains what they saw.
//!
//! [`Kernel::load`] puts the programs into the kernel and attaches none. [`Kernel::watch`] follows a process and
//! all that it starts; the first one attaches, the last [`Kernel::unwatch`] detaches. [`Kernel::drain`] hands
//! over the records of [`stallscope_abi::kernel`], and [`Kernel::slot`] tells what a task is doing right now.
//! [`doctor::checks`] says beforehand what this machine allows.

pub mod doctor;
mod error;
mod filled;
mod kernel;
mod programs;
mod shares;
mod slots;
mod subordinates;
mod tables;
mod users;

pub use error::Error;
pub use kernel::{Kernel, Options};
pub use programs::{ProgramState, ProgramStatus};
pub use slots::{Identity, Still};
pub use subordinates::Subordinates;
pub use tables::Waits;
