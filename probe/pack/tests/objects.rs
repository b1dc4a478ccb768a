//! A pack whose files are objects: the same records as in a folder, and no more memory than the store itself accounts for.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use stallscope_pack::{
    About, Chunk, Deleted, Disk, Error, Got, Id, Local, Objects, Options, Pack, Result, Wanted, build,
    chunk_of, delete, pack,
};
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use tempfile::TempDir;

/// A store in memory, and the ranges that were asked for.
#[derive(Debug, Default)]
struct Memory {
    objects: Mutex<HashMap<String, Vec<u8>>>,
    asked: Mutex<Vec<Wanted>>,
}

impl Memory {
    fn of(folder: &Path) -> Arc<Memory> {
        let memory = Memory::default();
        for entry in folder.read_dir().unwrap().map(io::Result::unwrap) {
            memory
                .objects()
                .insert(entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap());
        }
        Arc::new(memory)
    }

    fn objects(&self) -> MutexGuard<'_, HashMap<String, Vec<u8>>> {
        self.objects.lock().unwrap()
    }

    fn asked(&self) -> Vec<Wanted> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

impl Objects for Memory {
    fn read(&self, wanted: &[Wanted]) -> Vec<Result<Got>> {
        self.asked.lock().unwrap().extend_from_slice(wanted);
        let objects = self.objects();
        let one = |wanted: &Wanted| {
            let gone = || io::Error::new(ErrorKind::NotFound, "there is no such object");
            let path = PathBuf::from(&wanted.name);
            let object = objects.get(&wanted.name).ok_or_else(gone);
            let object = object.map_err(|source| Error::Io { doing: "read", path: path.clone(), source })?;
            let begin = (wanted.range.start as usize).min(object.len());
            let end = (wanted.range.end as usize).min(object.len());
            match end > begin {
                true => Ok(Got { bytes: object[begin..end].to_vec(), size: object.len() as u64 }),
                false => Err(Error::Damaged { path, what: "it is cut".into() }),
            }
        };
        wanted.iter().map(one).collect()
    }

    fn whole(&self, name: &str, _most_bytes: u64) -> Result<Option<Vec<u8>>> {
        Ok(self.objects().get(name).cloned())
    }
}

/// A folder with a pack of 60 files, some of which are compressed.
fn packed() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..60_u32 {
        let path = dir.path().join(format!("source/{}/{number:02}", number % 3));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, number.to_string().repeat(number as usize * 5)).unwrap();
    }
    let options = Options { shuffle: Some(1), zstd: Some(3), chunk_bytes: 200 };
    pack(&dir.path().join("source"), &dir.path().join("pack"), options, &Disk, &mut |_| {}).unwrap();
    dir
}

fn open(memory: &Arc<Memory>) -> Result<Pack> {
    Pack::open_objects("s3://bucket/pack".into(), memory.clone())
}

fn all(pack: &Pack) -> Vec<(Vec<u8>, Vec<u8>)> {
    let entries = pack.snapshot().entries().map(Result::unwrap);
    entries.map(|entry| (entry.name.to_vec(), pack.whole(&entry).unwrap())).collect()
}

#[test]
fn each_record_is_that_of_the_folder() {
    let dir = packed();
    let memory = Memory::of(&dir.path().join("pack"));
    let (here, there) = (Pack::open(&dir.path().join("pack")).unwrap(), open(&memory).unwrap());
    assert!(here.snapshot().chunks() > 3 && there.is_in_store() && !here.is_in_store());
    assert_eq!(all(&there), all(&here));
    let entries: Vec<_> = there.snapshot().entries().map(Result::unwrap).collect();
    memory.asked();
    let each: Vec<_> = there.whole_of_each(&entries).into_iter().map(Result::unwrap).collect();
    assert_eq!(each, all(&here).into_iter().map(|(_, bytes)| bytes).collect::<Vec<_>>());
    // But what has no bytes.
    assert_eq!(memory.asked().len(), here.snapshot().chunks(), "records near each other are read at once");
    let mut part = [0; 3];
    there.read_part(&entries[59], &mut part, 2).unwrap();
    assert_eq!(part, each[59][2..5]);
}

#[test]
fn what_is_damaged_cut_or_gone_is_an_error_of_its_records_alone() {
    let dir = packed();
    let memory = Memory::of(&dir.path().join("pack"));
    let there = open(&memory).unwrap();
    let whole = all(&there);
    let name = |number| there.snapshot().chunk(number).unwrap().id.file_name();
    memory.objects().get_mut(&name(0)).unwrap()[64] ^= 1;
    memory.objects().get_mut(&name(1)).unwrap().truncate(70);
    memory.objects().remove(&name(2));
    let entries: Vec<_> = there.snapshot().entries().map(Result::unwrap).collect();
    let found = there.whole_of_each(&entries);
    let mut wrong = [0; 3];
    for ((entry, found), (_, bytes)) in entries.iter().zip(found).zip(&whole) {
        match (entry.chunk, found) {
            (_, Ok(found)) => assert_eq!(found, *bytes),
            (chunk @ 0..3, Err(error)) => {
                let words = ["does not hold what was packed", "is cut", "there is no such object"][chunk];
                assert!(error.to_string().contains(words), "{error}");
                wrong[chunk] += 1;
            }
            (chunk, Err(error)) => panic!("chunk {chunk}: {error}"),
        }
    }
    assert!(wrong[0] == 1 && wrong[1] > 1 && wrong[2] > 1, "{wrong:?}");
}

#[test]
fn deletions_of_another_state_are_named() {
    let dir = packed();
    let folder = dir.path().join("pack");
    let before = Memory::of(&folder);
    delete(&folder, &[b"0/03".to_vec()], &Disk, &mut |_| {}).unwrap();
    let after = Memory::of(&folder);
    assert_eq!(open(&before).unwrap().other_deletions(), None);
    assert_eq!(open(&after).unwrap().other_deletions(), None);
    before.objects().insert("deleted".into(), after.objects()["deleted"].clone());
    let pack = open(&before).unwrap();
    assert!(pack.other_deletions().unwrap().contains("its upload goes on"));
    before.objects().remove("snapshot");
    assert!(
        open(&before).unwrap_err().to_string().contains("is no pack: there is no s3://bucket/pack/snapshot")
    );
}

#[test]
fn no_memory_is_taken_by_the_word_of_a_snapshot() {
    let (id, own) = (Id::written(1, [0; 8]), Id([3; 16]));
    let bytes = chunk_of(id, own, &[(b"a/x", b"x".as_slice(), About::default())]).unwrap();
    let mut chunk = Chunk::read(bytes.as_slice(), Path::new("chunk")).unwrap();
    chunk.bytes = 1 << 50;
    chunk.records[0].stored_bytes = 1 << 49;
    chunk.records[0].bytes = 1 << 49;
    let memory = Arc::new(Memory::default());
    memory.objects().insert(id.file_name(), bytes);
    memory.objects().insert("snapshot".into(), build(own, &[chunk], &Deleted::default()).unwrap());
    let pack = open(&memory).unwrap();
    let entry = pack.snapshot().entry(0).unwrap();
    for read in [pack.whole(&entry), pack.whole_of_each(std::slice::from_ref(&entry)).remove(0)] {
        assert!(read.unwrap_err().to_string().contains("is cut"));
    }
    assert!(memory.asked().iter().all(|wanted| wanted.range.end - wanted.range.start == 1));
}

#[test]
fn what_lies_damaged_on_the_disk_in_between_is_read_from_the_store() {
    let dir = packed();
    let memory = Memory::of(&dir.path().join("pack"));
    let whole = all(&open(&memory).unwrap());
    let folder = dir.path().join("kept");
    let local = Local { folder: folder.clone(), limit: None, warn: |sentence| panic!("{sentence}") };
    let kept = || {
        let mut pack = open(&memory).unwrap();
        pack.keep_in(&local).unwrap();
        pack
    };
    let mut there = kept();
    memory.asked();
    assert_eq!(all(&there), whole);
    let chunks = there.snapshot().chunks();
    assert_eq!(memory.asked().len(), chunks, "each chunk once");
    // All bytes of all chunks are other ones.
    let spoil = || {
        for entry in folder.read_dir().unwrap().map(io::Result::unwrap) {
            if entry.file_name().to_str().unwrap().ends_with(".chunk") {
                let bytes = std::fs::read(entry.path()).unwrap();
                std::fs::write(entry.path(), bytes.iter().map(|byte| !byte).collect::<Vec<_>>()).unwrap();
            }
        }
    };
    for at_once in [false, true] {
        spoil();
        if at_once {
            there = kept();
        }
        let entries: Vec<_> = there.snapshot().entries().map(Result::unwrap).collect();
        let found: Vec<_> = match at_once {
            true => there.whole_of_each(&entries).into_iter().map(Result::unwrap).collect(),
            false => entries.iter().map(|entry| there.whole(entry).unwrap()).collect(),
        };
        assert!(found.iter().eq(whole.iter().map(|(_, bytes)| bytes)));
        assert_eq!(memory.asked().iter().filter(|one| one.name.ends_with(".chunk")).count(), chunks);
        assert_eq!(all(&kept()), whole);
        assert_eq!(memory.asked().len(), 0, "they are healed");
    }
    // Of damage in the store itself there is an error, and it is not asked for again and again.
    let name = there.snapshot().chunk(0).unwrap().id.file_name();
    memory.objects().get_mut(&name).unwrap()[64] ^= 1;
    std::fs::remove_dir_all(&folder).unwrap();
    let there = kept();
    let first =
        there.snapshot().entries().map(Result::unwrap).find(|entry| (entry.chunk, entry.offset) == (0, 64));
    for requests in [2, 1, 2, 2] {
        memory.asked();
        let error = there.whole(first.as_ref().unwrap()).unwrap_err().to_string();
        assert!(error.contains("does not hold what was packed"), "{error}");
        assert_eq!(memory.asked().len(), requests);
    }
}

#[test]
fn a_pack_in_a_folder_is_kept_nowhere_else() {
    let dir = packed();
    let mut here = Pack::open(&dir.path().join("pack")).unwrap();
    let local = Local { folder: dir.path().join("kept"), limit: None, warn: |_| {} };
    assert!(here.keep_in(&local).unwrap_err().to_string().contains("is a folder"));
    assert!(!local.folder.exists());
}

#[test]
fn no_disk_is_taken_by_the_word_of_a_snapshot() {
    let (id, own) = (Id::written(1, [0; 8]), Id([3; 16]));
    let bytes = chunk_of(id, own, &[(b"a/x", b"x".as_slice(), About::default())]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for (claimed, limit) in [(1 << 62, None), (1 << 62, Some(u64::MAX)), (200 << 20, Some(1 << 30))] {
        let mut chunk = Chunk::read(bytes.as_slice(), Path::new("chunk")).unwrap();
        chunk.bytes = claimed;
        let memory = Arc::new(Memory::default());
        memory.objects().insert(id.file_name(), bytes.clone());
        memory.objects().insert("snapshot".into(), build(own, &[chunk], &Deleted::default()).unwrap());
        let mut pack = open(&memory).unwrap();
        let folder = dir.path().join("kept");
        pack.keep_in(&Local { folder: folder.clone(), limit, warn: |_| {} }).unwrap();
        let entry = pack.snapshot().entry(0).unwrap();
        assert!(pack.whole(&entry).unwrap_err().to_string().contains("is cut"));
        assert!(memory.asked().iter().all(|one| one.range.end - one.range.start <= 64 << 20));
        let chunks = folder.read_dir().unwrap().map(io::Result::unwrap);
        assert!(!chunks.map(|one| one.file_name().into_string().unwrap()).any(|name| name.contains('-')));
    }
}
