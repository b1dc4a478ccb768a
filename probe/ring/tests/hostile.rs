//! Lanes made by somebody who wants the reader to fall over.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use stallscope_abi::lane::{Record, VERSION};
use stallscope_ring::{Error, Reader, Writer};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

const CAPACITY: u32 = 4;
const HEADER_BYTES: usize = 256;
const LANE_BYTES: usize = HEADER_BYTES + CAPACITY as usize * size_of::<Record>();

fn memfd(bytes: &[u8], seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("hostile", MemfdFlags::ALLOW_SEALING).unwrap();
    let file = File::from(fd);
    file.write_all_at(bytes, 0).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file.into()
}

fn sealed(bytes: &[u8]) -> OwnedFd {
    memfd(bytes, SealFlags::SHRINK | SealFlags::GROW)
}

/// A good lane's bytes, to be spoilt.
fn good() -> Vec<u8> {
    let (_writer, fd) = Writer::create(CAPACITY).unwrap();
    let mut bytes = vec![0; LANE_BYTES];
    File::from(fd).read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn a_good_copy_is_read() {
    assert!(Reader::open(sealed(&good())).is_ok());
}

#[test]
fn descriptors_that_are_no_lane_are_refused() {
    let unsealed = memfd(&good(), SealFlags::GROW);
    assert!(matches!(Reader::open(unsealed), Err(Error::NotALane(_))));
    let unwritable = memfd(&good(), SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE);
    assert!(matches!(Reader::open(unwritable), Err(Error::System { call: "mmap", .. })));
    let short = sealed(&good()[..100]);
    assert!(matches!(Reader::open(short), Err(Error::NotALane(_))));
    let file = File::open("/proc/self/exe").unwrap();
    assert!(matches!(Reader::open(file.into()), Err(Error::NotALane(_))));
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    assert!(matches!(Reader::open(pipe), Err(Error::NotALane(_))));
    let huge = memfd_create("huge", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&huge, 1 << 40).unwrap();
    fcntl_add_seals(&huge, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    assert!(matches!(Reader::open(huge), Err(Error::NotALane(_))));
}

/// The reader's figures are added up over all lanes of a job.
#[test]
fn a_writer_that_claims_to_have_dropped_everything_is_believed_so_much_and_no_more() {
    let (writer, fd) = Writer::create(CAPACITY).unwrap();
    let file = File::from(fd);
    let reader = Reader::open(file.try_clone().unwrap().into()).unwrap();
    let dropped_at = 80;
    for (written, believed) in [(0, 0), (12_345, 12_345), (1 << 60, 1 << 48), (u64::MAX, 1 << 48)] {
        file.write_all_at(&u64::to_ne_bytes(written), dropped_at).unwrap();
        assert_eq!(reader.dropped(), believed);
    }
    drop(writer);
}

#[test]
fn another_version_is_named() {
    let mut bytes = good();
    bytes[8..12].copy_from_slice(&(VERSION + 1).to_ne_bytes());
    match Reader::open(sealed(&bytes)) {
        Err(Error::Version { found, expected }) => assert_eq!((found, expected), (VERSION + 1, VERSION)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_head_from_nowhere_resyncs_once_and_is_counted() {
    for at in [64, 72] {
        let (mut writer, fd) = Writer::create(CAPACITY).unwrap();
        let file = File::from(fd.try_clone().unwrap());
        let mut reader = Reader::open(fd).unwrap();
        writer.push(&Record::default());
        file.write_all_at(&u64::MAX.to_ne_bytes(), at).unwrap();
        assert!(reader.drain(u64::MAX, |_| panic!("nothing to hand over")).resynced);
        assert!(!reader.drain(u64::MAX, |_| panic!("nothing to hand over")).resynced);
        assert_eq!(reader.resyncs(), 1);
    }
}

#[test]
fn a_tail_from_nowhere_makes_the_writer_drop_and_nothing_worse() {
    for capacity in [CAPACITY, 512] {
        let (mut writer, fd) = Writer::create(capacity).unwrap();
        let file = File::from(fd);
        for tail in [u64::MAX, 1 << 40, 77] {
            for at in [128, 136] {
                file.write_all_at(&tail.to_ne_bytes(), at).unwrap();
                for _ in 0..1000 {
                    writer.push(&Record::default());
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_drained_within_bounds(
        noise in proptest::collection::vec(any::<u8>(), LANE_BYTES),
        keep in 0..=LANE_BYTES,
    ) {
        // Keeping a good beginning lets the noise reach what comes behind the first check.
        let mut bytes = good();
        bytes[keep..].copy_from_slice(&noise[keep..]);
        if let Ok(mut reader) = Reader::open(sealed(&bytes)) {
            for most in [2, u64::MAX, u64::MAX] {
                let mut seen = 0;
                let drained = reader.drain(most, |_| seen += 1);
                prop_assert_eq!(drained.records, seen);
                prop_assert!(seen <= most);
                prop_assert!(seen <= u64::from(CAPACITY));
            }
            reader.dropped();
        }
    }
}

/// Where nothing was written nothing is, and who reads it is not to be charged for memory that outlives them.
#[test]
fn records_that_were_never_written_take_no_memory() {
    const MANY: u32 = 1 << 16;
    let (_writer, fd) = Writer::create(MANY).unwrap();
    let file = File::from(fd.try_clone().unwrap());
    let mut reader = Reader::open(fd).unwrap();
    for at in [64, 72] {
        file.write_all_at(&u64::from(if at == 64 { 256 } else { MANY }).to_ne_bytes(), at).unwrap();
    }
    let mut records = 0;
    reader.drain(u64::MAX, |record| {
        assert_eq!(record.words(), [0; 6]);
        records += 1;
    });
    assert_eq!(records, u64::from(MANY) + 256);
    let held_bytes = rustix::fs::fstat(&file).unwrap().st_blocks * 512;
    assert!(held_bytes <= 64 << 10, "{held_bytes} bytes came to be by being read");
}
