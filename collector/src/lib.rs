//! Takes evidence in, keeps the ledger, records and publishes it.
//!
//! [`run`] and [`attach`] are sessions with an embedded collector; [`serve`] is the node's privileged daemon,
//! which gives kernel evidence to the sessions of all users.

mod acting;
mod adviser;
mod asked;
mod audit;
mod cached;
mod caller;
mod cgroup;
mod child;
mod confine;
mod containers;
mod control;
mod cpu_share;
mod descriptors;
mod doctor;
mod engine;
mod exporting;
mod files;
mod foreign_text;
mod fresh;
mod gained;
mod helper;
mod holding;
mod host;
mod inherited;
mod join;
mod kernel_client;
mod kernel_service;
mod knobs;
mod lanes;
mod launching;
mod metrics;
mod node;
mod node_service;
mod node_socket;
mod notify;
mod options;
mod orphans;
mod outbox;
mod package;
mod policy;
mod private_mounts;
mod probes;
mod procfs;
mod profiles;
#[cfg(fuzzing)]
mod readers_bench;
mod registration;
mod reporting;
mod runtime;
#[cfg(any(test, fuzzing))]
mod service_bench;
mod session;
mod shims;
mod signals;
mod socket_remover;
mod sudo;

mod usage;
mod viewer;
mod wanted;
mod watch_audit;
mod watchdog;
mod witness;

pub use acting::{Acted, tune};
pub use adviser::advice;
pub use cached::{CacheSize, Cached, cached};
pub use child::LaunchError;
pub use doctor::{Check, doctor};
pub use exporting::{Asked, Endpoint, Written, export_as_configured, export_node};
pub use helper::begin_as_helper;
pub use host::{has_stack, node_memory_bytes};
pub use inherited::note_inherited_descriptors;
pub use kernel_service::{ServeOptions, Serving, serve};
pub use launching::{CollectEnd, CollectOptions, SessionEnd, SessionOptions, collect, session};
pub use metrics::{Metrics, Token, metrics_address};
pub use node_service::{
    NodeLog, NodeOptions, node_state, pause_node, resume_node, serve_node, start_node_service,
};
pub use options::{AttachOptions, KernelChoice, PrivateMount, RunOptions, TuneOptions};
pub use package::python_package;
pub use policy::{Export, Mode, Policy, Recordings, Unreadable};
pub use private_mounts::{READY, open_fuse};
pub use profiles::profiles;
#[cfg(fuzzing)]
pub use readers_bench::read_any;
pub use runtime::{Card, KERNEL_SOCKET, RuntimeDir};
#[cfg(fuzzing)]
pub use service_bench::ServiceBench;
pub use session::{View, attach, run};
pub use signals::take_file_limits_as_errors;
pub use sudo::{caller_uid, open_files_as_caller_of_sudo};
pub use viewer::{Connection, ask, running_job};
pub use watchdog::print_python_stack;
