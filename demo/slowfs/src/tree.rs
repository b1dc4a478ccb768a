//! The folder as the kernel asks for it: names, attributes, paced reads.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, OpenFlags,
    ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, Request,
};

use crate::pace::Pacer;

/// For how long the kernel may believe a name or a size.
const VALID: Duration = Duration::from_secs(1);

/// A folder and everything below it, read-only.
#[derive(Debug)]
pub(crate) struct Tree {
    pacer: Pacer,
    nodes: Mutex<Nodes>,
    files: Mutex<HashMap<u64, Arc<File>>>,
    next_handle: AtomicU64,
}

/// Numbers for paths. None is ever given back: a data set is finite, and the mount is short-lived.
#[derive(Debug, Default)]
struct Nodes {
    paths: Vec<PathBuf>,
    numbers: HashMap<PathBuf, u64>,
}

impl Nodes {
    // The first path, the folder itself, gets 1, which the kernel takes for the root.
    fn number(&mut self, path: PathBuf) -> INodeNo {
        let paths = &mut self.paths;
        INodeNo(*self.numbers.entry(path).or_insert_with_key(|path| {
            paths.push(path.clone());
            paths.len() as u64
        }))
    }
}

impl Tree {
    pub(crate) fn new(source: PathBuf, pacer: Pacer) -> Self {
        let mut nodes = Nodes::default();
        nodes.number(source);
        Self { pacer, nodes: Mutex::new(nodes), files: Mutex::default(), next_handle: AtomicU64::new(0) }
    }

    fn path(&self, node: INodeNo) -> io::Result<PathBuf> {
        let index = (node.0 as usize).wrapping_sub(1);
        lock(&self.nodes).paths.get(index).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn attributes(&self, path: PathBuf) -> io::Result<FileAttr> {
        let metadata = fs::symlink_metadata(&path)?;
        Ok(attributes(lock(&self.nodes).number(path), &metadata))
    }

    fn open_file(&self, node: INodeNo) -> io::Result<FileHandle> {
        let file = Arc::new(File::open(self.path(node)?)?);
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        lock(&self.files).insert(handle, file);
        Ok(FileHandle(handle))
    }

    fn read_paced(&self, handle: FileHandle, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        let file = lock(&self.files).get(&handle.0).cloned().ok_or(Errno::EBADF)?;
        let mut data = vec![0; size as usize];
        let mut filled = 0;
        // The kernel takes a short answer for the end of the file.
        while filled < data.len() {
            match file.read_at(&mut data[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(errno(error)),
            }
        }
        data.truncate(filled);
        self.pacer.wait(filled);
        Ok(data)
    }

    fn list(&self, node: INodeNo) -> io::Result<Vec<(INodeNo, FileType, OsString)>> {
        let path = self.path(node)?;
        let mut entries = vec![
            (node, FileType::Directory, OsString::from(".")),
            (INodeNo::ROOT, FileType::Directory, OsString::from("..")),
        ];
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let kind = FileType::from_std(entry.file_type()?).unwrap_or(FileType::RegularFile);
            entries.push((lock(&self.nodes).number(entry.path()), kind, entry.file_name()));
        }
        Ok(entries)
    }
}

impl Filesystem for Tree {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.path(parent).and_then(|folder| self.attributes(folder.join(name))) {
            Ok(attributes) => reply.entry(&VALID, &attributes, Generation(0)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.path(node).and_then(|path| self.attributes(path)) {
            Ok(attributes) => reply.attr(&VALID, &attributes),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        match self.path(node).and_then(fs::read_link) {
            Ok(target) => reply.data(target.as_os_str().as_bytes()),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdir(&self, _: &Request, node: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let entries = match self.list(node) {
            Ok(entries) => entries,
            Err(error) => return reply.error(errno(error)),
        };
        for (index, (node, kind, name)) in entries.into_iter().enumerate().skip(offset as usize) {
            if reply.add(node, index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    // Without FOPEN_KEEP_CACHE each opening forgets the cached pages, so that a file read again is slow again.
    // FOPEN_DIRECT_IO would do so too, but costs shared mappings and the reading ahead that a disk's files get.
    fn open(&self, _: &Request, node: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.open_file(node) {
            Ok(handle) => reply.opened(handle, FopenFlags::empty()),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.read_paced(handle, offset, size) {
            Ok(data) => reply.data(&data),
            Err(error) => reply.error(error),
        }
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        lock(&self.files).remove(&handle.0);
        reply.ok();
    }
}

fn attributes(node: INodeNo, metadata: &Metadata) -> FileAttr {
    let modified = metadata.modified().unwrap_or(UNIX_EPOCH);
    FileAttr {
        ino: node,
        size: metadata.size(),
        blocks: metadata.blocks(),
        atime: metadata.accessed().unwrap_or(UNIX_EPOCH),
        mtime: modified,
        ctime: modified,
        crtime: modified,
        kind: FileType::from_std(metadata.file_type()).unwrap_or(FileType::RegularFile),
        perm: (metadata.mode() & 0o7777) as u16,
        nlink: metadata.nlink() as u32,
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev: metadata.rdev() as u32,
        blksize: metadata.blksize() as u32,
        flags: 0,
    }
}

// An error that std made up has no number; of those only NotFound can occur here.
fn errno(error: io::Error) -> Errno {
    match error.raw_os_error() {
        Some(number) => Errno::from_i32(number),
        None if error.kind() == io::ErrorKind::NotFound => Errno::ENOENT,
        None => Errno::EIO,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
