//! What reads text of the kernel, of processes and of root's files, for fuzzing: the privileged side does it for all users.

use crate::policy::JobKnown;
use crate::{Policy, cgroup, files, procfs, watchdog};
use stallscope_ebpf::Subordinates;

/// Users of jobs that the policy is asked about, and memory of the node.
const USERS: [u32; 4] = [0, 1000, 100_000, u32::MAX];
const NODE_BYTES: u64 = 1 << 36;

/// `bytes`: a text, and behind the first 0 another.
pub fn read_any(bytes: &[u8]) {
    let (first, second) = bytes.split_at(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    let (text, other) = (String::from_utf8_lossy(first), String::from_utf8_lossy(second));
    procfs::read_any(&text);
    cgroup::read_any(&text, &other);
    files::read_any(first);
    watchdog::read_any(&text);
    let subordinates = Subordinates::parse(first, second);
    for uid in USERS {
        assert!(uid == 0 || subordinates.payer(uid) != 0, "root is charged");
    }
    if let Ok(policy) = Policy::parse(&text) {
        let cgroups = other.lines().map(str::to_owned).collect();
        let known = JobKnown { user: other.to_string(), cgroups, label: other.to_string() };
        let allowed = policy.allows(&known, NODE_BYTES);
        assert!(allowed.cache_bytes >= allowed.cache_floor_bytes || allowed.cache_bytes == 0, "{allowed:?}");
        policy.in_words(NODE_BYTES);
    }
}
