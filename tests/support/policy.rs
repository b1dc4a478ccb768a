//! A service of the node's policy, and what it says of the jobs.

use super::node::OTTO;
use super::{Killed, Sandbox, python, text, wait_until};
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) const IDLE: &str = "import os, time\nwhile not os.path.exists('stop'): time.sleep(0.05)\n";

/// A service with this policy, which reports into the file `service.printed`.
pub(crate) fn service(sandbox: &Sandbox, policy: &str) -> Killed {
    std::fs::write(sandbox.path("policy.toml"), policy).unwrap();
    let socket = sandbox.path("node.sock").display().to_string();
    let printed = File::options().create(true).append(true).open(sandbox.path("service.printed")).unwrap();
    let (user, state) = (OTTO.to_string(), sandbox.path("state").display().to_string());
    let words =
        ["node-service", "--config", "policy.toml", "--user", &user, "--socket", &socket, "--state", &state];
    let inner = sandbox.stallscope(&words);
    // Its starter has a file open that is none of the users'.
    let mut starter = Command::new("sh");
    starter.args(["-c", "exec \"$0\" \"$@\" 9</etc/passwd"]).arg(inner.get_program()).args(inner.get_args());
    starter.current_dir(inner.get_current_dir().unwrap()).stdin(Stdio::null()).stderr(printed);
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => starter.env(name, value),
            None => starter.env_remove(name),
        };
    }
    let service = Killed(starter.spawn().unwrap());
    wait_until("the service listens", || sandbox.run(&["node"]).status.success());
    service
}

pub(crate) fn printed(sandbox: &Sandbox) -> String {
    std::fs::read_to_string(sandbox.path("service.printed")).unwrap()
}

/// The node's jobs as root sees them, by name.
pub(crate) fn node_job(sandbox: &Sandbox, name: &str) -> Option<Value> {
    let node: Value = serde_json::from_slice(&sandbox.run(&["node", "--json"]).stdout).ok()?;
    node["jobs"].as_array()?.iter().find(|job| job["name"] == name).cloned()
}

pub(crate) fn is_tuned(sandbox: &Sandbox, name: &str) -> bool {
    node_job(sandbox, name).is_some_and(|job| job["state"] == "tuned")
}

/// Processes of `stallscope node-session` that the launcher has now.
pub(crate) fn sessions(launcher: u32) -> Vec<u32> {
    started(launcher, "node-session")
}

/// The same of `stallscope VERB`.
pub(crate) fn started(launcher: u32, verb: &str) -> Vec<u32> {
    let children =
        std::fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).unwrap_or_default();
    let is_one = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| text(&words).contains(verb))
    };
    children.split_whitespace().map(|pid| pid.parse().unwrap()).filter(is_one).collect()
}

/// `stallscope run` of one of tests/jobs as nobody, who may not reach the Python with torch but by another way to it.
pub(crate) fn with_torch(sandbox: &Sandbox, name: &str, script: &str, arguments: &[&str]) -> Command {
    let torch = Torch::find(sandbox);
    let script = sandbox.path("jobs").join(script).display().to_string();
    let words = [&["run", "--no-kernel", "--name", name, "--", &torch.python, &script], arguments].concat();
    torch.seen_by(sandbox, &sandbox.stallscope_as_nobody(&words))
}

/// The same without `stallscope run`, in an environment that has the package as `pip install --user` leaves it.
pub(crate) fn torch_alone(sandbox: &Sandbox, script: &str, arguments: &[&str]) -> Command {
    let torch = Torch::find(sandbox);
    // Has the package copied.
    let in_sandbox = sandbox.stallscope_as_nobody(&[]);
    let home = sandbox.path(&format!(".local/lib/{}/site-packages", torch.version));
    if !home.exists() {
        std::fs::create_dir_all(&home).unwrap();
        std::os::unix::fs::symlink(sandbox.path("python/stallscope"), home.join("stallscope")).unwrap();
        let start = Path::new(env!("CARGO_MANIFEST_DIR")).join("probe/python/start");
        for file in ["stallscope.pth", "_stallscope_start.py"] {
            std::fs::copy(start.join(file), home.join(file)).unwrap();
        }
    }
    let mut inner = Command::new(&torch.python);
    inner.arg(sandbox.path("jobs").join(script)).args(arguments);
    inner.envs(in_sandbox.get_envs().filter_map(|(name, value)| Some((name, value?))));
    torch.seen_by(sandbox, &inner)
}

/// The Python with torch, by a way that is there only for what is started by [`Torch::seen_by`].
struct Torch {
    prefix: PathBuf,
    there: PathBuf,
    python: String,
    packages: String,
    /// As "python3.12".
    version: String,
}

impl Torch {
    fn find(sandbox: &Sandbox) -> Torch {
        let python = python();
        let base = std::fs::canonicalize(&python).unwrap();
        let prefix = base.ancestors().nth(2).unwrap().to_owned();
        let there = sandbox.path("base");
        std::fs::create_dir_all(&there).unwrap();
        let asked = "import os, sys, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))\n\
            print('python{}.{}'.format(*sys.version_info))";
        let answer = text(&Command::new(&python).args(["-c", asked]).output().unwrap().stdout);
        let (packages, version) = answer.trim().split_once('\n').unwrap();
        let python = there.join(base.strip_prefix(&prefix).unwrap()).display().to_string();
        Torch { prefix, there, python, packages: packages.into(), version: version.into() }
    }

    /// `inner` as nobody.
    fn seen_by(&self, sandbox: &Sandbox, inner: &Command) -> Command {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c"])
            .arg("mount --bind \"$0\" \"$1\" && shift && exec setpriv --reuid 65534 --regid 65534 --clear-groups \"$@\"")
            .args([&self.prefix, &self.there])
            .arg(inner.get_program())
            .args(inner.get_args())
            .current_dir(sandbox.path(""))
            .stdin(Stdio::null())
            .envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .env("PYTHONPATH", &self.packages);
        command
    }
}

/// The node's audit as root reads it.
pub(crate) fn node_log(sandbox: &Sandbox) -> Vec<Value> {
    let printed = sandbox.run(&["node", "log", "--json"]).stdout;
    text(&printed).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
