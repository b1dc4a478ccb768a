//! `programs/abi.h` says the same as `stallscope_abi`, field by field: the C compiler is asked.

use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use stallscope_abi::files::{FileKey, FileWait, KeptFile, MAX_FILES, MAX_MOUNTS, MountWait};
use stallscope_abi::kernel::{
    BLOCKED_KINDS, BatchRead, Blocked, Header, Kind, LOST_REASONS, Lost, MAX_TASKS, MAX_USERS, Save, Slice,
    TaskExit, TaskNew, TaskSlot, Times, UserSlots, VERSION, Wait, Wake, flags, state, user,
};

/// Assertions in C that `$type` is the struct `$name` with these fields at the same places.
macro_rules! same_struct {
    ($source:ident, $name:literal, $type:ty, $($field:ident)*) => {
        same(&mut $source, concat!("sizeof(struct ", $name, ")"), size_of::<$type>() as u64);
        $(same(
            &mut $source,
            concat!("__builtin_offsetof(struct ", $name, ", ", stringify!($field), ")"),
            offset_of!($type, $field) as u64,
        );)*
    };
}

#[cfg(test)]
fn same(source: &mut String, expression: &str, value: u64) {
    writeln!(source, "_Static_assert({expression} == {value}, \"{expression} is not {value}\");").unwrap();
}

/// `FileRead` as `FILE_READ`.
fn upper(name: &str) -> String {
    let mut upper = String::new();
    for (i, c) in name.char_indices() {
        if i > 0 && c.is_uppercase() {
            upper.push('_');
        }
        upper.extend(c.to_uppercase());
    }
    upper
}

#[test]
fn the_header_mirrors_the_module() {
    let mut c = String::from("#include \"abi.h\"\n");
    same_struct!(c, "times", Times, cpu_ns cpu_read_ns runnable_ns blocked_ns);
    same_struct!(c, "task_slot", TaskSlot,
        seq flags tid tgid ppid generation state blocked_in user uid since_ns start_boottime_ns first_seen_ns total
        sibling_cpu_ns sibling_runnable_ns rchar read_bytes comm sent sent_sibling_cpu_ns sent_sibling_runnable_ns
        slice_start_ns scratch);
    same_struct!(c, "header", Header, kind size slot tid tgid time_ns);
    same_struct!(c, "slice", Slice, header start_ns times sibling_cpu_ns sibling_runnable_ns rchar read_bytes);
    same_struct!(c, "wait", Wait, header start_ns waker_tid waker_tgid blocked_in errand_start_ns errand_cpu_ns errand_runnable_ns errand_read_ns);
    same_struct!(c, "wake", Wake, header woken_tid cpu_ns);
    same_struct!(c, "batch_read", BatchRead, header fd);
    same_struct!(c, "save", Save, header what bytes);
    same_struct!(c, "task_new", TaskNew, header ppid flags start_boottime_ns comm);
    same_struct!(c, "task_exit", TaskExit, header status total);
    same_struct!(c, "user_slots", UserSlots, taken returned refused mounts_taken mounts_returned
        files_taken files_returned sent_since_ns sent_bytes unsent);
    same_struct!(c, "file_key", FileKey, root mount dev uid inode);
    same_struct!(c, "mount_wait", MountWait, wait_ns waits);
    same_struct!(c, "file_wait", FileWait, wait_ns waits tgid whole name parent);
    same_struct!(c, "kept_file", KeptFile, wait last_ns);
    // What user space reads of the kernel side's internals: slots.rs.
    same(&mut c, "__builtin_offsetof(struct scratch, wake_ns)", 0);
    same(&mut c, "__builtin_offsetof(struct scratch, leader)", 4 * 8);
    same(&mut c, "__builtin_offsetof(struct scratch, reading)", 4 * 8 + 5);
    same(&mut c, "__builtin_offsetof(struct scratch, root)", 7 * 8);

    for kind in Blocked::ALL {
        same(&mut c, &format!("BLOCKED_{}", upper(&format!("{kind:?}"))), kind as u64);
    }
    for kind in
        [Kind::Slice, Kind::Wait, Kind::Wake, Kind::BatchRead, Kind::TaskNew, Kind::TaskExec, Kind::TaskExit]
    {
        same(&mut c, &format!("KIND_{}", upper(&format!("{kind:?}"))), kind as u64);
    }
    for lost in
        [Lost::RingFull, Lost::NoSlot, Lost::NoStorage, Lost::NoMount, Lost::UserSlots, Lost::UserRing]
    {
        same(&mut c, &format!("LOST_{}", upper(&format!("{lost:?}"))), lost as u64);
    }
    for (name, value) in [
        ("ABI_VERSION", u64::from(VERSION)),
        ("MAX_TASKS", u64::from(MAX_TASKS)),
        ("MAX_USERS", u64::from(MAX_USERS)),
        ("USER_EVERYBODY", u64::from(user::EVERYBODY)),
        ("USER_ROOT", u64::from(user::ROOT)),
        ("MAX_FILES", u64::from(MAX_FILES)),
        ("MAX_MOUNTS", u64::from(MAX_MOUNTS)),
        ("BLOCKED_KINDS", BLOCKED_KINDS as u64),
        ("LOST_REASONS", LOST_REASONS as u64),
        ("FLAG_WATCHED", u64::from(flags::WATCHED)),
        ("FLAG_LEADER", u64::from(flags::LEADER)),
        ("FLAG_AT_ATTACH", u64::from(flags::AT_ATTACH)),
        ("FLAG_PRIVILEGED", u64::from(flags::PRIVILEGED)),
        ("STATE_FREE", u64::from(state::FREE)),
        ("STATE_RUNNING", u64::from(state::RUNNING)),
        ("STATE_RUNNABLE", u64::from(state::RUNNABLE)),
        ("STATE_BLOCKED", u64::from(state::BLOCKED)),
        ("STATE_EXITED", u64::from(state::EXITED)),
    ] {
        same(&mut c, name, value);
    }

    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("layout.c");
    std::fs::write(&source, c).unwrap();
    let output = Command::new("cc")
        .args(["-std=c11", "-fsyntax-only", "-I", concat!(env!("CARGO_MANIFEST_DIR"), "/programs")])
        .arg(&source)
        .output()
        .expect("a C compiler, which linking a Rust program takes as well");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
