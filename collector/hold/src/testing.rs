//! Files that can be locked.

use crate::locked::keeps;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// `None` where the folder for such is memory already.
pub(crate) fn folder() -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir().unwrap();
    let kind = rustix::fs::statfs(folder.path()).unwrap().f_type;
    if let Err(which) = keeps(kind) {
        eprintln!("SKIPPED: files in {} cannot be locked: it is on {which}", folder.path().display());
        return None;
    }
    Some(folder)
}

/// Onto the disk: what is still to be written cannot be brought in anew.
pub(crate) fn write(path: &std::path::Path, bytes: usize) {
    std::fs::write(path, vec![7; bytes]).unwrap();
    std::fs::File::open(path).unwrap().sync_all().unwrap();
}

/// What a job's user does who lists a folder into memory that never comes in, as from a file of their FUSE file system: the folder's
/// lock is not given back, and after one who wants to write in it nobody gets it any more.
pub(crate) struct KeptLocked {
    faults: libc::c_int,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl KeptLocked {
    /// `None`: this process may not leave faults of the kernel's unanswered.
    pub(crate) fn new(folder: &std::path::Path) -> Option<KeptLocked> {
        const UFFDIO_API: libc::Ioctl = 0xc018_aa3f_u32 as libc::Ioctl;
        const UFFDIO_REGISTER: libc::Ioctl = 0xc020_aa00_u32 as libc::Ioctl;
        const LENGTH: usize = 1 << 16;
        // SAFETY: system calls on numbers and on memory of theirs: the mapping is new, and nothing here reads or writes it.
        let (faults, at) = unsafe {
            let faults = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) as libc::c_int;
            let (access, private) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let at = libc::mmap(std::ptr::null_mut(), LENGTH, access, private, -1, 0) as usize;
            let mut api = [0xaa_u64, 0, 0];
            let mut missing = [at as u64, LENGTH as u64, 1, 0];
            if libc::ioctl(faults, UFFDIO_API, &raw mut api) != 0
                || libc::ioctl(faults, UFFDIO_REGISTER, &raw mut missing) != 0
            {
                eprintln!("SKIPPED: faults of the kernel's cannot be left unanswered here");
                return None;
            }
            (faults, at)
        };
        let listed = std::fs::File::open(folder).unwrap();
        let lists = move || {
            // SAFETY: into the mapping of above, which stays.
            unsafe { libc::syscall(libc::SYS_getdents64, listed.as_raw_fd(), at, LENGTH) };
        };
        let within = folder.join("within");
        let writes = move || {
            let _ = std::fs::create_dir(within);
        };
        let mut kept = KeptLocked { faults, threads: vec![std::thread::spawn(lists)] };
        std::thread::sleep(Duration::from_millis(200));
        kept.threads.push(std::thread::spawn(writes));
        std::thread::sleep(Duration::from_millis(200));
        Some(kept)
    }
}

impl Drop for KeptLocked {
    fn drop(&mut self) {
        // SAFETY: it is nobody else's. The memory comes in then.
        unsafe { libc::close(self.faults) };
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

/// Whether it ends in time; else its thread is left behind.
pub(crate) fn ends<T: Send + 'static>(does: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || ended.send(does()));
    end.recv_timeout(Duration::from_secs(1)).ok()
}
