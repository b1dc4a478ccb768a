//! Whose evidence is: that of the user whose the task is, and root's where it has rights that its user lacks, also where all of
//! that was so before anybody watched.

use std::ffi::CString;
use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::support::{Seen, Workload, file, kernel};
use stallscope_abi::kernel::{Lost, Record};
use stallscope_ebpf::{Kernel, Options, Subordinates};

const ROOT: u32 = 0;
const MIRA: u32 = 4242;
const OTTO: u32 = 4343;
const ANNA: u32 = 4444;

/// A file on the disk, open for the processes that this one starts.
fn open_file(name: &str) -> (File, u64) {
    let path = file(name);
    let mut made = File::create(&path).unwrap();
    made.write_all(&vec![7; 8 << 20]).unwrap();
    made.sync_all().unwrap();
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    // SAFETY: takes no pointers. The descriptor is open, and stays so in the processes started.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) }, 0);
    let inode = file.metadata().unwrap().ino();
    (file, inode)
}

/// Watches `workload`, which reads the file `inode`, and returns the user under whom the sums of files have it. `None` where
/// the disk is faster than the CPU, so that no task waits for it.
fn owner_by_file(kernel: &mut Kernel, mut workload: Workload, inode: u64) -> Option<u32> {
    let pid = workload.pid();
    let mut seen = Seen { tasks: kernel.watch(pid).unwrap(), ..Seen::default() };
    workload.begin();
    seen.drain_until_exit(kernel, pid);
    workload.wait();
    let waits = kernel.waits().unwrap();
    kernel.unwatch(pid).unwrap();
    let users: Vec<u32> =
        waits.files.iter().filter(|(key, _)| key.inode == inode).map(|(key, _)| key.uid).collect();
    assert!(users.len() < 2, "one task waited for it: {waits:?}");
    let on_mounts = |uid: &u32| waits.mounts.iter().any(|(key, _)| key.uid == *uid);
    assert!(users.iter().all(on_mounts), "{waits:?}");
    users.first().copied()
}

/// The same for workloads until one has waited.
fn owner(kernel: &mut Kernel, inode: u64, start: impl Fn() -> Workload) -> u32 {
    (0..20).find_map(|_| owner_by_file(kernel, start(), inode)).expect("a wait for the file in twenty tries")
}

fn set_uid(program: &Path) {
    std::fs::set_permissions(program, Permissions::from_mode(0o4755)).unwrap();
}

/// Gives it CAP_DAC_READ_SEARCH, as setcap does.
fn give_capability(program: &Path) {
    const EFFECTIVE_OF_REVISION_2: u32 = 0x0200_0001;
    const DAC_READ_SEARCH: u32 = 1 << 2;
    let words = [EFFECTIVE_OF_REVISION_2, DAC_READ_SEARCH, 0, 0, 0];
    let value: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let program = CString::new(program.as_os_str().as_bytes()).unwrap();
    let name = c"security.capability";
    // SAFETY: two strings that end with 0 and a buffer of the length given; all live through the call.
    let set =
        unsafe { libc::setxattr(program.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// May be executed by its user, and not be read.
fn close(program: &Path) {
    std::fs::set_permissions(program, Permissions::from_mode(0o711)).unwrap();
}

#[test]
fn what_ran_with_rights_that_its_user_lacks_before_it_was_watched_is_roots() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    let (file, inode) = open_file("read-by-owner");
    let number = file.as_raw_fd().to_string();
    let mut owner = |deed: &str, prepare: fn(&Path)| {
        owner(&mut kernel, inode, || Workload::spawn_copy(MIRA, &[deed, &number], prepare))
    };
    assert_eq!(owner("read-open", |_| ()), MIRA, "a program of hers");
    assert_eq!(owner("read-open", set_uid), ROOT, "a set-uid program");
    assert_eq!(owner("read-open", give_capability), ROOT, "a program with a capability of its file");
    assert_eq!(owner("read-open", close), ROOT, "a program that she may not read");
    assert_eq!(owner("read-hidden", |_| ()), ROOT, "a process that nobody may look into");
}

#[test]
fn all_rights_in_a_namespace_of_ones_own_are_no_rights_of_others() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    let (file, inode) = open_file("read-in-namespace");
    if std::fs::read_to_string("/proc/sys/user/max_user_namespaces").is_ok_and(|most| most.trim() == "0") {
        crate::support::skipped::skipped(format_args!("users may have no namespaces here"));
        return;
    }
    let number = file.as_raw_fd().to_string();
    let start = || Workload::spawn_as(MIRA, &["read-in-namespace", &number]);
    assert_eq!(owner(&mut kernel, inode, start), MIRA);
}

#[test]
fn each_user_of_a_tree_sees_what_their_own_tasks_wait_for() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    let (file, inode) = open_file("read-by-another");
    let number = file.as_raw_fd().to_string();
    let start = || Workload::spawn(&["read-as", &OTTO.to_string(), &number]);
    assert_eq!(owner(&mut kernel, inode, start), OTTO);
}

/// A folder that is a mount of its own, of the folder of workloads' files.
struct Mounted(PathBuf);

impl Mounted {
    fn new(name: &str) -> Mounted {
        let point = file(name);
        std::fs::create_dir_all(&point).unwrap();
        let paths =
            [point.parent().unwrap(), &point].map(|path| CString::new(path.as_os_str().as_bytes()).unwrap());
        let [from, to] = &paths;
        // SAFETY: two strings that end with 0, and no further data.
        let mounted = unsafe {
            libc::mount(from.as_ptr(), to.as_ptr(), std::ptr::null(), libc::MS_BIND, std::ptr::null())
        };
        assert_eq!(mounted, 0, "{}", std::io::Error::last_os_error());
        Mounted(point)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let point = CString::new(self.0.as_os_str().as_bytes()).unwrap();
        // SAFETY: a string that ends with 0.
        unsafe { libc::umount2(point.as_ptr(), libc::MNT_DETACH) };
    }
}

#[test]
fn one_users_mounts_leave_others_theirs() {
    // One user may have one of these, as then one is free; the next another, as of whom has none.
    let Some(mut kernel) = kernel(&Options { max_mounts: 2, ..Options::default() }) else { return };
    let mounts = [Mounted::new("mount-1"), Mounted::new("mount-2")];
    let (open, inode) = open_file("on-many-mounts");
    let through = |mount: &Mounted| {
        let path = mount.0.join("on-many-mounts");
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
        // SAFETY: as in `open_file`.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) }, 0);
        file
    };
    let files = [through(&mounts[0]), through(&mounts[1])];
    let mut watched = Vec::new();
    let mut waits_of = |kernel: &mut Kernel, uid: u32, file: &File| {
        for _ in 0..20 {
            let mut workload = Workload::spawn_as(uid, &["read-open", &file.as_raw_fd().to_string()]);
            kernel.watch(workload.pid()).unwrap();
            watched.push(workload.pid());
            workload.begin();
            workload.wait();
            let waits = kernel.waits().unwrap();
            if waits.files.iter().any(|(key, _)| key.uid == uid && key.inode == inode) {
                return waits.mounts.iter().filter(|(key, _)| key.uid == uid).count();
            }
        }
        panic!("a wait for the file in twenty tries");
    };
    assert_eq!(waits_of(&mut kernel, MIRA, &files[0]), 1);
    assert_eq!(waits_of(&mut kernel, MIRA, &files[1]), 1, "she has one, and one is free");
    assert!(kernel.losses().unwrap()[Lost::NoMount as usize] > 0, "and that is counted");
    assert_eq!(waits_of(&mut kernel, OTTO, &open), 1, "that one is his");
    for pid in watched {
        kernel.unwatch(pid).unwrap();
    }
    assert_eq!(
        owner(&mut kernel, inode, || Workload::spawn_as(MIRA, &["read-open", &open.as_raw_fd().to_string()])),
        MIRA,
        "all came back"
    );
}

#[test]
fn the_owner_of_a_range_of_ids_has_one_share() {
    // One user may have two of these.
    let Some(mut kernel) = kernel(&Options { max_tasks: 4, ..Options::default() }) else { return };
    kernel.set_subordinates(Subordinates::parse(b"4242:4300:50", b""));
    let workloads = [MIRA, OTTO, OTTO, ANNA].map(|uid| Workload::spawn_as(uid, &["sleep"]));
    let watched: Vec<bool> = workloads.iter().map(|workload| kernel.watch(workload.pid()).is_ok()).collect();
    assert_eq!(watched, [true, true, false, true], "his id is one of hers, and she has two");
    assert_eq!((kernel.refused(MIRA), kernel.refused(OTTO), kernel.refused(ANNA)), (1, 1, 0));
    for mut workload in workloads {
        workload.begin();
        workload.wait();
    }
}

#[test]
fn one_users_files_leave_others_theirs() {
    // One user may have four of these, of which three stay at each look while there are no others.
    let Some(mut kernel) = kernel(&Options { max_files: 8, ..Options::default() }) else { return };
    let (open, inode) = open_file("one-of-many-files");
    let mut watched = Vec::new();
    // Each process that waits for the file makes it another one, as each is a tree of its own.
    let mut waits_of = |kernel: &mut Kernel, uid: u32| {
        for _ in 0..20 {
            let mut workload = Workload::spawn_as(uid, &["read-open", &open.as_raw_fd().to_string()]);
            let pid = workload.pid();
            kernel.watch(pid).unwrap();
            watched.push(pid);
            workload.begin();
            workload.wait();
            let files = kernel.waits().unwrap().files;
            if files.iter().any(|(key, _)| key.root == pid && key.inode == inode) {
                return (pid, files.iter().map(|(key, _)| (key.uid, key.root)).collect::<Vec<_>>());
            }
        }
        panic!("a wait for the file in twenty tries");
    };
    let (of_otto, _) = waits_of(&mut kernel, OTTO);
    for _ in 0..12 {
        let (_, files) = waits_of(&mut kernel, MIRA);
        assert!(files.contains(&(OTTO, of_otto)), "his is the oldest, and he has few: {files:?}");
        assert!(files.iter().filter(|(uid, _)| *uid == MIRA).count() <= 4, "{files:?}");
    }
    let (of_otto, files) = waits_of(&mut kernel, OTTO);
    assert!(files.contains(&(OTTO, of_otto)), "{files:?}");
    for pid in watched {
        kernel.unwatch(pid).unwrap();
    }
    assert!(kernel.waits().unwrap().files.is_empty());
    let again = || Workload::spawn_as(MIRA, &["read-open", &open.as_raw_fd().to_string()]);
    assert_eq!(owner(&mut kernel, inode, again), MIRA, "all came back");
}

#[test]
fn a_waker_is_named_to_users_who_may_know_it() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    for (uid, deed, named) in
        [(MIRA, "answer", true), (MIRA, "answer-hidden", false), (ROOT, "answer-hidden", true)]
    {
        let workload = Workload::spawn_as(uid, &[deed]);
        let pid = workload.pid();
        let seen = Seen::of(&mut kernel, workload);
        let wakers: Vec<u32> = seen
            .records
            .iter()
            .filter_map(|record| match record {
                Record::Wait(wait) if wait.header.tid == pid => Some(wait.waker_tgid),
                _ => None,
            })
            .collect();
        let helper = seen.tasks.iter().find(|task| task.header.tgid != pid).unwrap().header.tgid;
        assert_eq!(wakers.contains(&helper), named, "{deed} of {uid}: {:?}", seen.records);
    }
}
