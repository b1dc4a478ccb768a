//! Where a user's folder of running jobs may be, and in it that of a job whose shim came by itself. The shim finds both in the
//! same way (probe/python/stallscope/_runtime.py).

use super::shorten;
use crate::procfs;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// In the order in which they are tried, for user `uid` with an environment that has `variable`.
pub(super) fn of(uid: u32, variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let variable = |name| variable(name).filter(|value| !value.is_empty());
    if let Some(named) = variable("STALLSCOPE_RUNTIME_DIR") {
        return vec![named.into()];
    }
    if uid == 0 {
        return vec!["/run/stallscope".into()];
    }
    if let Some(own) = variable("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|own| own.is_dir()) {
        return vec![own.join("stallscope")];
    }
    let mut places =
        vec![format!("/tmp/stallscope-{uid}").into(), format!("/var/tmp/stallscope-{uid}").into()];
    places.extend(variable("HOME").map(|home| Path::new(&home).join(".cache/stallscope")));
    places
}

/// What a job whose shim came by itself is called there: by its root process, of which there is one at any time.
pub(crate) fn key(pid: u32, start_ticks: u64) -> String {
    format!("node-{pid}-{start_ticks}")
}

/// The same of one that was found, and has no shim: one that comes later has another collector.
pub(crate) fn found_key(pid: u32, start_ticks: u64) -> String {
    format!("found-{pid}-{start_ticks}")
}

/// Where the shim of process `pid`, which has this environment, calls if it came by itself. `None` where no collector has been.
pub(super) fn socket_of_its_own(pid: u32, environment: &[u8]) -> Option<PathBuf> {
    let uid = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    let folder = shorten(&key(pid, procfs::start_ticks(pid)?));
    let value = |name: &str| Some(OsStr::from_bytes(procfs::variable(environment, name)?).to_owned());
    let folders = of(uid, value).into_iter().map(|base| base.join("jobs").join(&folder));
    // Nothing is made here: the caller may be root, and the environment anybody's.
    Some(folders.into_iter().find(|folder| folder.is_dir())?.join("sock"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn with(uid: u32, variables: &[(&str, &str)]) -> Vec<PathBuf> {
        let value =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        of(uid, value)
    }

    #[test]
    fn what_the_user_names_comes_first_and_what_all_may_write_to_last() {
        let all = [("STALLSCOPE_RUNTIME_DIR", "/a"), ("XDG_RUNTIME_DIR", "/tmp"), ("HOME", "/home/mira")];
        assert_eq!(with(7, &all), [Path::new("/a")]);
        assert_eq!(with(7, &all[1..]), [Path::new("/tmp/stallscope")]);
        assert_eq!(with(0, &all[1..]), [Path::new("/run/stallscope")]);
        let shared = ["/tmp/stallscope-7", "/var/tmp/stallscope-7", "/home/mira/.cache/stallscope"];
        assert_eq!(
            with(7, &[("STALLSCOPE_RUNTIME_DIR", ""), ("XDG_RUNTIME_DIR", "/nowhere"), all[2]]),
            shared.map(Path::new)
        );
    }

    #[test]
    fn the_socket_of_a_job_is_found_by_its_environment_once_it_has_a_collector() {
        let base = std::env::temp_dir().join(format!("ss-places-{}", std::process::id()));
        let pid = std::process::id();
        let environment = format!("A=b\0STALLSCOPE_RUNTIME_DIR={}\0", base.display()).into_bytes();
        assert_eq!(socket_of_its_own(pid, &environment), None);
        let folder = base.join("jobs").join(key(pid, procfs::start_ticks(pid).unwrap()));
        std::fs::create_dir_all(&folder).unwrap();
        assert_eq!(socket_of_its_own(pid, &environment), Some(folder.join("sock")));
        std::fs::remove_dir_all(&base).unwrap();
    }
}
