//! Lanes and pages of knobs as a process may leave them: refused, or read within their bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use stallscope_ring::{CollectorSide, JobSide, Reader, RequestNumber, SLOTS, Writer};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

const CAPACITY: u32 = 4;

/// What `bytes` says at the places that it says, in a memory file that is well-made otherwise.
fn spoilt(fd: OwnedFd, bytes: &[u8]) -> OwnedFd {
    let file = File::from(fd);
    let length = file.metadata().map_or(0, |meta| meta.len());
    for change in bytes.chunks_exact(10) {
        let at = u64::from(u16::from_le_bytes([change[0], change[1]]));
        if at + 8 <= length {
            let _ = file.write_all_at(&change[2..], at);
        }
    }
    file.into()
}

fn sealed(bytes: &[u8]) -> OwnedFd {
    let fd = memfd_create("fuzz", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).expect("memory");
    let file = File::from(fd);
    file.write_all_at(bytes, 0).expect("memory");
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).expect("seals");
    file.into()
}

fn read(fd: OwnedFd) {
    let Ok(mut reader) = Reader::open(fd) else { return };
    for most in [2, u64::MAX, u64::MAX] {
        let mut seen = 0_u64;
        let drained = reader.drain(most, |_| seen += 1);
        assert_eq!(drained.records, seen);
        assert!(seen <= most);
        assert!(seen <= u64::from(stallscope_ring::MAX_CAPACITY));
    }
    let _ = (reader.dropped(), reader.resyncs(), reader.pid());
}

fn turn(fd: &OwnedFd) {
    let Ok(mut page) = CollectorSide::open(fd) else { return };
    for slot in 0..SLOTS + 1 {
        let (number, value) = page.requested(slot);
        let _ = page.standing(slot);
        page.ask(slot, number, value);
    }
    page.ask(0, RequestNumber::default(), u64::MAX);
    page.ring();
}

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else { return };
    match kind % 4 {
        0 => read(sealed(rest)),
        1 => {
            let Ok((mut writer, fd)) = Writer::create(CAPACITY) else { return };
            writer.push(&Default::default());
            read(spoilt(fd, rest));
            writer.push(&Default::default());
        }
        2 => turn(&sealed(rest)),
        _ => {
            let Ok((_job, fd)) = JobSide::create() else { return };
            turn(&spoilt(fd, rest));
        }
    }
});
