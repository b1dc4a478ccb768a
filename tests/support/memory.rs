//! A memory cgroup of a test's own, of whichever version there is.

use super::skipped::skipped;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) struct MemoryGroup {
    folder: PathBuf,
}

impl MemoryGroup {
    /// With a limit; `None`, and counted as skipped, where none can be made.
    pub(crate) fn new(name: &str, limit_bytes: u64) -> Option<MemoryGroup> {
        let name = format!("stallscope-{}-{name}", std::process::id());
        let of = |parent: &str, limit: &str| {
            let folder = Path::new("/sys/fs/cgroup").join(parent).join(&name);
            fs::create_dir(&folder).and_then(|()| fs::write(folder.join(limit), limit_bytes.to_string()))?;
            std::io::Result::Ok(MemoryGroup { folder })
        };
        let made = of("memory", "memory.limit_in_bytes").or_else(|_| of("", "memory.max"));
        made.inspect_err(|error| skipped(format_args!("no memory cgroup can be made here: {error}"))).ok()
    }

    /// The same command, within the group.
    pub(crate) fn around(&self, command: &Command) -> Command {
        let mut within = Command::new("sh");
        within.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.folder.join("cgroup.procs"));
        within.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => within.env(name, value),
                None => within.env_remove(name),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            within.current_dir(folder);
        }
        within
    }

    /// Processes that the kernel killed for the limit.
    pub(crate) fn killed(&self) -> u64 {
        ["memory.oom_control", "memory.events"]
            .iter()
            .filter_map(|name| fs::read_to_string(self.folder.join(name)).ok())
            .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
            .find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
            .expect("the kernel counts what it kills")
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Without its processes, which are gone by now or soon: an empty folder is all that may be left behind.
        let _ = fs::remove_dir(&self.folder);
    }
}
