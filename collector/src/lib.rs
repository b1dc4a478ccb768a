//! Takes evidence in, keeps the ledger, records and publishes it.
//!
//! [`run`] and [`attach`] are sessions with an embedded collector; [`serve`] is the node's privileged daemon,
//! which gives kernel evidence to the sessions of all users.

mod caller;
mod child;
mod doctor;
mod engine;
mod files;
mod host;
mod join;
mod kernel_client;
mod kernel_service;
mod metrics;
mod node;
mod probes;
mod runtime;
mod session;
mod shims;
mod signals;
mod sudo;
mod viewer;

pub use child::{LaunchError, python_package};
pub use doctor::{Check, doctor};
pub use kernel_service::serve;
pub use metrics::Metrics;
pub use runtime::{Card, KERNEL_SOCKET, RuntimeDir};
pub use session::{AttachOptions, KernelChoice, RunOptions, View, attach, run};
pub use sudo::open_files_as_caller_of_sudo;
pub use viewer::{ask, running_job};
