//! What the kernel asks of the file system, answered from the pack. Nothing is kept for an open file: all is found by number.

use crate::expanded::{Expanded, Memory, Taken};
use crate::tree::{Node, Tree};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEntry,
    ReplyOpen, ReplyStatfs, Request,
};
use stallscope_pack::{Entry, MOST_DAMAGED, Pack, Readers, shown};
use std::ffi::OsStr;
use std::fmt::Debug;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// For how long the kernel may believe what it was answered: a state of a pack never changes.
const VALID: Duration = Duration::from_secs(365 * 86400);

/// Files up to this size are compared with their checksums before a byte is handed over; for larger ones the first byte would
/// come too late.
const MOST_COMPARED_BYTES: u64 = 64 << 20;

/// Locks under which files are compared and expanded: two readers of one file do that once, and hardly wait for those of others.
const COMPARERS: usize = 64;

/// Sentences about reads that failed; of a pack whose storage is gone all fail.
const MOST_SENTENCES: usize = 100;

/// Reads that the kernel keeps under way of its own accord, as it reads ahead.
const READ_AHEAD_REQUESTS: u16 = 64;

/// Where sentences for the person at the terminal go.
pub(crate) type Say = Box<dyn Fn(&str) + Send + Sync>;

/// Who may see what: as the pack's own files have it.
#[derive(Clone, Copy, Debug)]
struct Rights {
    uid: u32,
    gid: u32,
    file: u16,
    folder: u16,
}

impl Rights {
    /// Who may not look into the pack's folder, or read its snapshot and each of its chunks, gets nothing here.
    fn of(pack: &mut Pack) -> stallscope_pack::Result<(Rights, SystemTime)> {
        let changed = pack.changed().unwrap_or(UNIX_EPOCH);
        let Readers { uid, gid, mode } = pack.readers()?;
        let file = mode as u16;
        Ok((Rights { uid, gid, file, folder: file | file >> 2 }, changed))
    }
}

/// A pack and what is known of it while it is shown.
pub(crate) struct Files {
    pack: Pack,
    tree: Tree,
    rights: Rights,
    changed: SystemTime,
    /// A bit for each record that was compared with its checksum.
    compared: Box<[AtomicUsize]>,
    comparing: [Mutex<()>; COMPARERS],
    expanded: Expanded,
    memory: Memory,
    sentences: AtomicUsize,
    say: Say,
    /// The kernel does without opens of folders.
    opens_no_folders: AtomicBool,
}

impl Debug for Files {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("Files").field("pack", &self.pack).finish_non_exhaustive()
    }
}

impl Files {
    pub(crate) fn of(mut pack: Pack, tree: Tree, say: Say) -> stallscope_pack::Result<Files> {
        let (rights, changed) = Rights::of(&mut pack)?;
        let words = pack.snapshot().records().div_ceil(usize::BITS as usize);
        Ok(Files {
            tree,
            rights,
            changed,
            compared: zeros(words),
            comparing: [const { Mutex::new(()) }; COMPARERS],
            expanded: Expanded::default(),
            memory: Memory::default(),
            sentences: AtomicUsize::new(0),
            say,
            opens_no_folders: AtomicBool::new(false),
            pack,
        })
    }

    fn file_attributes(&self, record: usize, entry: &Entry<'_>) -> FileAttr {
        let since = Duration::from_nanos(entry.mtime_ns.unsigned_abs());
        let changed = if entry.mtime_ns < 0 { UNIX_EPOCH - since } else { UNIX_EPOCH + since };
        self.attributes(Node::File(record), FileType::RegularFile, entry.bytes, changed)
    }

    fn attributes(&self, node: Node, kind: FileType, size: u64, changed: SystemTime) -> FileAttr {
        let Rights { uid, gid, file, folder } = self.rights;
        let is_folder = kind == FileType::Directory;
        FileAttr {
            ino: INodeNo(node.inode()),
            size,
            blocks: size.div_ceil(512),
            atime: changed,
            mtime: changed,
            ctime: changed,
            crtime: changed,
            kind,
            perm: if is_folder { folder } else { file },
            nlink: if is_folder { 2 } else { 1 },
            uid,
            gid,
            rdev: 0,
            blksize: 128 << 10,
            flags: 0,
        }
    }

    fn of_node(&self, node: Node) -> Result<FileAttr, Errno> {
        match node {
            Node::Folder(number) => {
                self.tree.folder(number).ok_or(Errno::ENOENT)?;
                Ok(self.attributes(node, FileType::Directory, 0, self.changed))
            }
            Node::File(record) => {
                let entry = self.pack.snapshot().entry(record).map_err(|error| self.failed(&error))?;
                Ok(self.file_attributes(record, &entry))
            }
        }
    }

    fn found(&self, parent: INodeNo, part: &OsStr) -> Result<FileAttr, Errno> {
        let Some(Node::Folder(parent)) = Node::of_inode(parent.0) else { return Err(Errno::ENOTDIR) };
        let found = self.tree.find(self.pack.snapshot(), parent, part.as_bytes());
        let node = found.map_err(|error| self.failed(&error))?.ok_or(Errno::ENOENT)?;
        self.of_node(node)
    }

    /// Hands what a folder has from `offset` on to `add`, with the offset behind it, until that returns that it is full.
    fn list(
        &self,
        folder: INodeNo,
        offset: u64,
        mut add: impl FnMut(&FileAttr, u64, &[u8]) -> bool,
    ) -> Result<(), Errno> {
        let Some(Node::Folder(number)) = Node::of_inode(folder.0) else { return Err(Errno::ENOTDIR) };
        let folder = self.tree.folder(number).ok_or(Errno::ENOENT)?;
        let offset = usize::try_from(offset).map_err(|_| Errno::EINVAL)?;
        let above = [(number, &b"."[..]), (folder.parent, b"..")];
        let below = folder
            .folders
            .iter()
            .filter_map(|child| Some((*child, self.tree.folder(*child)?.part.as_slice())));
        for (at, (child, part)) in above.into_iter().chain(below).enumerate().skip(offset) {
            let attributes = self.attributes(Node::Folder(child), FileType::Directory, 0, self.changed);
            if add(&attributes, at as u64 + 1, part) {
                return Ok(());
            }
        }
        let (path, files_from, mut damaged) = (self.tree.path(number), 2 + folder.folders.len(), 0);
        for record in folder.files.clone().skip(offset.saturating_sub(files_from)) {
            // A damaged one is not listed, as its name is what is damaged.
            let Ok(entry) = self.pack.snapshot().entry(record) else {
                damaged += 1;
                if damaged > MOST_DAMAGED {
                    return Err(self.failed(&format!("{} cannot be listed: it is damaged", shown(&path))));
                }
                continue;
            };
            let Some(part) = self.tree.file(number, &path, &entry) else { continue };
            let behind = files_from + record - folder.files.start + 1;
            if add(&self.file_attributes(record, &entry), behind as u64, part) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn data(&self, inode: INodeNo, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        let record = match Node::of_inode(inode.0) {
            Some(Node::File(record)) => record,
            Some(Node::Folder(_)) => return Err(Errno::EISDIR),
            None => return Err(Errno::ENOENT),
        };
        let entry = self.pack.snapshot().entry(record).map_err(|error| self.failed(&error))?;
        self.part(record, &entry, offset, size)
            .map_err(|error| self.failed(&format!("{} cannot be read: {error}", shown(entry.name))))
    }

    fn part(
        &self,
        record: usize,
        entry: &Entry<'_>,
        offset: u64,
        size: u32,
    ) -> stallscope_pack::Result<Vec<u8>> {
        // Before anything is allocated for it.
        let whole = self.pack.size_of(entry)?;
        let begin = usize::try_from(offset).unwrap_or(whole).min(whole);
        let mut data = vec![0; (whole - begin).min(size as usize)];
        if data.len() == whole {
            self.pack.read(entry, &mut data)?;
            return Ok(data);
        }
        if entry.is_compressed() {
            let (all, _taken) = self.expanded(record, entry)?;
            let end = begin + data.len();
            data.copy_from_slice(&all[begin..end]);
            return Ok(data);
        }
        if entry.stored_bytes <= MOST_COMPARED_BYTES {
            self.compare(record, entry)?;
        }
        self.pack.read_part(entry, &mut data, offset)?;
        Ok(data)
    }

    /// All bytes of a file that is stored compressed, and the memory that was taken for them. Readers of one file wait for each
    /// other, so that it is expanded once.
    fn expanded(
        &self,
        record: usize,
        entry: &Entry<'_>,
    ) -> stallscope_pack::Result<(Arc<Vec<u8>>, Option<Taken<'_>>)> {
        if let Some(all) = self.expanded.get(record) {
            return Ok((all, None));
        }
        let _alone = self.alone(record);
        if let Some(all) = self.expanded.get(record) {
            return Ok((all, None));
        }
        let taken = self.memory.take(entry.bytes.saturating_add(entry.stored_bytes));
        let all = Arc::new(self.pack.whole(entry)?);
        self.expanded.put(record, all.clone());
        Ok((all, Some(taken)))
    }

    fn alone(&self, record: usize) -> MutexGuard<'_, ()> {
        self.comparing[record % COMPARERS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Once a mount: a file that is handed over in pieces is compared before the first of them.
    fn compare(&self, record: usize, entry: &Entry<'_>) -> stallscope_pack::Result<()> {
        let (word, bit) = (record / usize::BITS as usize, 1 << (record % usize::BITS as usize));
        let Some(word) = self.compared.get(word) else { return Ok(()) };
        if word.load(Ordering::Acquire) & bit != 0 {
            return Ok(());
        }
        let _alone = self.alone(record);
        if word.load(Ordering::Acquire) & bit == 0 {
            self.pack.stream(entry, &mut |_| Ok(()))?;
            word.fetch_or(bit, Ordering::AcqRel);
        }
        Ok(())
    }

    /// What a reader gets, who has no place for a sentence.
    fn failed(&self, sentence: &impl ToString) -> Errno {
        match self.sentences.fetch_add(1, Ordering::Relaxed) {
            before if before < MOST_SENTENCES => (self.say)(&sentence.to_string()),
            MOST_SENTENCES => (self.say)("further reads that fail are not named"),
            _ => {}
        }
        Errno::EIO
    }
}

/// Memory is taken where a bit is set: a snapshot may be of holes, and say that it has billions of records.
fn zeros(words: usize) -> Box<[AtomicUsize]> {
    // SAFETY: an atomic integer has the bytes of its value, and so is 0 where these are.
    unsafe { Box::new_zeroed_slice(words).assume_init() }
}

impl Filesystem for Files {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            // Attributes come with the names: a script that lists and then asks for each file's size asks once.
            InitFlags::FUSE_DO_READDIRPLUS | InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
        ];
        for flags in wanted {
            // An older kernel does without.
            let _ = config.add_capabilities(flags);
        }
        let _ = config.set_max_background(READ_AHEAD_REQUESTS);
        let can = config.capabilities().contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        *self.opens_no_folders.get_mut() = can;
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.found(parent, name) {
            Ok(attributes) => reply.entry(&VALID, &attributes, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let node = Node::of_inode(inode.0).ok_or(Errno::ENOENT);
        match node.and_then(|node| self.of_node(node)) {
            Ok(attributes) => reply.attr(&VALID, &attributes),
            Err(error) => reply.error(error),
        }
    }

    // After this answer the kernel opens and closes files by itself, with their pages kept: a small file is one request.
    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.opens_no_folders.load(Ordering::Relaxed) {
            true => reply.error(Errno::ENOSYS),
            false => reply.opened(FileHandle(0), FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE),
        }
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.data(inode, offset, size) {
            Ok(data) => reply.data(&data),
            Err(error) => reply.error(error),
        }
    }

    fn readdir(&self, _: &Request, inode: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listed = self.list(inode, offset, |found, behind, part| {
            reply.add(found.ino, behind, found.kind, OsStr::from_bytes(part))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = self.list(inode, offset, |found, behind, part| {
            reply.add(found.ino, behind, OsStr::from_bytes(part), &VALID, found, Generation(0))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        const BLOCK: u64 = 4096;
        let snapshot = self.pack.snapshot();
        // When it was opened, each was found to be whole.
        let chunks = (0..snapshot.chunks()).map_while(|number| snapshot.chunk(number).ok());
        let bytes = chunks.fold(0_u64, |sum, chunk| sum.saturating_add(chunk.bytes));
        reply.statfs(
            bytes.div_ceil(BLOCK),
            0,
            0,
            snapshot.records() as u64,
            0,
            BLOCK as u32,
            255,
            BLOCK as u32,
        );
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use stallscope_pack::{Disk, LEAST_CHUNK_BYTES, Options, Origin, SNAPSHOT};
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};

    /// A pack of one file, packed by its owner alone, in a folder that all may look into.
    fn private(folder: &Path) -> PathBuf {
        let (from, to) = (folder.join("data"), folder.join("pack"));
        std::fs::create_dir_all(from.join("a")).unwrap();
        std::fs::write(from.join("a/secret"), "of one user").unwrap();
        let options = Options { shuffle: None, zstd: None, chunk_bytes: LEAST_CHUNK_BYTES };
        stallscope_pack::pack(Origin::Folder(&from), &to, options, &Disk, &mut |_| {}).unwrap();
        allow(&to, 0o755);
        std::fs::read_dir(&to).unwrap().for_each(|entry| allow(&entry.unwrap().path(), 0o600));
        to
    }

    fn allow(path: &Path, mode: u32) {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    fn shown_to(pack: &mut Pack) -> (u16, u16) {
        let (rights, _) = Rights::of(pack).unwrap();
        (rights.file, rights.folder)
    }

    /// Who owns the folder around it could put one in its place that all may read, and read a pack that root mounted.
    #[test]
    fn rights_are_those_of_the_pack_that_was_opened() {
        let root = tempfile::tempdir().unwrap();
        let dir = private(root.path());
        let mut pack = Pack::open_to_show(&dir).unwrap();
        std::fs::rename(&dir, root.path().join("aside")).unwrap();
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join(SNAPSHOT), "").unwrap();
        allow(&dir.join(SNAPSHOT), 0o644);
        assert_eq!(shown_to(&mut pack), (0o400, 0o500));
    }

    /// Files that were appended under another mask made a snapshot that all may read, and so all files shown to all.
    #[test]
    fn a_pack_is_shown_to_those_who_may_read_all_of_it() {
        let root = tempfile::tempdir().unwrap();
        let dir = private(root.path());
        allow(&dir.join(SNAPSHOT), 0o644);
        let shown = || shown_to(&mut Pack::open_to_show(&dir).unwrap());
        assert_eq!(shown(), (0o400, 0o500));
        let chunk = |entry: std::io::Result<std::fs::DirEntry>| {
            Some(entry.unwrap().path()).filter(|path| path.extension().is_some_and(|end| end == "chunk"))
        };
        let chunk = std::fs::read_dir(&dir).unwrap().find_map(chunk).unwrap();
        allow(&chunk, 0o640);
        assert_eq!(shown(), (0o440, 0o550));
        allow(&chunk, 0o644);
        assert_eq!(shown(), (0o444, 0o555));
        // Another one, or other rights, at the time it is read.
        let mut pack = Pack::open_to_show(&dir).unwrap();
        shown_to(&mut pack);
        allow(&chunk, 0o600);
        let read = pack.whole(&pack.snapshot().entry(0).unwrap());
        assert!(read.is_err_and(|error| error.to_string().contains("fewer users than the pack is shown to")));
    }

    fn resident_pages() -> usize {
        let sizes = std::fs::read_to_string("/proc/self/statm").unwrap();
        sizes.split(' ').nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn files_that_nobody_reads_take_no_memory() {
        let before = resident_pages();
        // Of a snapshot of holes with a billion records.
        let bits = zeros((1 << 30) / usize::BITS as usize);
        assert_eq!(bits[bits.len() - 1].load(Ordering::Relaxed), 0);
        assert!(resident_pages() < before + (32 << 20) / 4096, "{} pages before", before);
    }
}
