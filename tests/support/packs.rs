//! Packs that are mounted, and what is seen of their mounts.

use super::skipped::skipped;
use super::{Sandbox, text};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Output;

/// Whether this process may mount; the test is counted as skipped when not.
pub(crate) fn can_mount(test: &str) -> bool {
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    let device = fs::File::options().read(true).write(true).open("/dev/fuse");
    let missing = match (is_root, &device) {
        (false, _) => "root, to mount",
        (true, Err(_)) => "/dev/fuse",
        (true, Ok(_)) => return true,
    };
    skipped(format_args!("{test} needs {missing}"));
    false
}

/// Bytes that lie nowhere else.
pub(crate) fn noise(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed;
    let step = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
        (state >> 56) as u8
    };
    std::iter::repeat_with(step).take(count).collect()
}

/// A folder `set` with files of two classes, packed into `set.pack`, and an empty folder `at`.
pub(crate) fn packed(name: &str) -> Sandbox {
    let sandbox = Sandbox::new(name);
    for number in 0..60 {
        let class = sandbox.path(["set/cat", "set/dog/deep"][number % 2]);
        fs::create_dir_all(&class).unwrap();
        fs::write(class.join(format!("{number:04}.bin")), noise(number as u64, 3_000 * number)).unwrap();
    }
    fs::write(sandbox.path("set").join(OsStr::from_bytes(b"cat/\xff\xfe\x1b .bin")), b"odd").unwrap();
    // Read in many requests.
    fs::write(sandbox.path("set/large"), noise(1000, 5_000_001)).unwrap();
    let before_1970 = std::time::UNIX_EPOCH - std::time::Duration::from_nanos(1_500_000_001);
    fs::File::options()
        .write(true)
        .open(sandbox.path("set/large"))
        .unwrap()
        .set_modified(before_1970)
        .unwrap();
    let output = sandbox.run(&["pack", "set", "-o", "set.pack"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    fs::create_dir(sandbox.path("at")).unwrap();
    sandbox
}

/// Whether something is mounted there, as this process sees it.
pub(crate) fn is_listed(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

/// Whether any process of this machine has something mounted there, and so some job.
pub(crate) fn is_anywhere(path: &Path) -> bool {
    let point = format!(" {} ", path.display());
    let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path().join("mountinfo"));
    processes.filter_map(|table| fs::read_to_string(table).ok()).any(|table| table.contains(&point))
}

/// The processes that serve packs of this sandbox to jobs.
pub(crate) fn servers(sandbox: &Sandbox) -> Vec<u32> {
    let pack = sandbox.path("set.pack").display().to_string();
    let processes =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let serves = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
        words.contains(&&b"serve"[..]) && words.contains(&pack.as_bytes())
    };
    processes.filter(serves).collect()
}

pub(crate) fn pack_at(sandbox: &Sandbox) -> String {
    format!("{}={}", sandbox.path("set.pack").display(), sandbox.path("at").display())
}

pub(crate) fn is_done(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
}
