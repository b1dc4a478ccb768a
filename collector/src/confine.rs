//! Takes from the node's collector, once it serves, whatever it can do without: root's user, capabilities, the right to
//! gain any, files, network and system calls. Somebody who takes it over then holds the kernel programs that are loaded,
//! may attach and detach these, and nothing else.
//!
//! Each layer is taken where the kernel has it, and reported. All of it is the process's: a `run` or `attach` of root, whose
//! threads start the job, is not confined.

mod files;
mod identity;
pub(crate) mod syscalls;

pub(crate) use identity::{Account, drop_all_capabilities, keep_capabilities};

use crate::node_socket::NodeSocket;
use anyhow::Result;
use stallscope_ebpf::Kernel;
use stallscope_wire::Layer;

/// All layers but the filter of system calls, under which no thread can be started any more.
///
/// To be called while the process has one thread, and before anybody is heard.
///
/// # Errors
/// The programs can't be attached, whatever is kept.
pub(crate) fn confine(
    account: Option<&Account>,
    kernel: &mut Kernel,
    socket: &NodeSocket,
) -> Result<Vec<Layer>> {
    // Reads what the kernel gave this process at its start, at the first use alone; that file is closed to it hereafter.
    let _ = (crate::host::own_cost(), crate::host::now_ns());
    let user = identity::become_user(account);
    let hidden = identity::processes_are_hidden();
    let capabilities = identity::keep_needed_capabilities(kernel, hidden)?;
    let mut layers = vec![user, capabilities, identity::no_new_privileges()];
    // Within Landlock no process outside may be looked at as a debugger would, which is what a /proc that hides them asks.
    layers.push(if hidden {
        not("Landlock", "/proc is mounted with hidepid, and Landlock would hide all other processes for good")
    } else {
        files::landlock(socket.is_to_be_removed_in())
    });
    Ok(layers)
}

/// Those in force, as one sentence.
pub(crate) fn sentence(layers: &[Layer]) -> String {
    let in_force = layers.iter().filter(|layer| layer.in_force);
    let parts: Vec<String> = in_force.map(|layer| format!("{}: {}", layer.name, layer.detail)).collect();
    format!("confined ({})", parts.join("; "))
}

/// Those that could not be had, with the reason of each.
pub(crate) fn lacking(layers: &[Layer]) -> impl Iterator<Item = String> {
    layers.iter().filter(|layer| !layer.in_force).map(|layer| format!("{}: {}", layer.name, layer.detail))
}

fn layer(name: &str, detail: String) -> Layer {
    Layer { name: name.into(), in_force: true, detail }
}

fn not(name: &str, why: impl ToString) -> Layer {
    Layer { name: name.into(), in_force: false, detail: why.to_string() }
}
