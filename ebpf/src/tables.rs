//! The kernel side's sums by file and by mount, read many at a time.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};

use aya::maps::{Map, MapData};
use stallscope_abi::files::{FileKey, FileWait, MountWait};
use stallscope_abi::kernel::{Plain, bytes_of, copy};

use crate::Error;

/// Entries a system call.
const BATCH: usize = 1024;

const DELETE: libc::c_long = 3;
const LOOKUP_BATCH: libc::c_long = 24;

/// Which files and mounts the tasks of all watched trees were blocked in, in no order.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    pub files: Vec<(FileKey, FileWait)>,
    pub mounts: Vec<(FileKey, MountWait)>,
}

/// A hash map from [`FileKey`] to `T`.
pub(crate) struct Table<T> {
    map: MapData,
    what: PhantomData<T>,
}

/// `union bpf_attr` of these commands, from linux/bpf.h.
#[repr(C)]
struct Delete {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct LookupBatch {
    from: u64,
    to: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: u32,
    element_flags: u64,
    flags: u64,
}

impl<T: Plain> Table<T> {
    /// `None` when `map` is no hash map.
    pub(crate) fn new(map: Map) -> Option<Table<T>> {
        match map {
            Map::HashMap(map) => Some(Table { map, what: PhantomData }),
            _ => None,
        }
    }

    fn fd(&self) -> u32 {
        self.map.fd().as_fd().as_raw_fd() as u32
    }

    /// Every entry. One that is added or goes meanwhile may be there or not.
    pub(crate) fn entries(&self) -> Result<Vec<(FileKey, T)>, Error> {
        let mut entries = Vec::new();
        let mut keys = vec![0u8; BATCH * size_of::<FileKey>()];
        let mut values = vec![0u8; BATCH * size_of::<T>()];
        let (mut place, mut begun) = (0u32, false);
        loop {
            let from = if begun { (&raw const place) as u64 } else { 0 };
            let mut attributes = LookupBatch {
                from,
                to: (&raw mut place) as u64,
                keys: keys.as_mut_ptr() as u64,
                values: values.as_mut_ptr() as u64,
                count: BATCH as u32,
                map: self.fd(),
                element_flags: 0,
                flags: 0,
            };
            // SAFETY: both buffers hold BATCH entries of the map's sizes (the kernel side's are asserted to be those of
            // FileKey and T), and all that is pointed to lives through the call.
            let result = unsafe { bpf(LOOKUP_BATCH, &mut attributes) };
            let last = match result {
                Ok(()) => false,
                // There is no further one.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
                Err(error) => return Err(Error::system("reading which files were waited for")(error)),
            };
            let pairs = keys.chunks_exact(size_of::<FileKey>()).zip(values.chunks_exact(size_of::<T>()));
            let found = pairs.take(attributes.count as usize);
            entries.extend(found.filter_map(|(key, value)| Some((copy(key)?, copy(value)?))));
            if last {
                return Ok(entries);
            }
            begun = true;
        }
    }

    /// Removes what was waited for in the tree of `root`, and returns how many entries that were.
    pub(crate) fn forget(&self, root: u32) -> Result<u64, Error> {
        let mut forgotten = 0;
        for (key, _) in self.entries()?.iter().filter(|(key, _)| key.root == root) {
            forgotten += u64::from(self.remove(key)?);
        }
        Ok(forgotten)
    }

    /// Whether it was there.
    pub(crate) fn remove(&self, key: &FileKey) -> Result<bool, Error> {
        let key = bytes_of(key).as_ptr() as u64;
        let mut attributes = Delete { map: self.fd(), pad: 0, key, value: 0, flags: 0 };
        // SAFETY: the key has the map's size and lives through the call.
        match unsafe { bpf(DELETE, &mut attributes) } {
            // The kernel may have evicted the entry meanwhile.
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => {
                Err(Error::system("forgetting which files were waited for")(error))
            }
            done => Ok(done.is_ok()),
        }
    }
}

/// # Safety
/// `attributes` are those of `command`, and what they point to is as the command takes it.
unsafe fn bpf<A>(command: libc::c_long, attributes: &mut A) -> io::Result<()> {
    // SAFETY: the caller's promise; the size given is that of `attributes`.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<A>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
