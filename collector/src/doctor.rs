//! What works on this machine, and how to get the rest.

use crate::confine;
use crate::kernel_client;
use crate::package::python_package;
use crate::runtime::{RuntimeDir, kernel_socket};
use crate::sudo::Caller;
use stallscope_ebpf::doctor::PID_NAMESPACE;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

/// More than a cold Python takes from a slow disk.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);

/// One thing that some part of the measurement needs.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Check {
    pub name: String,
    pub ok: bool,
    /// Jobs are measured in full only where it is all right; else it is for information.
    pub needed: bool,
    /// What was found.
    pub detail: String,
    /// What to do about it; empty where nothing has to be done.
    pub remedy: String,
}

/// Looks at everything that `run`, `attach` and `collect` need here. Only looks.
pub fn doctor() -> Vec<Check> {
    let node = kernel_socket();
    let served = kernel_client::is_served(&node);
    // A job may well have a Python of its own.
    let look = |name, needed, look: fn() -> Check| Check { needed, ..in_time(name, ANSWERS_WITHIN, look) };
    let mut checks =
        vec![look("runtime folder", true, runtime), look("shim", true, shim), look("PyTorch", false, torch)];
    checks.push(kernel_evidence(&node, served));
    checks.extend(served.then(|| confinement(&node)));
    checks.extend(stallscope_ebpf::doctor::checks().into_iter().map(|check| {
        // A served session loads no programs. But processes must have the same numbers on both sides.
        let needed = !served || check.name == PID_NAMESPACE;
        Check {
            name: check.name.to_string(),
            ok: check.ok,
            needed,
            detail: check.detail,
            remedy: if needed { check.how_to_get.to_string() } else { String::new() },
        }
    }));
    checks
}

/// What `look` finds, if it comes back: it asks file systems and programs, which the environment names, and one of them may not answer.
fn in_time(name: &str, within: Duration, look: impl FnOnce() -> Check + Send + 'static) -> Check {
    let (send, found) = mpsc::channel();
    // It is left behind where it waits, and ends with this process. Files are opened in it as the same user as here.
    let _ = std::thread::Builder::new().spawn(move || send.send(look()));
    found.recv_timeout(within).unwrap_or_else(|_| {
        let missing = format!("it does not answer within {} s", within.as_secs());
        check(name, Err(missing), "see whether each folder in PATH, PYTHONPATH and the like can be listed")
    })
}

fn check(name: &str, found: Result<String, String>, remedy: &str) -> Check {
    let ok = found.is_ok();
    Check {
        name: name.into(),
        ok,
        needed: true,
        detail: found.unwrap_or_else(|missing| missing),
        remedy: if ok { String::new() } else { remedy.into() },
    }
}

fn runtime() -> Check {
    let found = RuntimeDir::of_this_user().map(|dir| dir.path().display().to_string());
    check(
        "runtime folder",
        found.map_err(|error| format!("{error:#}")),
        "set STALLSCOPE_RUNTIME_DIR to a folder of yours",
    )
}

fn shim() -> Check {
    let found = python_package().map(|dir| dir.display().to_string());
    check(
        "shim",
        found.map_err(|error| format!("{error:#}")),
        "install the stallscope wheel with pip, which brings binary and shim together",
    )
}

fn torch() -> Check {
    let question = "import importlib.metadata as m, sys; print(m.version('torch'), 'with Python', sys.version.split()[0])";
    // `-c` imports from the current folder first, which may be anybody's; and with sudo the PATH may be the caller's.
    let mut python = Command::new("python3");
    match Caller::find() {
        Some(caller) => caller.run(&mut python),
        // A root shell that was got otherwise may have kept somebody's PYTHONPATH.
        None if rustix::process::geteuid().is_root() => drop(python.arg("-I")),
        None => {}
    }
    python.args(["-c", question]).current_dir("/");
    let found = match python.output() {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
        }
        Ok(_) => Err("python3 has no torch".to_string()),
        Err(_) => Err("there is no python3 on the PATH".to_string()),
    };
    check("PyTorch", found, "activate the environment that your jobs run in")
}

fn kernel_evidence(node: &Path, served: bool) -> Check {
    let found = if served {
        Ok(format!("the node's collector serves {}", node.display()))
    } else if rustix::process::geteuid().is_root() {
        Ok("you are root: `run` and `attach` bring their own".to_string())
    } else if stallscope_ebpf::doctor::may_load_programs() {
        Ok("you may load kernel programs: `run` and `attach` bring their own".to_string())
    } else {
        Err("no privileged collector runs here".to_string())
    };
    check("kernel evidence", found, "start `sudo stallscope collect` once per node, or use `run --kernel`")
}

/// What the node's collector may still do. For information: it serves as well with more.
fn confinement(node: &Path) -> Check {
    let remedy = "start it as contrib/systemd has it, or see docs/security.md for what each layer takes";
    let found = kernel_client::confinement(node).map_err(|error| format!("{error:#}")).and_then(|layers| {
        let lacking: Vec<String> = confine::lacking(&layers).collect();
        let in_force = confine::sentence(&layers);
        if lacking.is_empty() {
            Ok(in_force)
        } else {
            Err(format!("{in_force}; without {}", lacking.join("; ")))
        }
    });
    Check { needed: false, ..check("confinement", found, remedy) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_answer_is_reported() {
        let (held, never) = mpsc::channel::<()>();
        let hangs = move || {
            let _ = never.recv();
            check("shim", Ok("found".into()), "")
        };
        let found = in_time("shim", Duration::from_millis(50), hangs);
        assert!(!found.ok && found.detail.contains("does not answer"), "{found:?}");
        drop(held);
        let found = in_time("shim", ANSWERS_WITHIN, || check("shim", Ok("found".into()), ""));
        assert!(found.ok, "{found:?}");
    }
}
