//! Packs of another user, and folders in which another user can exchange things meanwhile.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use rustix::fs::{CWD, FileType, Mode, inotify, mknodat};
use stallscope_folder::Folder;
use stallscope_pack::{
    About, Chunk, DELETED, Deleted, Disk, Id, Notice, Options, Origin, Out, Pack, Result, Storage, append,
    build, chunk_of, delete, extract, pack, purge, rebuild, seal_deleted, seal_snapshot, verify,
};
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tempfile::TempDir;

/// A folder with a pack of these records.
fn made(records: &[(&[u8], &[u8])]) -> (TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("pack");
    fs::create_dir(&dir).unwrap();
    let id = Id::written(1, [0; 8]);
    // All are of one class.
    let about = About { label: Some(0), ..About::default() };
    let records: Vec<_> = records.iter().map(|(name, bytes)| (*name, *bytes, about)).collect();
    fs::write(dir.join(id.file_name()), chunk_of(id, Id([3; 16]), &records).unwrap()).unwrap();
    rebuild(&dir, false, &Disk, &mut |_, _| {}).unwrap();
    (root, dir)
}

/// Changes the pack in the first folder; what adds files gets those of the second one.
type Change = fn(&Path, &Path, &dyn Storage) -> Result<()>;

/// Each change of a pack that is there.
const CHANGES: [Change; 5] = [
    |dir, source, storage| pack(source, dir, Options::default(), storage, &mut |_| {}).map(drop),
    |dir, source, storage| append(source, dir, Options::default(), false, storage, &mut |_| {}).map(drop),
    |dir, _, storage| delete(dir, &[b"a/y".to_vec()], storage, &mut |_| {}).map(drop),
    |dir, _, storage| purge(dir, 1.0, 100, storage, &mut |_| {}, &mut |_, _| {}).map(drop),
    |dir, _, storage| rebuild(dir, false, storage, &mut |_, _| {}).map(drop),
];

/// A folder of the files a/w and a/z.
fn source(dir: &Path) -> PathBuf {
    let source = dir.join("set");
    fs::create_dir_all(source.join("a")).unwrap();
    ["a/w", "a/z"].iter().for_each(|name| fs::write(source.join(name), "1").unwrap());
    source
}

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// What `act` gives, which must not wait for anybody.
fn soon<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, when) = mpsc::channel();
    std::thread::spawn(move || done.send(act()));
    when.recv_timeout(Duration::from_secs(60)).expect("it waits for a pipe's other end")
}

#[test]
fn no_pipe_in_a_pack_is_waited_for() {
    let (root, dir) = made(&[(b"a/w", b"w"), (b"a/y", b"y")]);
    let source = source(root.path());
    let none_works = |what: &'static str| {
        for change in CHANGES {
            let (dir, source) = (dir.clone(), source.clone());
            let outcome = soon(move || change(&dir, &source, &Disk));
            let refused = outcome.unwrap_err().to_string();
            assert!(refused.contains(&format!("pack/{what}: ")), "{refused}");
        }
    };
    let lock = dir.join("lock");
    fs::remove_file(&lock).unwrap();
    fifo(&lock);
    none_works("lock");
    fs::remove_file(&lock).unwrap();
    fifo(&dir.join(DELETED));
    none_works(DELETED);
    let of_pack = dir.clone();
    assert!(soon(move || Pack::open(&of_pack).unwrap().other_deletions().is_some()));
    fs::remove_file(dir.join(DELETED)).unwrap();
    fs::remove_file(dir.join("snapshot")).unwrap();
    fifo(&dir.join("snapshot"));
    let of_pack = dir.clone();
    assert!(soon(move || Pack::open(&of_pack).is_err()));
    let verified = soon(move || verify(&dir, &mut |_, _| {}).unwrap());
    assert!(verified.faults[0].to_string().contains("no ordinary file"), "{:?}", verified.faults);
}

/// To open a watchdog arms it, and to open a tape winds it. A pipe says whether it was opened, as devices would.
#[test]
fn nothing_but_plain_files_is_opened_in_a_pack() {
    let (_root, dir) = made(&[(b"a/x", b"x")]);
    let chunk = Id::written(1, [0; 8]).file_name();
    for name in ["snapshot", &chunk] {
        fs::remove_file(dir.join(name)).unwrap();
    }
    let names = ["snapshot", &chunk, DELETED];
    names.iter().for_each(|name| fifo(&dir.join(name)));
    let opens = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    for name in names {
        inotify::add_watch(&opens, dir.join(name), inotify::WatchFlags::OPEN).unwrap();
    }
    let verified = verify(&dir, &mut |_, _| {}).unwrap();
    let sentences: Vec<String> = verified.faults.iter().map(ToString::to_string).collect();
    assert_eq!(sentences.iter().filter(|one| one.contains("no ordinary file")).count(), 3, "{sentences:?}");
    let seen = rustix::io::read(&opens, &mut [0; 1024]);
    assert_eq!(seen, Err(rustix::io::Errno::AGAIN), "they were opened");
}

#[test]
fn the_lock_of_a_foreign_pack_makes_no_file_elsewhere() {
    let (root, dir) = made(&[(b"a/x", b"x")]);
    fs::remove_file(dir.join("lock")).unwrap();
    let elsewhere = root.path().join("nologin");
    symlink(&elsewhere, dir.join("lock")).unwrap();
    let source = source(root.path());
    for change in CHANGES {
        let refused = change(&dir, &source, &Disk).unwrap_err().to_string();
        assert!(refused.contains("lock"), "{refused}");
        assert!(!elsewhere.exists());
    }
}

/// Exchanges the pack's folder for a link as soon as something is made in it.
#[derive(Debug)]
struct Exchanging {
    elsewhere: PathBuf,
}

impl Storage for Exchanging {
    fn folder(&self, path: &Path) -> io::Result<Folder> {
        Disk.folder(path)
    }

    fn create(&self, folder: &Folder, name: &str) -> io::Result<Box<dyn Out>> {
        if !folder.path().is_symlink() {
            fs::rename(folder.path(), folder.path().with_extension("was"))?;
            symlink(&self.elsewhere, folder.path())?;
        }
        Disk.create(folder, name)
    }

    fn rename(&self, folder: &Folder, from: &str, to: &str) -> io::Result<()> {
        Disk.rename(folder, from, to)
    }

    fn sync_dir(&self, folder: &Folder) -> io::Result<()> {
        Disk.sync_dir(folder)
    }

    fn remove(&self, folder: &Folder, name: &str) -> io::Result<()> {
        Disk.remove(folder, name)
    }
}

#[test]
fn a_pack_goes_into_the_folder_that_was_opened_whatever_comes_in_its_place() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    fs::create_dir_all(at("set/cat")).unwrap();
    fs::create_dir(at("elsewhere")).unwrap();
    fs::write(at("set/cat/1"), "1").unwrap();
    let storage = Exchanging { elsewhere: at("elsewhere") };
    pack(&at("set"), &at("out"), Options::default(), &storage, &mut |_| {}).unwrap();
    assert_eq!(fs::read_dir(at("elsewhere")).unwrap().count(), 0);
    assert_eq!(Pack::open(&at("out.was")).unwrap().snapshot().records(), 1);
}

#[test]
fn a_change_goes_into_the_folder_that_was_opened_whatever_comes_in_its_place() {
    let left: [&[&[u8]]; 5] = [
        &[b"a/w", b"a/y", b"a/z"],
        &[b"a/w", b"a/y", b"a/z"],
        &[b"a/w"],
        &[b"a/w", b"a/y"],
        &[b"a/w", b"a/y"],
    ];
    for (change, left) in CHANGES.iter().zip(left) {
        let (root, dir) = made(&[(b"a/w", b"w"), (b"a/x", b"x"), (b"a/y", b"y")]);
        delete(&dir, &[b"a/x".to_vec()], &Disk, &mut |_| {}).unwrap();
        let (elsewhere, source) = (root.path().join("elsewhere"), source(root.path()));
        fs::create_dir(&elsewhere).unwrap();
        // All that could be written over or removed there.
        let there = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name());
        let there: Vec<_> = there.chain(["snapshot.tmp".into(), "deleted.tmp".into()]).collect();
        there.iter().for_each(|name| fs::write(elsewhere.join(name), "theirs").unwrap());
        change(&dir, &source, &Exchanging { elsewhere: elsewhere.clone() }).unwrap();
        assert!(dir.is_symlink());
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), there.len());
        for name in &there {
            assert_eq!(fs::read_to_string(elsewhere.join(name)).unwrap(), "theirs", "{name:?}");
        }
        let opened = Pack::open(&dir.with_extension("was")).unwrap();
        let names: Vec<_> = opened.snapshot().entries().map(|entry| entry.unwrap().name).collect();
        assert_eq!(names, left);
        assert_eq!((opened.other_deletions(), opened.is_stale(), opened.newer().len()), (None, None, 0));
    }
}

/// Who owns a folder around it could lead what is removed elsewhere.
#[test]
fn a_file_that_is_not_whole_is_removed_where_it_was_made() {
    // As much as takes longer to write than to exchange a folder.
    let content = vec![7; 64 << 20];
    let (root, dir) = made(&[(b"etc/passwd", &content)]);
    let at = |name: &str| root.path().join(name);
    fs::create_dir_all(at("victim/etc")).unwrap();
    fs::write(at("victim/etc/passwd"), "theirs").unwrap();
    // Its last byte is not the one that was packed: that is known once all are written.
    let chunk = fs::File::options().write(true).open(dir.join(Id::written(1, [0; 8]).file_name())).unwrap();
    chunk.write_all_at(&[8], 64 + content.len() as u64 - 1).unwrap();
    let opened = Pack::open(&dir).unwrap();
    let (victim, out, done) = (at("victim"), at("out"), Arc::new(AtomicBool::new(false)));
    let (path, over) = (out.clone(), done.clone());
    let exchange = std::thread::spawn(move || {
        while !path.join("etc/passwd").exists() && !over.load(SeqCst) {
            std::hint::spin_loop();
        }
        let _ = fs::rename(&path, path.with_extension("was"));
        symlink(victim, &path).unwrap();
    });
    let extracted = extract(&opened, &[], &out, &mut |_| {}).unwrap();
    done.store(true, SeqCst);
    exchange.join().unwrap();
    assert_eq!((extracted.asked, extracted.files), (1, 0));
    assert_eq!(fs::read_to_string(at("victim/etc/passwd")).unwrap(), "theirs");
    assert_eq!(fs::read_dir(at("out.was/etc")).unwrap().count(), 0);
}

#[test]
fn nothing_is_written_behind_another_users_link() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (root, dir) = made(&[(b"a/x", b"x")]);
    let at = |name: &str| root.path().join(name);
    fs::create_dir(at("victim")).unwrap();
    symlink(at("victim"), at("out")).unwrap();
    std::os::unix::fs::lchown(at("out"), Some(4343), Some(4343)).unwrap();
    let opened = Pack::open(&dir).unwrap();
    for into in [at("out"), at("out/new")] {
        let refused = extract(&opened, &[], &into, &mut |_| {}).unwrap_err().to_string();
        assert!(refused.contains("another user's link"), "{refused}");
        let refused = pack(&dir, &into, Options::default(), &Disk, &mut |_| {}).unwrap_err().to_string();
        assert!(refused.contains("another user's link"), "{refused}");
    }
    symlink(&dir, at("packed")).unwrap();
    std::os::unix::fs::lchown(at("packed"), Some(4343), Some(4343)).unwrap();
    let (source, before) = (source(root.path()), fs::read(dir.join("snapshot")).unwrap());
    for change in CHANGES {
        let refused = change(&at("packed"), &source, &Disk).unwrap_err().to_string();
        assert!(refused.contains("another user's link"), "{refused}");
    }
    Pack::open(&at("packed")).unwrap();
    assert_eq!(fs::read(dir.join("snapshot")).unwrap(), before);
    assert_eq!(fs::read_dir(at("victim")).unwrap().count(), 0);
}

/// Once a chunk was opened, its length was believed as the snapshot has it, which is mapped and may be changed at any time: the reader was
/// ended by a request for as much memory as there is nowhere.
#[test]
fn a_snapshot_that_is_changed_in_place_gives_no_record_a_size() {
    let (_root, dir) = made(&[(b"a/x", b"some bytes")]);
    let opened = Pack::open(&dir).unwrap();
    assert_eq!(opened.whole(&opened.snapshot().entry(0).unwrap()).unwrap(), b"some bytes");
    let path = dir.join("snapshot");
    let mut bytes = fs::read(&path).unwrap();
    let (chunk, record) = (96, 96 + 32);
    bytes[chunk + 16..chunk + 24].copy_from_slice(&(1_u64 << 62).to_le_bytes());
    for field in [record + 16, record + 24] {
        bytes[field..field + 8].copy_from_slice(&(1_u64 << 61).to_le_bytes());
    }
    seal_snapshot(&mut bytes);
    fs::File::options().write(true).open(&path).unwrap().write_all_at(&bytes, 0).unwrap();
    let entry = opened.snapshot().entry(0).unwrap();
    assert_eq!(entry.bytes, 1 << 61);
    let refused = opened.size_of(&entry).unwrap_err().to_string();
    assert!(refused.contains("lies behind its end"), "{refused}");
}

/// Billions of records that are holes in the file had each been named, and kept in memory.
#[test]
fn a_snapshot_of_holes_is_not_looked_through() {
    let (_root, dir) = made(&[(b"a/x", b"x")]);
    let path = dir.join("snapshot");
    let mut bytes = fs::read(&path).unwrap();
    let (records, chunks) = (3_000_000_usize, 1);
    bytes[68..72].copy_from_slice(&(records as u32).to_le_bytes());
    bytes[72..80].copy_from_slice(&1000_u64.to_le_bytes());
    // Header, chunks, records, buckets of two bits at most, slots, names.
    let bits = u32::from_le_bytes(bytes[12..16].try_into().unwrap());
    let length = 96 + chunks * 32 + records * 64 + ((1 << bits) + 1) * 4 + records * 8 + 1000;
    bytes[80..88].copy_from_slice(&(length as u64).to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..92]);
    bytes[92..96].copy_from_slice(&crc.to_le_bytes());
    fs::write(&path, &bytes[..96 + 32]).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(length as u64).unwrap();
    let pack = Pack::open(&dir).unwrap();
    assert_eq!(pack.snapshot().records(), records);
    let verified = verify(&dir, &mut |_, _| {}).unwrap();
    assert!((10_000..10_010).contains(&verified.faults.len()), "{} faults", verified.faults.len());
    assert!(verified.faults.last().unwrap().to_string().contains("more than 10000"));
    let mut problems = 0;
    extract(&pack, &[], &dir.with_extension("out"), &mut |_| problems += 1).unwrap();
    assert_eq!(problems, 10_001);
}

/// Memory for as many chunks as it has had been taken before one was looked at.
#[test]
fn a_snapshot_of_holes_takes_no_memory_for_its_chunks() {
    let (_root, dir) = made(&[(b"a/x", b"x")]);
    let path = dir.join("snapshot");
    let mut bytes = fs::read(&path).unwrap();
    let more = u64::from(u32::MAX - 1) * 32;
    let length = bytes.len() as u64 + more;
    bytes[64..68].copy_from_slice(&u32::MAX.to_le_bytes());
    bytes[80..88].copy_from_slice(&length.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..92]);
    bytes[92..96].copy_from_slice(&crc.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
    assert!(Pack::open(&dir).is_err());
    let verified = verify(&dir, &mut |_, _| {}).unwrap();
    assert!((10_000..10_010).contains(&verified.faults.len()), "{} faults", verified.faults.len());
}

/// It had been read whole, however long it was.
#[test]
fn a_list_of_deletions_of_holes_is_refused_where_they_begin() {
    let (_root, dir) = made(&[(b"a/x", b"x"), (b"a/y", b"y")]);
    delete(&dir, &[b"a/x".to_vec()], &Disk, &mut |_| {}).unwrap();
    let path = dir.join(DELETED);
    let mut bytes = fs::read(&path).unwrap();
    let length = 1_u64 << 30;
    bytes[32..40].copy_from_slice(&length.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..60]);
    bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
    let is_refused = |what: &str| {
        let verified = verify(&dir, &mut |_, _| {}).unwrap();
        assert_eq!((&*verified.faults[0].file, verified.faults.len()), (DELETED, 1), "{:?}", verified.faults);
        assert!(verified.faults[0].what.contains(what), "{:?}", verified.faults);
        let refused = delete(&dir, &[b"a/y".to_vec()], &Disk, &mut |_| {}).unwrap_err().to_string();
        assert!(refused.contains(what), "{refused}");
    };
    // Before its checksum, which is of all of it.
    is_refused("its marks are of no chunk");
    // Marks of more records than a chunk can have.
    let mut bytes = vec![0; 64 + 20 + (2 << 20) / 8];
    bytes[64 + 16..64 + 20].copy_from_slice(&(2_u32 << 20).to_le_bytes());
    bytes[64 + 20] = 1;
    bytes[40] = 1;
    seal_deleted(&mut bytes);
    fs::write(&path, &bytes).unwrap();
    is_refused("its marks are of no chunk");
}

/// As in `extract`: a chunk that does not say what is in it is read by the snapshot.
#[test]
fn a_chunk_is_not_read_as_often_as_a_snapshot_says() {
    let (_root, dir) = made(&[(b"a/0", &[7; 1000])]);
    let path = dir.join(Id::written(1, [0; 8]).file_name());
    let mut chunk = Chunk::read(&fs::File::open(&path).unwrap(), &path).unwrap();
    let record = chunk.records[0].clone();
    chunk.records.extend((1..50).map(|number| {
        let mut other = record.clone();
        other.name = format!("a/{number}").into_bytes();
        other
    }));
    fs::write(dir.join("snapshot"), build(chunk.pack, &[chunk], &Deleted::default()).unwrap()).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(64 + 1000).unwrap();
    let verified = verify(&dir, &mut |_, _| {}).unwrap();
    assert_eq!((verified.records, verified.faults.len()), (1, 2), "{:?}", verified.faults);
}

/// An administrator's pack of a user's folder would have had any file in it that root may read.
#[test]
fn another_users_links_are_packed_where_that_user_may_read_what_they_lead_to() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    for folder in ["", "set", "set/a", "open"] {
        fs::create_dir_all(at(folder)).unwrap();
        fs::set_permissions(at(folder), fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::create_dir(at("private")).unwrap();
    fs::set_permissions(at("private"), fs::Permissions::from_mode(0o700)).unwrap();
    for file in ["set/a/plain", "open/file", "private/file"] {
        fs::write(at(file), file).unwrap();
        fs::set_permissions(at(file), fs::Permissions::from_mode(0o644)).unwrap();
    }
    for (name, target) in [("well", "open/file"), ("secret", "private/file"), ("folder", "private")] {
        symlink(at(target), at("set/a").join(name)).unwrap();
        std::os::unix::fs::lchown(at("set/a").join(name), Some(4343), Some(4343)).unwrap();
    }
    let mut sentences = Vec::new();
    pack(&at("set"), &at("packed"), Options::default(), &Disk, &mut |notice| {
        if let Notice::Problem(sentence) = notice {
            sentences.push(sentence.to_owned());
        }
    })
    .unwrap();
    assert_eq!(sentences.len(), 2, "{sentences:?}");
    assert!(sentences.iter().all(|sentence| sentence.contains("another user's link")), "{sentences:?}");
    let opened = Pack::open(&at("packed")).unwrap();
    let names: Vec<_> = opened.snapshot().entries().map(|entry| entry.unwrap().name).collect();
    assert_eq!(names, [&b"a/plain"[..], b"a/well"]);
    // The source itself, and a tar file.
    symlink(at("private"), at("theirs")).unwrap();
    std::os::unix::fs::lchown(at("theirs"), Some(4343), Some(4343)).unwrap();
    let refused = pack(&at("theirs"), &at("other"), Options::default(), &Disk, &mut |_| {}).unwrap_err();
    assert!(refused.to_string().contains("another user's link"), "{refused}");
    let shard = [at("set/a/secret")];
    let shards = Origin::Shards { paths: &shard, by_shard: false };
    let refused = pack(shards, &at("other"), Options::default(), &Disk, &mut |_| {}).unwrap_err();
    assert!(refused.to_string().contains("another user's link"), "{refused}");
}

/// Root may read every file, and shows a pack that is mounted, or what is extracted, to others. A snapshot says what its maker likes,
/// also the checksum of one byte of a file that is no chunk: one of 256 guesses is right.
#[test]
fn another_users_link_in_a_pack_leads_to_what_that_user_may_read() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: another_users_link_in_a_pack_leads_to_what_that_user_may_read takes root");
        return;
    }
    let (root, dir) = made(&[(b"a/0", &[7; 100])]);
    let secret = root.path().join("secret");
    fs::write(&secret, b"root:password".repeat(100)).unwrap();
    let chunk = dir.join(Id::written(1, [0; 8]).file_name());
    let mut described = Chunk::read(&fs::File::open(&chunk).unwrap(), &chunk).unwrap();
    described.bytes = 1300;
    let record = &mut described.records[0];
    (record.offset, record.stored_bytes, record.bytes, record.crc) = (5, 1, 1, crc32c::crc32c(b"p"));
    fs::write(dir.join("snapshot"), build(described.pack, &[described], &Deleted::default()).unwrap())
        .unwrap();
    fs::remove_file(&chunk).unwrap();
    let read = || {
        let opened = Pack::open(&dir)?;
        let entry = opened.snapshot().entry(0)?;
        let mut byte = [0];
        opened.read(&entry, &mut byte).map(|()| byte)
    };
    let link = |to: &Path, at: &Path, uid: u32| {
        let _ = fs::remove_file(at);
        symlink(to, at).unwrap();
        std::os::unix::fs::lchown(at, Some(uid), Some(uid)).unwrap();
    };
    link(&secret, &chunk, 0);
    assert_eq!(read().unwrap(), *b"p", "root's own link leads on");
    link(&secret, &chunk, 4343);
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let refused = read().unwrap_err().to_string();
    assert!(refused.contains("another user's link"), "{refused}");
    std::os::unix::fs::chown(&secret, Some(4343), Some(4343)).unwrap();
    assert_eq!(read().unwrap(), *b"p", "what is theirs they may show");
    // The snapshot itself, which has the names of all files.
    let theirs = root.path().join("snapshot");
    fs::rename(dir.join("snapshot"), &theirs).unwrap();
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o600)).unwrap();
    link(&theirs, &dir.join("snapshot"), 4343);
    let refused = read().unwrap_err().to_string();
    assert!(refused.contains("another user's link"), "{refused}");
}
